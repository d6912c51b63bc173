"""Losses against their formulas in float64, their gradients, and what is kept for those."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from speculax import theory
from speculax.training import losses

RNG = np.random.default_rng(0)
P_LOGITS, Q_LOGITS = 2 * RNG.normal(size=(2, 3, 5, 7))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


P, Q = softmax(P_LOGITS), softmax(Q_LOGITS)
OVERLAP = np.minimum(P, Q).sum(axis=-1)
FORWARD = (P * np.log(P / Q)).sum(axis=-1)
WEIGHT = np.exp(-3 * OVERLAP)
EXPECTED = {
    "forward_kl": FORWARD,
    "reverse_kl": (Q * np.log(Q / P)).sum(axis=-1),
    "acceptance": OVERLAP,
    "total_variation": np.abs(P - Q).sum(axis=-1) / 2,
    "lk": -np.log(OVERLAP),
    "lk_hybrid": WEIGHT * FORWARD + (1 - WEIGHT) * (1 - OVERLAP),
}
EVERY = pytest.mark.parametrize("name", EXPECTED)


@EVERY
def test_values(name):
    np.testing.assert_allclose(getattr(losses, name)(P_LOGITS, Q_LOGITS), EXPECTED[name], rtol=2e-5)


@EVERY
def test_shifted_logits_are_the_same_laws(name):
    shifted = getattr(losses, name)(P_LOGITS + 3, Q_LOGITS - 7)
    np.testing.assert_allclose(shifted, EXPECTED[name], rtol=2e-5)


@pytest.mark.parametrize(
    "name", sorted(set(EXPECTED) - {"lk_hybrid"})
)  # which has a test of its own
def test_gradients_in_double_precision(name):
    with jax.enable_x64(True):
        loss = getattr(losses, name)
        check_grads(lambda q: loss(P_LOGITS, q), (jnp.asarray(Q_LOGITS),), 1, modes=["rev"])


def test_the_gradient_of_the_hybrid_is_that_of_its_parts():
    with jax.enable_x64(True):
        q = jnp.asarray(Q_LOGITS)

        def parts(q):
            kl, tv = losses.forward_kl(P_LOGITS, q), losses.total_variation(P_LOGITS, q)
            return jnp.sum(WEIGHT * kl + (1 - WEIGHT) * tv)

        given = jax.grad(lambda q: jnp.sum(losses.lk_hybrid(P_LOGITS, q)))(q)
        np.testing.assert_allclose(given, jax.grad(parts)(q), rtol=1e-10)


@EVERY
def test_the_target_gets_no_gradient(name):
    gradient = jax.grad(lambda p: jnp.sum(getattr(losses, name)(p, Q_LOGITS)))(
        jnp.asarray(P_LOGITS, jnp.float32)
    )
    assert not np.asarray(gradient).any()


@EVERY
def test_equal_laws_are_the_best(name):
    value = np.asarray(getattr(losses, name)(P_LOGITS, P_LOGITS))
    np.testing.assert_allclose(value, 1.0 if name == "acceptance" else 0.0, atol=1e-6)


@EVERY
def test_no_softmax_is_kept_for_the_gradient(name):
    """Of what is as large as the logits, only they are."""
    p, q = jnp.asarray(P_LOGITS, jnp.float32), jnp.asarray(Q_LOGITS, jnp.float32)
    _, pull_back = jax.vjp(lambda q: getattr(losses, name)(p, q), q)
    large = [leaf for leaf in jax.tree.leaves(pull_back) if jnp.size(leaf) >= q.size]
    for leaf in large:
        assert any(leaf.shape == x.shape and (leaf == x).all() for x in (p, q))


@pytest.mark.parametrize("rule", ["token", "block"])
def test_block_efficiency_keeps_no_pieces_of_the_logits(rule):
    rng = np.random.default_rng(3)
    p, q = jnp.asarray(rng.normal(size=(2, 6, 50)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 50, 6))
    _, pull_back = jax.vjp(
        lambda q: losses.block_efficiency(p, q, tokens, draft_length=3, rule=rule), q
    )
    large = [leaf for leaf in jax.tree.leaves(pull_back) if jnp.size(leaf) >= 4 * 50]
    assert large
    for leaf in large:
        assert any(leaf.shape == x.shape and (leaf == x).all() for x in (p, q))


@pytest.mark.parametrize("name", ["acceptance", "total_variation"])
def test_laws_without_a_token_in_common_have_no_gradient(name):
    """And not NaN: one such position would end a training."""
    p, q = jnp.array([0.0, 0.0, -jnp.inf, -jnp.inf]), jnp.array([-jnp.inf, -jnp.inf, 0.0, 0.0])
    value, gradient = jax.value_and_grad(getattr(losses, name), argnums=1)(p, q)
    assert value == (0 if name == "acceptance" else 1)
    np.testing.assert_array_equal(gradient, np.zeros(4))
    tokens = jnp.zeros(3, jnp.int32)
    for rule in ("token", "block"):
        loss = partial(losses.block_efficiency, tokens=tokens, draft_length=2, rule=rule)
        gradient = jax.grad(lambda q, loss=loss: loss(jnp.tile(p, (3, 1)), q).sum())(
            jnp.tile(q, (3, 1))
        )
        assert jnp.isfinite(gradient).all()


def test_tokens_that_the_target_rules_out():
    p = jnp.array([0.0, 1.0, -jnp.inf])
    q = jnp.array([0.5, 0.2, 0.1])
    for name in ("forward_kl", "acceptance", "total_variation", "lk", "lk_hybrid"):
        value, gradient = jax.value_and_grad(getattr(losses, name), argnums=1)(p, q)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


# --- Block efficiency, for laws that depend on the text


V, G = 3, 3
TEXTS = list(itertools.product(range(V), repeat=G))


def tables(seed):
    """Logits for each beginning of a text of G tokens, in the order of `itertools.product`."""
    rng = np.random.default_rng(seed)
    return [1.5 * rng.normal(size=(V**i, V)) for i in range(G)]


def along(tables, text):
    """The logits (G, V) that a text meets."""
    rows, number = [], 0
    for table, token in zip(tables, text, strict=True):
        rows.append(table[number])
        number = number * V + token
    return jnp.stack(rows)


def probability(tables, text):
    probs = jax.nn.softmax(along(tables, text))
    return jnp.prod(probs[jnp.arange(G), jnp.array(text)])


def exact(p_tables, q_tables, rule):
    """1 - E[accepted] / G, by enumerating drafts; differentiable."""
    total = 0.0
    for text in TEXTS:
        p, q = (
            jax.nn.softmax(along(tables, text))[jnp.arange(G), jnp.array(text)]
            for tables in (p_tables, q_tables)
        )
        kept, accepted = 1.0, 0.0
        for ratio in p / q:
            kept = kept * jnp.minimum(1, ratio) if rule == "token" else jnp.minimum(1, kept * ratio)
            accepted += kept
        total += probability(q_tables, text) * accepted
    return 1 - total / G


def from_texts(p_tables, q_tables, rule):
    """The mean of the loss over texts of the target."""
    total = 0.0
    for text in TEXTS:
        loss = losses.block_efficiency(
            along(p_tables, text),
            along(q_tables, text),
            jnp.array(text),
            draft_length=G,
            rule=rule,
        )
        total += probability(p_tables, text) * loss[0]
    return total


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_mean_over_texts_of_the_target_is_that_over_drafts(rule):
    """So is the gradient."""
    with jax.enable_x64(True):
        p, q = (jax.tree.map(jnp.asarray, tables(seed)) for seed in (1, 2))
        expected, expected_gradient = jax.value_and_grad(exact, 1)(p, q, rule)
        given, gradient = jax.value_and_grad(from_texts, 1)(p, q, rule)
        np.testing.assert_allclose(given, expected, rtol=1e-9)
        for one, other in zip(gradient, expected_gradient, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9)
        # And both are what the theory says.
        formula = getattr(theory, f"mean_accepted_{rule}")
        accepted = 0.0
        for text in TEXTS:
            places = jnp.arange(G), jnp.array(text)
            ratios = [jax.nn.softmax(along(tables, text))[places] for tables in (p, q)]
            accepted += float(probability(q, text)) * formula(np.asarray(ratios[0] / ratios[1]))
        np.testing.assert_allclose(float(expected), 1 - accepted / G, rtol=1e-9)


def test_every_start_of_a_draft_has_its_loss():
    tokens = RNG.integers(0, 7, size=(3, 5))
    for rule in ("token", "block"):
        value = losses.block_efficiency(P_LOGITS, Q_LOGITS, tokens, draft_length=2, rule=rule)
        assert value.shape == (3, 4)
        for start in range(4):
            one = (x[:, start : start + 2] for x in (P_LOGITS, Q_LOGITS, tokens))
            alone = losses.block_efficiency(*one, draft_length=2, rule=rule)
            np.testing.assert_allclose(alone[:, 0], value[:, start], rtol=1e-5)


def test_a_draft_of_one_token_loses_the_total_variation():
    tokens = RNG.integers(0, 7, size=(3, 5))
    for rule in ("token", "block"):
        value = losses.block_efficiency(P_LOGITS, Q_LOGITS, tokens, draft_length=1, rule=rule)
        np.testing.assert_allclose(value, EXPECTED["total_variation"], rtol=1e-5)


def test_bad_arguments_are_named():
    tokens = np.zeros((3, 5), int)
    for length in (0, 6):
        with pytest.raises(ValueError, match="draft_length must be from 1 to the 5 positions"):
            losses.block_efficiency(P_LOGITS, Q_LOGITS, tokens, draft_length=length)
    with pytest.raises(ValueError, match="rule must be 'token' or 'block', got 'greedy'"):
        losses.block_efficiency(P_LOGITS, Q_LOGITS, tokens, draft_length=2, rule="greedy")
