"""A tiny Gemma 3 in a GGUF file, made up on the spot."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, LAYERS = 32, 2, 1, 32, 64, 7

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
VOCABULARY = [
    *((token, CONTROL) for token in ("<pad>", "<eos>", "<bos>", "<unk>", "<turn>")),
    *((token, USER_DEFINED) for token in ("\n", "\n\n", "  ", "   ", "<h1>")),
    *((f"<0x{byte:02X}>", BYTE) for byte in range(256)),
    *((token, NORMAL) for token in ("th", "▁t", "the", "▁the", "he", "▁", *"abcdefghit", "日")),
]


class Tiny(NamedTuple):
    """A written file and what is in it, matrices as the file has them: (out, in)."""

    path: Path
    tensors: dict[str, np.ndarray]


@pytest.fixture
def make_gguf(tmp_path):
    """Write a GGUF file; every detail that a test wants to be wrong can be."""
    gguf = pytest.importorskip("gguf", reason="needs the `models` extra")

    def make(
        name="tiny.gguf",
        *,
        architecture="gemma3",
        quantization="F32",
        seed=0,
        metadata=None,
        tensors=None,
        vocabulary=VOCABULARY,
        tokenizer="llama",
    ):
        rng = np.random.default_rng(seed)
        shapes = {"token_embd": (len(VOCABULARY), HIDDEN), "output_norm": (HIDDEN,)}
        for layer in range(LAYERS):
            shapes |= {
                f"blk.{layer}.{part}": shape
                for part, shape in {
                    "attn_norm": (HIDDEN,),
                    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
                    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
                    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
                    "attn_q_norm": (HEAD_DIM,),
                    "attn_k_norm": (HEAD_DIM,),
                    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
                    "post_attention_norm": (HIDDEN,),
                    "ffn_norm": (HIDDEN,),
                    "ffn_gate": (MLP, HIDDEN),
                    "ffn_up": (MLP, HIDDEN),
                    "ffn_down": (HIDDEN, MLP),
                    "post_ffw_norm": (HIDDEN,),
                }.items()
            }
        values = {key: rng.standard_normal(shape, np.float32) for key, shape in shapes.items()}
        values |= tensors or {}  # None leaves one out
        values = {key: value for key, value in values.items() if value is not None}

        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in {
            "context_length": 64,
            "embedding_length": HIDDEN,
            "block_count": LAYERS,
            "feed_forward_length": MLP,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM,
            "attention.sliding_window": 8,
        }.items():
            writer.add_uint32(f"{architecture}.{key}", value)
        writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-6)
        writer.add_float32(f"{architecture}.rope.freq_base", 1e6)
        for key, value in (metadata or {}).items():
            add = writer.add_string if isinstance(value, str) else writer.add_float32
            add(f"{architecture}.{key}", value)
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list([token for token, _ in vocabulary])
        writer.add_token_scores([0.0] * len(vocabulary))
        writer.add_token_types([kind for _, kind in vocabulary])
        writer.add_pad_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_bos_token_id(2)
        writer.add_unk_token_id(3)
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(False)
        for key, value in values.items():
            kind = gguf.GGMLQuantizationType[quantization if value.ndim == 2 else "F32"]
            stored = gguf.quants.quantize(value, kind)
            values[key] = gguf.quants.dequantize(stored, kind)
            writer.add_tensor(f"{key}.weight", stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return Tiny(path, values)

    return make


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty model cache."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("SPECULAX_CACHE", str(directory))
    return directory
