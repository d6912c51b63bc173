"""Log-probabilities before and after cut-offs, and the mass kept, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.sampler import oracle
from speculax.conformance.sampler.oracle import Settings
from speculax.log_probs import top_log_probs

MAKE = {"logits": sx.law_from_logits, "probs": sx.law_from_probs}
LOG_PROBS = jax.jit(sx.log_probs)
# Logarithms in float32: a few roundings of numbers up to 100, and those of a sum.
TOLERANCE = 4e-5


def wanted(table, many, tokens, order, kind):
    """(before, after, kept mass, whether float32 decides as float64 does) of each row."""
    want = np.full((len(tokens), 4), np.nan)
    for r, token in enumerate(tokens):
        law = oracle.row_law(table[r], many[r], order, kind == "logits")
        if law is None:
            want[r, 3] = 1
            continue
        with np.errstate(divide="ignore"):
            inside = 0 <= token < len(law.logs)
            before = np.log(law.before[token]) if inside else -np.inf
            after = np.log(law.after[token]) if inside else -np.inf
        want[r] = before, after, law.before[law.must].sum(), (law.must == law.may).all()
    return want


def rows(kind, size, count, seed):
    rng = np.random.default_rng([seed, size])
    table = 3 * rng.standard_normal((count, size))
    table[rng.random((count, size)) < 0.1] = -np.inf
    table[:, 0] = 1.0
    if kind == "probs":
        table = np.exp(table)
        table[::2] = oracle.normalized(table[::2])
    many = [
        Settings(
            rng.choice([0, 0.5, 1, 2]),
            rng.choice([0, 0, 1, 7, size]),
            rng.choice([1, 1, 0.9, 0.4]),
            rng.choice([0, 0, 0.05]),
            rng.random(size) < 0.8,
            np.zeros(size, np.float32),
        )
        for _ in range(count)
    ]
    for s in many:
        s.mask[0] = True
    tokens = rng.integers(0, size, count)
    likeliest = np.where([s.mask for s in many], table, -np.inf).argmax(-1)
    tokens[::3] = likeliest[::3]
    return table.astype(np.float32), many, tokens


def make(kind, table, many, order="sequential"):
    return MAKE[kind](
        table,
        order=order,
        temperature=np.array([s.temperature for s in many], np.float32),
        top_k=np.array([s.top_k for s in many]),
        top_p=np.array([s.top_p for s in many], np.float32),
        min_p=np.array([s.min_p for s in many], np.float32),
        mask=np.stack([s.mask for s in many]),
        bias=np.stack([s.bias for s in many]),
    )


@pytest.mark.parametrize(
    ("kind", "order", "size"),
    [
        ("logits", "sequential", 3),
        ("logits", "joint", 700),
        ("probs", "sequential", 700),
    ],
)
def test_against_float64(kind, order, size):
    count = 48
    table, many, tokens = rows(kind, size, count, 0)
    law = make(kind, table, many, order)
    want = wanted(table, many, tokens, order, kind)
    sure = want[:, 3] == 1
    assert sure.sum() >= 40
    got = LOG_PROBS(law, tokens)
    for x, column in zip(got, want.T, strict=False):
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(np.asarray(x)[sure], column[sure], TOLERANCE, TOLERANCE)
    assert np.isneginf(want[sure, 1]).any()
    assert (np.isfinite(want[:, 0]) & np.isneginf(want[:, 1])).any()  # dropped by cut-offs alone


def test_normalized_laws_have_the_same():
    table, many, tokens = rows("logits", 3, 48, 0)
    law = make("logits", table, many)
    for got, want in zip(LOG_PROBS(law.normalize(), tokens), LOG_PROBS(law, tokens), strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)


def test_dropped_tokens_and_what_is_kept():
    """Worked out by hand; every token of one row."""
    probs = np.tile(np.array([0.5, 0.25, 0.125, 0.125], np.float32), (4, 1))
    tokens = np.arange(4)
    got = sx.log_probs(sx.law_from_probs(probs, top_p=0.7), tokens)
    log2 = np.log(2)
    np.testing.assert_allclose(got.before, [-log2, -2 * log2, -3 * log2, -3 * log2], 1e-6)
    np.testing.assert_allclose(got.after, [np.log(2 / 3), np.log(1 / 3), -np.inf, -np.inf], 1e-6)
    np.testing.assert_allclose(got.kept_mass, [0.75] * 4, 1e-6)
    got = sx.log_probs(sx.law_from_logits(np.log(probs), mask=[True, True, False, True]), tokens)
    want = np.log(np.array([4, 2, 0.5, 1]) / 7)
    want[2] = -np.inf
    np.testing.assert_allclose(got.before, want, 1e-6)
    np.testing.assert_array_equal(got.before, got.after)  # a mask is no cut-off
    np.testing.assert_array_equal(got.kept_mass, np.ones(4))


def test_temperature_counts_before_the_cutoffs():
    law = sx.law_from_logits(np.log(np.array([[0.5, 0.3, 0.2]])), temperature=0.5, top_k=2)
    got = sx.log_probs(law, np.array([1]))
    np.testing.assert_allclose(got.before, np.log([0.09 / 0.38]), 1e-6)
    np.testing.assert_allclose(got.after, np.log([0.09 / 0.34]), 1e-6)
    np.testing.assert_allclose(got.kept_mass, [0.34 / 0.38], 1e-6)


@pytest.mark.parametrize("kind", MAKE)
def test_greedy_rows_are_point_masses(kind):
    table = np.tile(np.array([[0.2, 0.4, 0.4, 0.1]], np.float32), (4, 1))
    law = MAKE[kind](table, temperature=0.0, top_k=3, top_p=0.5)
    got = sx.log_probs(law, np.arange(4))
    for x in (got.before, got.after):
        np.testing.assert_array_equal(x, [-np.inf, 0, -np.inf, -np.inf])
    np.testing.assert_array_equal(got.kept_mass, np.ones(4))


@pytest.mark.parametrize("settings", [{}, {"temperature": [0.7, 0] * 3}, {"top_k": 2}])
@pytest.mark.parametrize("kind", MAKE)
def test_ids_outside_the_vocabulary(kind, settings):
    settings = {name: np.array(value) for name, value in settings.items()}
    law = MAKE[kind](np.full((6, 5), 0.2, np.float32), **settings)
    got = sx.log_probs(law, np.array([-1, 5, 6, -7, 2**31 - 1, -(2**31)], np.int32))
    np.testing.assert_array_equal(got.before, np.full(6, -np.inf))
    np.testing.assert_array_equal(got.after, np.full(6, -np.inf))
    np.testing.assert_allclose(got.kept_mass, np.ones(6), 1e-6)


def test_laws_with_ids():
    """Tokens are those of the target's vocabulary."""
    ids = np.array([[40, 7, -1], [2, 40, 9]])
    probs = np.array([[0.75, 0.25, 0.0], [0.5, 0.3, 0.2]], np.float32)
    tokens = {7: [0.25, 0], 40: [0.75, 0.3], 9: [0, 0.2], 2: [0, 0.5], 0: [0, 0], -1: [0, 0]}
    for law in (
        sx.law_from_probs(probs, ids=ids),
        sx.law_from_logits(jnp.log(jnp.asarray(probs)), ids=ids, top_k=3),
    ):
        for token, want in tokens.items():
            got = sx.log_probs(law, np.full(2, token))
            np.testing.assert_allclose(np.exp(got.after), want, 1e-6)
            np.testing.assert_allclose(np.exp(got.before), want, 1e-6)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_p": 0.9, "min_p": 0.1}])
