"""Text to token ids and back: SentencePiece BPE with byte fallback, as Gemma has it, or byte-level.

In a byte-level vocabulary (as GPT-2 has it) each byte is spelled as a printable character.
"""

import codecs
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from speculax.models.errors import LoadError

if TYPE_CHECKING:
    import tokenizers

_SPACE = "▁"  # how the vocabulary spells a space
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# Byte-level: printable characters of Latin-1 stand for themselves, the others for what follows it.
_PRINTABLE = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}
_DAMAGED = "download or convert the file again"
_CONTROL, _USER_DEFINED = 3, 4  # token types in a GGUF file


class Tokenizer:
    """Text to token ids and back.

    The ids are those of transformers' tokenizer for the same vocabulary, which also means that a
    special token spelled out in a text (`<eos>`, `<start_of_turn>`) becomes that token. One thing
    differs: a text that itself starts with `<bos>` does not get a second one.

    Decoding gives back the text, byte for byte, save special tokens and the character U+2581, which
    is how the vocabulary spells a space. Bytes that are not UTF-8, which only sampling can make,
    become U+FFFD.

    Args:
        backend: A `tokenizers.Tokenizer` without a post-processor.
        bos_id: The id every encoded text starts with, None for no such token.
    """

    def __init__(self, backend: "tokenizers.Tokenizer", bos_id: int | None):
        self._backend = backend
        self._bos = [] if bos_id is None else [bos_id]
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(id for id, token in added.items() if token.special)
        self._is_byte_level = type(backend.decoder).__name__ == "ByteLevel"

    @classmethod
    def from_json(cls, text: bytes, bos_id: int | None) -> "Tokenizer":
        """The tokenizer of a `tokenizer.json`; takes about a second for 262,144 tokens."""
        from tokenizers import Tokenizer as Backend

        return cls(Backend.from_buffer(text), bos_id)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(self._backend.to_str().encode()).digest()

    def __eq__(self, other: object) -> bool:
        """Whether they are the same: texts have the same ids."""
        if self is other or not isinstance(other, Tokenizer):
            return self is other
        return self._bos == other._bos and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`, after exactly one BOS if the model has such a token.

        Raises:
            ValueError: The text has half of a surrogate pair, which is no character.
        """
        if half := _SURROGATE.search(text):
            raise ValueError(
                f"a text must be Unicode characters, got half a surrogate pair ({half[0]!a}) at "
                f"index {half.start()}; read the text with errors='replace', or leave it out."
            )
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return ids if ids[:1] == self._bos else self._bos + ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens."""
        stream = self.stream()
        return "".join([stream.push(id) for id in ids]) + stream.flush()

    def stream(self) -> "TextStream":
        """A decoder that takes one token at a time; what it gives adds up to `decode`."""
        return TextStream(self)

    def _bytes(self, id: int) -> bytes:
        """The UTF-8 bytes that a token stands for."""
        token = self._backend.id_to_token(id)
        if token is None or id in self._special_ids:
            return b""
        if self._is_byte_level:
            return bytes(_BYTE_OF[character] for character in token)
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        return token.replace(_SPACE, " ").encode()


class TextStream:
    """Token ids in, text out as soon as it is final; made by `Tokenizer.stream`."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        # Not the library's DecodeStream: it decodes a run of byte tokens as a whole, so a bad byte
        # takes back characters that were already given out, and then it raises.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that `id` completes; "" inside a character of several bytes."""
        return self._decoder.decode(self._tokenizer._bytes(int(id)))

    def flush(self) -> str:
        """What is left at the end: U+FFFD if it is inside a character, else ""."""
        return self._decoder.decode(b"", final=True)


class DecodedStream:
    """The same for any tokenizer with a `decode`, which is given all ids again for each one.

    More ids must only add to the text: a decoder that cleans up spaces before punctuation takes
    back what was already given out, so turn that off.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def push(self, id: int) -> str:
        """The text that `id` completes; "" inside a character of several tokens."""
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        return "" if text.endswith("\ufffd") else self._give(text)

    def flush(self) -> str:
        """What is left at the end."""
        return self._give(self._tokenizer.decode(self._ids))

    def _give(self, text: str) -> str:
        new, self._given = text[len(self._given) :], text
        return new


def text_stream(tokenizer: Any) -> TextStream | DecodedStream:
    """A decoder that takes one token at a time, of a `Tokenizer` or of another with a `decode`."""
    return tokenizer.stream() if hasattr(tokenizer, "stream") else DecodedStream(tokenizer)


def build(metadata: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    """The tokenizer that the `tokenizer.ggml.*` entries of a GGUF file describe.

    The file lists tokens but no merges. Gemma's are implied by the order of its tokens: a pair that
    makes an earlier token goes first, and of two pairs that make the same token the one with the
    longer left part (found by comparison with transformers' tokenizer).

    Raises:
        LoadError: The vocabulary is not a SentencePiece BPE one without space prefix, or damaged.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    def entry(name: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}", default)

    kind = entry("model")
    if kind != "llama" or entry("add_space_prefix", True):
        given = f"{kind!r} with space prefix" if kind == "llama" else repr(kind)
        raise LoadError(
            f"the GGUF file's tokenizer must be 'llama' (SentencePiece) without space prefix, "
            f"it is {given}",
            "use a file converted from Gemma 3",
        )
    texts, kinds, unknown_id = entry("tokens"), entry("token_type"), entry("unknown_token_id", 0)
    for name, values, kind in (("tokens", texts, str), ("token_type", kinds, int)):
        is_array = isinstance(values, list) and set(map(type, values)) == {kind}
        if not is_array or len(values) != len(texts):
            raise LoadError(
                f"the GGUF file's tokenizer must have {name}, {kind.__name__} for each token",
                _DAMAGED,
            )
    if not 0 <= unknown_id < len(texts):
        raise LoadError(
            f"the GGUF file's unknown_token_id must be one of its {len(texts)} tokens, "
            f"it is {unknown_id}",
            _DAMAGED,
        )
    # A run of spaces is a token spelled with real spaces, which the normalizer leaves none of.
    tokens = [_SPACE * len(t) if t.strip(" ") == "" else t for t in texts]
    ids = {token: id for id, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in ids and token[cut:] in ids
    ]
    unknown = tokens[unknown_id]
    backend = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    types = list(zip(texts, kinds, strict=True))
    # Both kinds are found in a text first, whole. Only control tokens are left out when decoding.
    backend.add_special_tokens(
        [AddedToken(token, normalized=False) for token, type in types if type == _CONTROL]
    )
    backend.add_tokens(
        [
            AddedToken(token, normalized=False)
            for token, type in types
            if type == _USER_DEFINED and token in ids
        ]
    )
    return backend
