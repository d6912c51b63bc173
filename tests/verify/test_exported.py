"""Programs for accelerators: no loop from row to row of a batch, and nothing large in float32.

They are exported and read, not run. What `tests.programs` says about loops rests on a batch size
that is a prime and divides no other size: not the vocabulary, its blocks or what is left of them.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from tests.programs import (
    ALL,
    CUT,
    RULES,
    Made,
    Module,
    Sizes,
    by_logits,
    program,
)
from tests.slow import slow_but

BATCH = 13
SIZES = Sizes(BATCH, drafts=3, vocab=4500)
ACCELERATORS = ("tpu", "cuda", "rocm")
LAWS = {
    "probabilities": Made(),
    "cut logits": by_logits(*CUT, dtype=jnp.bfloat16),
    "logits": by_logits(dtype=jnp.bfloat16),
    "point masses": Made(dense=False),
}
CUTTING = ("token", "block", "greedy", "sampled", "coupled", "typical", "top-k", "ragged token")
CASES = [(name, "probabilities") for name in RULES]
CASES += [(name, "cut logits") for name in CUTTING]
CASES += [(name, law) for name in ("token", "block") for law in ("logits", "point masses")]


@cache
def exported(name, law, platforms=ACCELERATORS):
    return Module(*program(name, SIZES, LAWS[law]), platforms)


# --- Loops


@pytest.mark.parametrize(("name", "law"), CASES)
def test_accelerators_get_no_loop_over_rows(name, law):
    assert not exported(name, law).loops_over_rows(BATCH)


@pytest.mark.parametrize("platform", ACCELERATORS)
@pytest.mark.parametrize("law", ["probabilities", "point masses"])
def test_token_verification_of_probabilities_has_no_loops_at_all(law, platform):
    assert not exported("token", law, (platform,)).loops()


@pytest.mark.parametrize("name", RULES)
def test_on_cpu_rows_go_one_after_another(name):
    assert exported(name, "probabilities", ("cpu",)).loops_over_rows(BATCH)


def mapped(ids, draft, *rest):
    """Over the rows."""
    return jax.lax.map(jnp.sum, draft)


def mapped_by_index(ids, draft, *rest):
    """Over the numbers of the rows, which are cut from the whole in a function of its own."""
    rows = jnp.arange(BATCH, dtype=jnp.int32)
    return jax.lax.map(lambda b: jax.jit(jnp.sum)(draft[b]), rows)


def until_one_fails(ids, draft, *rest):
    """How long it goes on depends on what is in the rows."""
    return jax.lax.while_loop(lambda b: jnp.sum(draft[b]) < 1, lambda b: b + 1, jnp.int32(0))


def flat_and_one_by_one(ids, draft, *rest):
    """Over all rows of all positions."""
    rows = draft.reshape(-1, draft.shape[2])
    return jax.lax.fori_loop(
        0, len(rows), lambda row, total: total + jnp.sum(rows[row]), jnp.float32(0)
    )


def written_one_by_one(ids, draft, *rest):
    """Nothing is read, but the rows are written one after another."""
    blank = jnp.zeros(BATCH)
    end = BATCH + jnp.sum(ids) * 0
    return jax.lax.while_loop(
        lambda carry: carry[0] < end,
        lambda carry: (carry[0] + 1, carry[1].at[carry[0]].set(1.0)),
        (jnp.int32(0), blank),
    )


@pytest.mark.parametrize(
    "loop", [mapped, mapped_by_index, until_one_fails, flat_and_one_by_one, written_one_by_one]
)
def test_loops_over_rows_are_seen(loop):
    _, types = program("token", SIZES)
    module = Module(loop, types[:-1], ACCELERATORS)
    assert module.loops_over_rows(BATCH)


def over_positions(ids, draft, *rest):
    return jax.lax.scan(lambda total, law: (total + law, None), draft[:, 0], draft.swapaxes(0, 1))


def halving(ids, draft, target, accept, *rest):
    """Each row at its own pace, all in hand at each turn."""

    def halve(uniform):
        return jax.lax.while_loop(lambda x: x > 0.1, lambda x: x * 0.5, uniform)

    return jax.vmap(halve)(accept[:, 0])


@pytest.mark.parametrize("loop", [over_positions, halving])
def test_other_loops_are_told_apart(loop):
    module = Module(loop, program("token", SIZES)[1][:-1], ACCELERATORS)
    assert module.loops()
    assert not module.loops_over_rows(BATCH)


# --- Size


@pytest.mark.parametrize(
    ("name", "law"), [case for case in CASES if LAWS[case[1]].dtype == jnp.bfloat16]
)
def test_narrow_logits_are_never_written_out_in_float32(name, law):
    """At most one row of each request is."""
    assert exported(name, law).largest("f32", "f64") <= BATCH * SIZES.vocab


def test_what_is_written_out_is_seen():
    def softmax_first(ids, draft, target, *rest):
        target = jax.nn.softmax(target.astype(jnp.float32), axis=2)
        return sx.verify_token(ids, None, target, *rest)

    types = program("token", SIZES, LAWS["logits"])[1][:-1]
    module = Module(softmax_first, types, ACCELERATORS)
    assert module.largest("f32") >= BATCH * (SIZES.drafts + 1) * SIZES.vocab
    assert module.largest("f64") == 0


# --- Servers keep one program


@pytest.mark.parametrize("name", ["token", "block", "greedy"])
def test_one_program_for_several_platforms(name):
    """With a symbolic batch size too, as a server would keep it."""
    batch = jax.export.symbolic_shape("B")[0]
    function, types = program(name, Sizes(batch, 1, 600))
    exported = jax.export.export(jax.jit(function), platforms=["cpu", "tpu", "cuda"])(*types)
    law = np.zeros((3, 2, 600), np.float32)
    law[:, :, 599] = 1
    ids = np.full((3, 1), 599, np.int32)
    uniforms = np.full((3, 1), 0.5, np.float32)
    out = exported.call(ids, law[:, :1], law, uniforms, uniforms[:, 0], {})
    assert np.asarray(out["tokens"]).tolist() == [[599, 599]] * 3


@pytest.mark.parametrize("name", ["token", "coupled", "ragged sampled"])
def test_one_program_for_any_batch_of_logits(name):
    batch = jax.export.symbolic_shape("B")[0]
    function, types = program(name, Sizes(batch, 2, 600), by_logits(*CUT, "mask"))
    exported = jax.export.export(jax.jit(function), platforms=["cpu", "tpu"])(*types)
    assert [out.shape for out in exported.out_avals] == [(batch,), (batch, 3)]


# --- Nothing is repeated for each batch row

KINDS = ("f64", "f32", "bf16", "f16", "i64", "i32", "ui32", "i16", "ui16", "i1")


@pytest.mark.parametrize(("name", "law"), CASES)
def test_no_array_is_larger_than_the_largest_argument(name, law):
    """A table that is repeated for each batch row would be."""
    _, types = program(name, SIZES, LAWS[law])
    largest = max(math.prod(leaf.shape) for leaf in jax.tree.leaves(types))
    assert exported(name, law).largest(*KINDS) <= largest


@pytest.mark.parametrize("name", ["token", "block", "typical"])
def test_a_bias_is_not_repeated(name):
    made = by_logits("bias", dtype=jnp.bfloat16)
    assert Module(*program(name, SIZES, made), ACCELERATORS).largest("f32") <= BATCH * SIZES.vocab


@pytest.mark.parametrize("name", slow_but(("token", "coupled"), RULES))
def test_double_precision_elsewhere_changes_no_type(name):
    made = by_logits(*ALL)
    with jax.enable_x64(True):
        module = Module(*program(name, Sizes(BATCH, 2, 600), made), ("cpu", "tpu"))
    assert module.largest("f64") <= 1  # numbers in the text