@pytest.mark.parametrize("kind", MAKE)
def test_rows_without_a_law_are_nan(kind, settings):
    table = np.full((4, 3), 0.3, np.float32)
    table[1, 2], table[2, 0] = np.nan, np.inf
    table[3] = -np.inf if kind == "logits" else 0
    law = MAKE[kind](table, **{name: jnp.full(4, value) for name, value in settings.items()})
    got = sx.log_probs(law, np.array([1, 1, 1, 1]))
    for x in got:
        np.testing.assert_array_equal(np.isnan(x), [False, True, True, True])


def test_probabilities_as_they_are():
    """An array of probabilities will do; rows are taken by their own sum."""
    probs = np.array([[[0.5, 0.25, 0.25], [2, 1, 1]]], np.float32)
    got = sx.log_probs(probs, np.array([[0, 2]]))
    np.testing.assert_allclose(got.after, np.log([[0.5, 0.25]]), 1e-6)
    np.testing.assert_allclose(got.kept_mass, [[1, 1]], 1e-6)


def test_far_tails_have_logarithms():
    """A probability that float32 does not hold still has a logarithm."""
    law = sx.law_from_logits(np.array([[0.0, -300.0], [0.0, -3000.0]], np.float32))
    got = sx.log_probs(law, np.array([1, 1]))
    np.testing.assert_allclose(got.before, [-300, -3000], 1e-6)


def test_wrong_arguments():
    law = sx.law_from_logits(np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match=r"tokens.*float32"):
        sx.log_probs(law, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"tokens.*\(2,\).*\(3,\)"):
        sx.log_probs(law, np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="int32"):
        sx.log_probs(np.ones((2, 3), np.int32), np.zeros(2, np.int32))


@pytest.mark.parametrize("size", [3, 600, 5000])
def test_the_likeliest_tokens_and_their_log_probabilities(size):
    rng = np.random.default_rng(size)
    logits = rng.integers(0, 40, (4, 2, size)).astype(np.float32) / 4  # with ties
    num = min(7, size)
    tokens, logs = jax.jit(top_log_probs, static_argnums=1)(sx.law_from_logits(logits), num)
    order = np.argsort(-logits, axis=-1, kind="stable")[..., :num]
    np.testing.assert_array_equal(tokens, order)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(logs, np.take_along_axis(expected, order, axis=-1), atol=TOLERANCE)
