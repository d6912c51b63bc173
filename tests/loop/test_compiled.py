"""What is compiled, how often, and that the compiled loop asks no host and copies no weights."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.loop import Plan, Requests, decode_chunk, prefill
from speculax.models.config import DecoderConfig
from speculax.models.decoder import Decoder
from speculax.prefill import PIECE
from speculax.rules import RULES
from speculax.settings import RowSettings
from tests import toy
from tests.compilations import counted_compilations
from tests.models.numpy_decoder import random_params

FULL_EFFORT = True  # compile as users do

MEMORY = toy.LongMemory("compiled")
MODEL = toy.model(MEMORY, toy.random_logits(MEMORY))


def run(prompts, model=MODEL, **kwargs):
    kwargs = {"temperature": 1.0, "seed": 0, "max_new_tokens": 40, "eos_ids": (7,)} | kwargs
    return sx.generate(model, prompts, drafter=sx.NGram(3), **kwargs)


@pytest.fixture(scope="module")
def _warm():
    with counted_compilations() as compiled:
        [first, _] = run([[1], [1, 2, 1, 2]])
        assert len(compiled) >= 2
        # Every width, wherever the first texts led.
        run([[0, 1, 2], [0]], model=toy.model(MEMORY, -MODEL.params))
        run([[1], [2]], model=toy.model(MEMORY, 0 * MODEL.params), max_new_tokens=100)
    assert first.stats.compile_seconds > 0


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(
    ("prompts", "kwargs"),
    [
        pytest.param([[3, 4, 5], [6]], {}, id="other prompts"),
        pytest.param([[1] * 100, [2] * 65], {}, id="prompts of more pieces"),
        pytest.param([[1], [2]], {"temperature": [0.3, 1.7]}, id="other temperatures"),
        pytest.param([[1], [2]], {"temperature": [0.0, 0.9]}, id="a greedy row among sampled"),
        pytest.param([[1], [2]], {"seed": [5, 2**32 - 1]}, id="other seeds"),
        pytest.param([[1], [2]], {"seed": None}, id="fresh seeds"),
        pytest.param([[1], [2]], {"max_new_tokens": [3, 99]}, id="other caps"),
        pytest.param([[1], [2]], {"eos_ids": (3,)}, id="another end token"),
        pytest.param(np.array([[1], [2]]), {}, id="an array of prompts"),
    ],
)
def test_a_second_call_compiles_nothing(prompts, kwargs):
    with counted_compilations() as compiled:
        results = run(prompts, **kwargs)
    assert compiled == []
    assert all(result.stats.compile_seconds == 0 for result in results)


@pytest.mark.usefixtures("_warm")
def test_other_weights_of_the_same_shape_compile_nothing():
    with counted_compilations() as compiled:
        run([[1], [2]], model=toy.model(MEMORY, 2 * MODEL.params))
    assert compiled == []


def test_the_count_of_compilations_can_see_one():
    with counted_compilations() as compiled:
        jax.jit(lambda x: x + 1)(jnp.zeros(17))
    assert len(compiled) >= 1


# --- The compiled chunk of a decoder


CONFIG = DecoderConfig(
    vocab_size=2048,
    hidden_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    mlp_size=1024,
    context_length=4096,
    norm_eps=1e-6,
    query_scale=64**-0.5,
    embed_scale=128**0.5,
    rope_base=1e6,
    local_rope_base=1e4,
    sliding_window=8,
    global_layers=(2,),
)
NUM_SLOTS = 2048
NGRAM = sx.NGram(7)


def num_bytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def compile_chunk(width, batch, is_sampled, drafter=NGRAM, has_penalties=False):
    """The chunk, ahead of time and without running anything: (compiled, params, cache)."""
    network = Decoder(CONFIG)
    params = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, random_params(CONFIG)))
    integers = jax.ShapeDtypeStruct((batch,), jnp.int32)
    settings = RowSettings(
        stop_ids=jax.ShapeDtypeStruct((batch, 1), jnp.int32),
        temperature=jax.ShapeDtypeStruct((batch,), jnp.float32) if is_sampled else None,
    )
    if has_penalties:
        penalty = jax.ShapeDtypeStruct((batch,), jnp.float32)
        settings = settings._replace(repetition_penalty=penalty, frequency_penalty=penalty)
    requests = Requests(integers, jax.ShapeDtypeStruct((batch,), jnp.uint32), settings)
    state = jax.eval_shape(
        lambda *args: prefill(*args, num_slots=NUM_SLOTS, network=network),
        params,
        drafter,
        jax.ShapeDtypeStruct((batch, NUM_SLOTS), jnp.int32),
        integers,
        requests,
    )
    lowered = decode_chunk.lower(
        params,
        drafter,
        state,
        requests,
        jax.ShapeDtypeStruct((batch,), bool),
        integers,
        jax.ShapeDtypeStruct((), jnp.int32),
        network=network,
        plan=Plan(RULES["token"], width, width + 1),
    )
    return lowered.compile(), params, state.cache


@pytest.mark.parametrize(
    ("width", "batch", "is_sampled"),
    [
        pytest.param(0, 1, False, id="a single token"),
        pytest.param(7, 1, True, id="a draft"),
        pytest.param(3, 2, True, id="two rows"),
    ],
)
def test_a_chunk_calls_no_host_and_copies_neither_weights_nor_cache(width, batch, is_sampled):
    compiled, params, cache = compile_chunk(width, batch, is_sampled)
    text = compiled.as_text()
    assert "while" in text
    assert not re.search(r"callback|outfeed|infeed|send\(|recv\(", text)
    memory = compiled.memory_analysis()
    # The cache is written in place, not copied.
    assert memory.alias_size_in_bytes >= num_bytes(cache)
    # What a chunk needs besides is less than a copy of any of these would take.
    large = (params["embedding"], params["layers"][0]["gate_up"], cache.layers[0][0])
    assert memory.temp_size_in_bytes < min(map(num_bytes, large))


@pytest.mark.parametrize("is_sampled", [False, True], ids=["greedy", "sampled"])
def test_a_chunk_with_a_draft_model_copies_neither_caches_nor_weights(is_sampled):
    network = Decoder(CONFIG)
    params = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, random_params(CONFIG)))
    drafter = sx.DraftModel(sx.Model(network, params), 3)
    compiled, params, cache = compile_chunk(3, 2, is_sampled, drafter)
    assert not re.search(r"callback|outfeed|infeed|send\(|recv\(", compiled.as_text())
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= 2 * num_bytes(cache)  # the drafter's is as large
    large = (params["embedding"], params["layers"][0]["gate_up"], cache.layers[0][0])
    # What the draft model may have to catch up on needs room for a piece's attention, twice.
    attention = 2 * 4 * 2 * CONFIG.num_heads * PIECE * NUM_SLOTS
    assert memory.temp_size_in_bytes < attention + min(map(num_bytes, large))


@pytest.mark.slow
def test_penalties_need_one_more_copy_of_the_logits_and_counts_of_rows():
    """Not counts for each place of a draft."""
    width, batch = 7, 2
    plain, *_ = compile_chunk(width, batch, True)
    penalized, *_ = compile_chunk(width, batch, True, has_penalties=True)
    temporary = [one.memory_analysis().temp_size_in_bytes for one in (plain, penalized)]
    row = 4 * CONFIG.vocab_size
    assert temporary[1] - temporary[0] < batch * (width + 1) * row + 2 * batch * row


def test_other_weights_of_a_draft_model_compile_nothing():
    def draft(seed):
        weights = toy.model(MEMORY, toy.random_logits(MEMORY, seed=seed))
        return sx.generate(MODEL, [1], drafter=sx.DraftModel(weights, 2), max_new_tokens=8)

    draft(1)
    with counted_compilations() as compiled:
        draft(2)
    assert compiled == []


def test_a_callback_would_be_found():
    def noisy(x):
        jax.debug.callback(lambda _: None, x)
        return x + 1

    assert re.search("callback", jax.jit(noisy).lower(jnp.zeros(3)).compile().as_text())
