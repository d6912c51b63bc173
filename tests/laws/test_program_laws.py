"""What the compiler makes of samplers and laws: memory, loops, and no word with the host."""

import jax
import jax.numpy as jnp
import pytest

import speculax as sx
from tests.programs import CUT, Made, Module, Sizes, by_logits, compiled

BATCH = 13  # a prime that divides no other size
ACCELERATORS = ("tpu", "cuda", "rocm")
ROWS, VOCAB = 32, 32_000
CORES = 2
SMALL = 64 * 1024


def key(seed):
    return jax.random.wrap_key_data(seed, impl="threefry2x32")


FUNCTIONS = {
    "sample": lambda law, ids, uniforms, seed: sx.sample(law, uniforms),
    "sample by key": lambda law, ids, uniforms, seed: sx.sample(law, key=key(seed)),
    "coupled draw": lambda law, ids, uniforms, seed: sx.coupled_draw(law, seed[0], ids),
    "log-probabilities": lambda law, ids, uniforms, seed: sx.log_probs(law, ids),
    "normalise": lambda law, ids, uniforms, seed: law.normalize().normalizers,
}
LAWS = {
    "probabilities": Made(sx.law_from_probs),
    "logits": by_logits(dtype=jnp.bfloat16),
    "cut": by_logits(*CUT, dtype=jnp.bfloat16),
    "masked": by_logits("mask", "bias"),
}


def program(name, law, rows, vocab):
    made = LAWS[law]

    def function(table, ids, uniforms, seed, values):
        return FUNCTIONS[name](made.law(table, values), ids, uniforms, seed)

    return function, (
        jax.ShapeDtypeStruct((rows, vocab), made.dtype),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.float32),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        made.types(Sizes(rows, 0, vocab)),
    )


@pytest.mark.parametrize("law", ["probabilities", "cut"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accelerators_get_no_loop_over_rows(name, law):
    assert not Module(*program(name, law, BATCH, 4500), ACCELERATORS).loops_over_rows(BATCH)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_on_cpu_rows_go_one_after_another(name):
    assert Module(*program(name, "logits", BATCH, 4500), ("cpu",)).loops_over_rows(BATCH)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        *(("sample", law) for law in LAWS),
        ("sample by key", "masked"),
        ("coupled draw", "logits"),
        ("log-probabilities", "masked"),
        ("normalise", "cut"),
    ],
)
def test_memory(name, law):
    """Two rows of float32 a core, for whatever number of rows; and no host is asked."""
    done = compiled(*program(name, law, ROWS, VOCAB))
    assert done.memory_analysis().temp_size_in_bytes <= 2 * 4 * VOCAB * CORES + SMALL
    assert "callback" not in done.as_text()


def test_memory_limit_refuses_a_softmax():
    function = lambda table, *_: jnp.argmax(jax.nn.softmax(table.astype(jnp.float32)), axis=1)
    done = compiled(function, program("sample", "logits", ROWS, VOCAB)[1])
    assert done.memory_analysis().temp_size_in_bytes > 2 * 4 * VOCAB * CORES + SMALL
