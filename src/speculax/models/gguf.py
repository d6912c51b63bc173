"""GGUF files: which config, tensors and vocabulary they hold.

What a tensor is called, and which constants the metadata leaves out, is known per architecture. So
far there is one: Gemma 3, text only and without rope scaling (270M and 1B).
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speculax.models.config import DecoderConfig
from speculax.models.errors import LoadError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_SUPPORTED = "use a GGUF file of Gemma 3 270M or 1B"
_DAMAGED = "download or convert the file again"
_ROWS = 8192  # dequantized at a time: all 262,144 rows of an embedding take three times their size

# Our parameters and the parts of the file that make them, joined along the output axis in this
# order. The file has matrices as (out, in), and norm weights as 1 + w, ready to multiply with.
_MODEL = {"embedding": ("token_embd",), "final_norm": ("output_norm",)}
_LAYER = {
    "attention_norm": ("attn_norm",),
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "query_norm": ("attn_q_norm",),
    "key_norm": ("attn_k_norm",),
    "out": ("attn_output",),
    "post_attention_norm": ("post_attention_norm",),
    "mlp_norm": ("ffn_norm",),
    "gate_up": ("ffn_gate", "ffn_up"),
    "down": ("ffn_down",),
    "post_mlp_norm": ("post_ffw_norm",),
}
# Keys of other members of the family, each with the value at which it changes nothing.
_NEUTRAL = {
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "attention.sliding_window_pattern": 6,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "expert_count": 0,
}


class GGUFFile:
    """An open GGUF file of a supported model.

    Args:
        path: The file. Reading a vocabulary of 262,144 tokens takes about ten seconds.

    Attributes:
        metadata: The file's key-value pairs as Python values.
        config: The sizes and constants of the decoder.
        shapes: The shapes of the parameters by name: `embedding` (V, D), `final_norm` (D,) and,
            for each layer, `layers.0.qkv` and so on; matrices are (in, out).

    Raises:
        LoadError: The file is missing, cut short, not GGUF, or of an unsupported model.
    """

    def __init__(self, path: Path):
        reader = _open(path)
        try:
            self.metadata = {key: field.contents() for key, field in reader.fields.items()}
        except ValueError as error:
            raise LoadError(f"the metadata of {path} is damaged ({error})", _DAMAGED) from error
        reader.fields.clear()  # hundreds of megabytes of small arrays
        self.config = _gemma3_config(path, self.metadata)
        self.shapes = _shapes(self.config)
        self._tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in reader.tensors}
        self._check_tensors(path)

    @property
    def bos_id(self) -> int | None:
        """The id that every text starts with, None if there is no such token."""
        if not self.metadata.get("tokenizer.ggml.add_bos_token", True):
            return None
        return self.metadata.get("tokenizer.ggml.bos_token_id")

    @property
    def eos_ids(self) -> list[int]:
        """The ids that end a text, or the turn of a chat."""
        keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        return sorted({self.metadata[key] for key in keys if key in self.metadata})

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The float32 values of the parameter `name`, in order, piece after piece."""
        parts = [self._tensors[part] for part in _parts(name)]
        if name == "embedding":
            for start in range(0, len(parts[0].data), _ROWS):
                yield _floats(parts[0], slice(start, start + _ROWS))
        else:
            yield np.concatenate([_floats(part) for part in parts]).T

    def _check_tensors(self, path: Path) -> None:
        expected = {part: name for name in self.shapes for part in _parts(name)}
        missing, unknown = expected.keys() - self._tensors, self._tensors.keys() - expected
        if missing or unknown:
            what = f"lacks {min(missing)}" if missing else f"also has {min(unknown)}"
            raise LoadError(
                f"the tensors in {path} are not those of Gemma 3: it {what}", _SUPPORTED
            )
        for name, shape in self.shapes.items():
            parts = [self._tensors[part].shape.tolist() for part in _parts(name)]  # fastest first
            joined = (*parts[0][:-1], sum(part[-1] for part in parts))
            stored = joined if name != "embedding" else joined[::-1]
            if any(part[:-1] != parts[0][:-1] for part in parts) or stored != shape:
                raise LoadError(
                    f"{name} of {path} must have shape {shape} by the file's metadata, "
                    f"its tensors make {stored}",
                    _DAMAGED,
                )


