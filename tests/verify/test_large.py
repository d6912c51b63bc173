"""Vocabularies of real models against the float64 oracle, and a chi-square test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import speculax as sx

from . import mutants, oracle

TOKEN, GREEDY = jax.jit(sx.verify_token), jax.jit(sx.verify_greedy)

# How far a float32 draw may be off, as a part of the row's mass: 16 roundings of the whole.
ROUNDING = 2.0**-20
# u * draft and target are compared after one rounding.
PRODUCT_ROUNDING = 2.0**-23


def model_rows(seed, vocab, batch=4, drafts=2, spread=3.0):
    """Rows as models give them; the draft a noisy copy of the target, the ids sampled from it."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((batch, drafts + 1, vocab), np.float32)
    noisy = logits[:, :drafts] + rng.standard_normal((batch, drafts, vocab), np.float32)

    def softmax(x):
        weights = np.exp(x - x.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    target, draft = softmax(logits), softmax(noisy)
    below = draft.cumsum(-1) < rng.random((batch, drafts, 1), np.float32)
    ids = np.minimum(below.sum(-1), vocab - 1).astype(np.int32)
    accept = rng.random((batch, drafts), np.float32) * 0.7
    return ids, draft, target, accept, rng.random(batch, np.float32)


def compare(verifier, arguments):
    """(failures, draws that are not the oracle's, draws) of one call."""
    out = verifier(*arguments)
    wrong, inexact, draws = [], 0, 0
    for b in range(len(arguments[0])):
        ids, draft, target, accept, sample = (a[b] for a in arguments)
        got, n = np.asarray(out["tokens"])[b], int(out["num_accepted"][b])
        want_n, weights = oracle.plan(ids, draft, target, accept, number=float)
        at = np.arange(len(ids))
        u, q, p = (x.astype(np.float64) for x in (accept, draft[at, ids], target[at, ids]))
        if np.any(np.abs(u * q - p) <= PRODUCT_ROUNDING * p):
            inexact += 1
            continue
        if n != want_n or got[:n].tolist() != ids[:n].tolist():
            wrong.append(f"row {b}: {n} accepted, should be {want_n}")
            continue
        draws += 1
        y, total = int(got[n]), weights.sum()
        inexact += y != oracle.draw(weights, sample)
        high = weights[: y + 1].sum() / total
        off = max(high - weights[y] / total - sample, sample - high)
        if not weights[y] > 0 or off > ROUNDING:
            wrong.append(f"row {b}: token {y} is off by {off}, weight {weights[y]}")
    return wrong, inexact, draws


@pytest.mark.parametrize("vocab", [32_000, 151_936])
def test_token_agrees_with_the_oracle(vocab):
    """Every token lies within rounding of the exact one, and hardly any is another one."""
    results = [compare(TOKEN, model_rows(seed, vocab)) for seed in range(12)]
    assert not [x for wrong, _, _ in results for x in wrong]
    assert sum(draws for _, _, draws in results) >= 40
    assert sum(inexact for _, inexact, _ in results) <= 2


@pytest.mark.parametrize("vocab", [32_000, 151_936])
def test_flat_rows_stay_within_rounding(vocab):
    """Nearly flat rows: a token's share of the mass is a few float32 roundings wide."""
    results = [compare(TOKEN, model_rows(seed, vocab, spread=0.05)) for seed in range(4)]
    assert not [x for wrong, _, _ in results for x in wrong]


@pytest.mark.parametrize("law", [jnp.bfloat16, jnp.float16], ids=lambda t: t.__name__)
def test_narrow_laws_agree_with_the_oracle(law):
    """Sums are those of the rounded numbers, taken in float32."""
    for seed in range(6):
        ids, draft, target, *uniforms = model_rows(seed, 32_000)
        draft, target = (np.asarray(jnp.asarray(x, law)) for x in (draft, target))
        wrong, inexact, draws = compare(
            lambda ids, draft, target, *rest: TOKEN(
                ids, jnp.asarray(draft, law), jnp.asarray(target, law), *rest
            ),
            (ids, draft.astype(np.float32), target.astype(np.float32), *uniforms),
        )
        assert not wrong
        assert inexact <= 1
        assert draws >= 3


def test_greedy_agrees_with_the_oracle():
    greedy = oracle.batched(oracle.greedy_row, number=float)
    for seed in range(6):
        ids, draft, target, accept, sample = model_rows(seed, 151_936)
        ids[:, 0] = target[:, 0].argmax(-1)
        out, want = (f(ids, draft, target, accept, sample) for f in (GREEDY, greedy))
        for key in want:
            np.testing.assert_array_equal(out[key], want[key])
        assert np.all(want["num_accepted"] >= 1)


@pytest.mark.parametrize(
    "mutant", ["CorrectionFromTarget", "HalfPrecisionSums", "ResidualNotNormalised"]
)
def test_comparison_refuses_mutants(mutant):
    assert compare(mutants.MUTANTS[mutant], model_rows(0, 32_000, spread=0.05))[0]


# --- Monte Carlo

STEPS, SIDES, DRAFTS = 200_000, 6, 2
FALSE_ALARM = 1e-9  # and the seed is fixed: what passes once passes always


def monte_carlo_failures(verifier):
    """Chi-square of the first two tokens of steps with random drafts and random uniforms.

    All steps are rows of one batch; the laws depend on the prefix. A step that emits one token is
    completed with a token drawn from the target.
    """
    rng = np.random.default_rng(20)
    contexts = 1 + SIDES + SIDES**2
    target = rng.dirichlet(np.full(SIDES, 0.8), contexts).astype(np.float32)
    draft = (0.5 * target + 0.5 * rng.dirichlet(np.full(SIDES, 0.8), contexts)).astype(np.float32)

    def sample(rows):
        below = rows.cumsum(-1) < rng.random((len(rows), 1)) * rows.sum(-1, keepdims=True)
        return np.minimum(below.sum(-1), SIDES - 1)

    zero = np.zeros(STEPS, int)
    first = sample(draft[zero])
    second = sample(draft[1 + first])
    at = np.stack([zero, 1 + first, 1 + SIDES + SIDES * first + second], axis=1)
    out = verifier(
        np.stack([first, second], axis=1).astype(np.int32),
        draft[at[:, :DRAFTS]],
        target[at],
        rng.random((STEPS, DRAFTS), np.float32),
        rng.random(STEPS, np.float32),
    )
    tokens = np.asarray(out["tokens"])
    head = tokens[:, 0]
    tail = np.where(tokens[:, 1] >= 0, tokens[:, 1], sample(target[1 + np.maximum(head, 0)]))
    if np.any(head < 0) or np.any(tokens >= SIDES):
        return ["tokens outside the vocabulary"]
    seen = np.bincount(SIDES * head + tail, minlength=SIDES**2)
    exact = target[:1].T.astype(np.float64) * target[1 : 1 + SIDES]
    expected = STEPS * (exact / exact.sum()).reshape(-1)
    statistic = ((seen - expected) ** 2 / expected).sum()
    threshold = chi2.isf(FALSE_ALARM, SIDES**2 - 1)
    return [] if statistic < threshold else [f"chi-square {statistic:.1f}, limit {threshold:.1f}"]


@pytest.mark.parametrize("verifier", [TOKEN, mutants.TokenRule()], ids=["token", "control"])
def test_monte_carlo_law(verifier):
    assert not monte_carlo_failures(verifier)


@pytest.mark.parametrize(
    "mutant",
    [
        "CorrectionFromTarget",
        "PointMassResidual",
        "CountsBeyondFirstFailure",
        "AcceptUniformReused",
    ],
)
def test_monte_carlo_refuses_mutants(mutant):
    assert monte_carlo_failures(mutants.MUTANTS[mutant])


def test_rows_on_device_and_on_host_agree():
    arguments = model_rows(3, 32_000)
    out = TOKEN(*arguments), TOKEN(*(jnp.asarray(a) for a in arguments))
    for key in out[0]:
        np.testing.assert_array_equal(out[0][key], out[1][key])
