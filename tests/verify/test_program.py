"""What the compiler makes of the rules on this machine: memory, and no word with the host."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest

import speculax as sx
from tests.programs import (
    ALL,
    CUT,
    RULES,
    SUBTRACTING,
    Made,
    Sizes,
    by_logits,
    compiled,
    program,
)

SIZES = Sizes(batch=8, drafts=4, vocab=32_000)
ROW = 4 * SIZES.vocab  # bytes of one row in float32
CORES = 2
SMALL = 64 * 1024
LIMIT = 2 * ROW * CORES + SMALL

BARE = {
    "float32": Made(),
    "bfloat16": Made(dtype=jnp.bfloat16),
    "float16": Made(dtype=jnp.float16),
}
LAWS = BARE | {
    "point masses": Made(dense=False),
    "logits": by_logits(),
    "tempered": by_logits("temperature"),
    "cut": by_logits(*CUT),
    "masked": by_logits("mask", "bias"),
    "all": by_logits(*ALL, order="joint"),
    "narrow logits": by_logits(dtype=jnp.bfloat16),
    "narrow cut": by_logits(*CUT, dtype=jnp.float16),
    "cut probabilities": Made(sx.law_from_probs, settings=CUT),
}
QUICK = {
    "token": ("float32", "bfloat16", "float16", "point masses", "all"),
    "block": ("masked",),
    "greedy": ("float16",),
    "sampled": ("narrow cut",),
    "typical": ("tempered",),
    "thresholds": ("bfloat16",),
    "top-k": ("cut",),
    "synthetic": ("bfloat16",),
    "coupled": ("narrow logits",),
    "ragged token": ("masked",),
}
CASES = [
    pytest.param(name, law, marks=() if law in QUICK.get(name, ()) else pytest.mark.slow)
    for name in RULES
    for law in LAWS
    if name in SUBTRACTING or law != "point masses"
]


@cache
def compiled_rule(name, law):
    return compiled(*program(name, SIZES, LAWS[law]))


def temporary_bytes(program):
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(("name", "law"), CASES)
def test_memory(name, law):
    """Two rows of float32 a core, never a batch of them; rows are not copied to be read."""
    assert temporary_bytes(compiled_rule(name, law)) <= LIMIT


def test_memory_of_sparse_drafts():
    """Nothing of the size of the vocabulary is made for them."""
    shape = (SIZES.batch, SIZES.drafts, 64)

    def verify(ids, probs, tokens, target, accept, sample):
        draft = sx.law_from_probs(probs, ids=tokens)
        return sx.verify_token(ids, draft, target, accept, sample)

    ids, _, target, accept, sample, _ = program("token", SIZES)[1]
    probs = jax.ShapeDtypeStruct(shape, jnp.float32)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    used = temporary_bytes(compiled(verify, (ids, probs, tokens, target, accept, sample)))
    assert used <= 2 * ROW + SMALL


def test_memory_does_not_grow_with_the_draft_length():
    """One pair of rows is read at a time, whatever G is."""
    long = compiled(*program("token", SIZES._replace(drafts=16)))
    assert temporary_bytes(long) <= temporary_bytes(compiled_rule("token", "float32")) + SMALL


def written_out(ids, draft, target, accept, sample, _):
    """What everybody writes first: the residuals of all positions, and a running sum of each."""
    residual = jnp.maximum(target[:, :-1] - draft, 0)
    cumulative = jnp.cumsum(jnp.concatenate([residual, target[:, -1:]], axis=1), axis=2)
    return jnp.argmax(cumulative > sample[:, None, None] * cumulative[:, :, -1:], axis=2)


def converted(ids, draft, target, accept, sample, _):
    """Narrow rows widened before they are read."""
    target, draft = (law.astype(jnp.float32) for law in (target, draft))
    return sx.verify_token(ids, draft, target, accept, sample)


@pytest.mark.parametrize(("wasteful", "law"), [(written_out, "float32"), (converted, "bfloat16")])
def test_memory_limit_refuses_what_everybody_writes_first(wasteful, law):
    _, types = program("token", SIZES, LAWS[law])
    assert temporary_bytes(compiled(wasteful, types)) > LIMIT


@pytest.mark.parametrize(("name", "law"), [("token", "float32"), ("block", "logits")])
def test_memory_with_rows_side_by_side(name, law, monkeypatch):
    """The form for accelerators, compiled here: a few rows a batch row, whatever G is."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    # A vocabulary of this test alone, as what was traced in another form would be found again.
    sizes = Sizes(batch=8, drafts=16, vocab=8_200)
    used = temporary_bytes(compiled(*program(name, sizes, LAWS[law])))
    assert used <= 7 * sizes.batch * 4 * sizes.vocab + SMALL


# --- No host

HOST = ["callback", "infeed", "outfeed", "send(", "recv("]


def host_traffic(program):
    text = program.as_text().lower()
    return [word for word in HOST if word in text]


@pytest.mark.parametrize(("name", "law"), [(name, laws[-1]) for name, laws in QUICK.items()])
def test_no_host_round_trip(name, law):
    assert not host_traffic(compiled_rule(name, law))


def test_host_traffic_is_seen():
    def asks_the_host(ids, *rest):
        return jax.pure_callback(lambda x: x, ids, ids)

    assert host_traffic(compiled(asks_the_host, program("token", SIZES)[1])) == ["callback"]


@pytest.mark.parametrize(
    ("name", "law"),
    [*((name, "float32") for name in RULES), ("token", "all"), ("coupled", "all")],
)
def test_jaxpr_has_no_random_numbers_and_no_side_effects(name, law):
    function, types = program(name, SIZES, LAWS[law])
    jaxpr = jax.make_jaxpr(function)(*types)
    assert not jaxpr.effects
    assert "random" not in str(jaxpr)


def test_memory_of_a_smaller_draft_vocabulary():
    (batch, drafts, _), size = SIZES, SIZES.vocab // 2

    def verify(ids, probs, tokens, target, accept, sample):
        return sx.verify_token(ids, sx.law_from_probs(probs, ids=tokens), target, accept, sample)

    ids, _, target, accept, sample, _ = program("token", SIZES)[1]
    probs = jax.ShapeDtypeStruct((batch, drafts, size), jnp.float32)
    tokens = jax.ShapeDtypeStruct((size,), jnp.int32)
    assert temporary_bytes(compiled(verify, (ids, probs, tokens, target, accept, sample))) <= LIMIT