def _open(path: Path) -> "GGUFReader":
    from gguf import GGUFReader

    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadError(
            f"the GGUF file {path} cannot be read ({error.strerror})", "check the path"
        ) from error
    if magic != b"GGUF":
        raise LoadError(f"{path} is not a GGUF file (it starts with {magic!r})", _SUPPORTED)
    try:
        return GGUFReader(path)
    # The reader checks little: what it trips over depends on where the file ends.
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise LoadError(f"{path} is cut short or damaged ({error})", _DAMAGED) from error


def _floats(tensor: "ReaderTensor", rows: slice = slice(None)) -> np.ndarray:
    """Rows of a stored tensor as float32."""
    from gguf.quants import dequantize

    try:
        return dequantize(tensor.data[rows], tensor.tensor_type)
    except NotImplementedError as error:
        raise LoadError(
            f"{tensor.name} is stored as {tensor.tensor_type.name}, which the gguf package cannot "
            "convert",
            "use a file with another quantization",
        ) from error


def _gemma3_config(path: Path, metadata: Mapping[str, Any]) -> DecoderConfig:
    """The config of a Gemma 3 file, with what its metadata leaves out."""
    architecture = metadata.get("general.architecture")
    if architecture != "gemma3":
        raise LoadError(f"{path} is of architecture {architecture!r}, not 'gemma3'", _SUPPORTED)

    def entry(key: str, kind: type = int) -> Any:
        value = metadata.get(key)
        if not isinstance(value, kind):
            what = "none" if value is None else type(value).__name__
            raise LoadError(
                f"the metadata of {path} must have {key} ({kind.__name__}), it has {what}", _DAMAGED
            )
        return value

    num_layers = entry("gemma3.block_count")
    hidden_size = entry("gemma3.embedding_length")
    head_dim = entry("gemma3.attention.key_length")
    neutral = _NEUTRAL | {"attention.value_length": head_dim, "rope.dimension_count": head_dim}
    for key, value in neutral.items():
        given = metadata.get(f"gemma3.{key}", value)
        if given != value:
            raise LoadError(f"{path} has {key} {given!r}, supported is {value!r}", _SUPPORTED)
    return DecoderConfig(
        vocab_size=len(entry("tokenizer.ggml.tokens", list)),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=entry("gemma3.attention.head_count"),
        num_kv_heads=entry("gemma3.attention.head_count_kv"),
        head_dim=head_dim,
        mlp_size=entry("gemma3.feed_forward_length"),
        context_length=entry("gemma3.context_length"),
        norm_eps=entry("gemma3.attention.layer_norm_rms_epsilon", float),
        query_scale=head_dim**-0.5,
        embed_scale=math.sqrt(hidden_size),
        rope_base=entry("gemma3.rope.freq_base", float),
        local_rope_base=metadata.get("gemma3.rope.freq_base_swa", 1e4),
        sliding_window=entry("gemma3.attention.sliding_window"),
        global_layers=tuple(range(5, num_layers, 6)),  # five local layers, then a global one
    )


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by name."""
    hidden, heads, kv_heads = config.hidden_size, config.num_heads, config.num_kv_heads
    layer = {
        "attention_norm": (hidden,),
        "qkv": (hidden, (heads + 2 * kv_heads) * config.head_dim),
        "query_norm": (config.head_dim,),
        "key_norm": (config.head_dim,),
        "out": (heads * config.head_dim, hidden),
        "post_attention_norm": (hidden,),
        "mlp_norm": (hidden,),
        "gate_up": (hidden, 2 * config.mlp_size),
        "down": (config.mlp_size, hidden),
        "post_mlp_norm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes | {"final_norm": (hidden,)}


def _parts(name: str) -> tuple[str, ...]:
    """The tensors of the file that make one of our parameters."""
    if not name.startswith("layers."):
        return _MODEL[name]
    _, layer, kind = name.split(".")
    return tuple(f"blk.{layer}.{part}" for part in _LAYER[kind])
