"""Vocabularies of real models against the float64 oracle, and a chi-square test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import speculax as sx
from speculax.conformance.verifier import mutants, oracle

TOKEN, GREEDY = jax.jit(sx.verify_token), jax.jit(sx.verify_greedy)
BLOCK, SAMPLED = jax.jit(sx.verify_block), jax.jit(sx.verify_sampled)

# How far a float32 draw may be off, as a part of the row's mass: 16 roundings of the whole.
ROUNDING = 2.0**-20
# u * draft and target are compared after one rounding.
PRODUCT_ROUNDING = 2.0**-23
# How far a float32 bound of the block rule may be off.
BOUND_ROUNDING = 2.0**-20


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


def token_plan(ids, draft, target, accept):
    """The oracle's plan, and whether rounding may lead to another one."""
    at = np.arange(len(ids))
    u, q, p = (x.astype(np.float64) for x in (accept, draft[at, ids], target[at, ids]))
    close = np.abs(u * q - p) <= PRODUCT_ROUNDING * p
    return *oracle.plan(ids, draft, target, accept, number=float), close.any()


def block_plan(ids, draft, target, accept):
    """Likewise: the plan must be the same for uniforms a little below and above."""
    plans = [
        oracle.block_plan(ids, draft, target, np.clip(accept + move, 0, 1), number=float)
        for move in (0, -BOUND_ROUNDING, BOUND_ROUNDING)
    ]
    return *plans[0], len({n for n, _ in plans}) > 1


def compare(verifier, arguments, plan=token_plan):
    """(failures, draws that are not the oracle's, draws) of one call."""
    out = verifier(*arguments)
    wrong, inexact, draws = [], 0, 0
    for b in range(len(arguments[0])):
        ids, draft, target, accept, sample = (a[b] for a in arguments)
        got, n = np.asarray(out["tokens"])[b], int(out["num_accepted"][b])
        want_n, weights, is_close = plan(ids, draft, target, accept)
        if is_close:
            inexact += 1
            continue
        if n != want_n or got[:n].tolist() != ids[:n].tolist():
            wrong.append(f"row {b}: {n} accepted, should be {want_n}")
            continue
        draws += 1
        y, total = int(got[n]), weights.sum()
        inexact += y != oracle.draw(weights, sample)
        off = distance(weights, y, sample)
        # Rounding is that of the target, weighted; the residual may have less mass.
        if not weights[y] > 0 or off > ROUNDING / (min(1, total) if plan is block_plan else 1):
            wrong.append(f"row {b}: token {y} is off by {off}, weight {weights[y]}")
    return wrong, inexact, draws


def distance(weights, token, uniform):
    """How far a uniform is from those that draw the token, in float64; negative among them."""
    total, high = weights.sum(), weights[: token + 1].sum()
    return max((high - weights[token]) / total - uniform, uniform - high / total)


@pytest.mark.parametrize("vocab", [32_000, 151_936])
def test_token_agrees_with_the_oracle(vocab):
    """Every token lies within rounding of the exact one, and hardly any is another one."""
    results = [compare(TOKEN, model_rows(seed, vocab)) for seed in range(12)]
    assert not [x for wrong, _, _ in results for x in wrong]
    assert sum(draws for _, _, draws in results) >= 40
    assert sum(inexact for _, inexact, _ in results) <= 2


def likelier(arguments):
    """The same rows, their draft tokens moved where the target has more mass than before."""
    ids, draft, target, accept, sample = arguments
    ids = np.where(np.arange(ids.shape[1]) == 1, (target[:, :-1] - draft).argmax(-1), ids)
    return ids.astype(np.int32), draft, target, accept, sample


@pytest.mark.parametrize(("vocab", "seeds"), [(32_000, 8), (151_936, 4)])
def test_block_agrees_with_the_oracle(vocab, seeds):
    results, stops = [], []
    for seed in range(seeds):
        arguments = model_rows(seed, vocab, drafts=3)
        arguments = likelier(arguments) if seed % 2 else arguments
        results.append(compare(BLOCK, arguments, block_plan))
        for ids, draft, target, accept, _ in zip(*arguments, strict=True):
            stops.append(oracle.block_plan(ids, draft, target, accept, number=float)[0])
    assert not [x for wrong, _, _ in results for x in wrong]
    assert sum(draws for _, _, draws in results) >= 4 * seeds - 1
    assert sum(inexact for _, inexact, _ in results) <= 2
    assert len(set(stops)) >= 3


def test_narrow_laws_agree_with_the_oracle_of_the_block_rule():
    ids, draft, target, *uniforms = model_rows(0, 32_000, drafts=3)
    draft, target = (np.asarray(jnp.asarray(x, jnp.bfloat16)) for x in (draft, target))
    wrong, inexact, _ = compare(
        lambda ids, draft, target, *rest: BLOCK(
            ids, jnp.asarray(draft, jnp.bfloat16), jnp.asarray(target, jnp.bfloat16), *rest
        ),
        (ids, draft.astype(np.float32), target.astype(np.float32), *uniforms),
        block_plan,
    )
    assert not wrong
    assert inexact <= 1


def sampled_failures(verifier, seed):
    """Every emitted token lies within rounding of its own uniform's, in its own row.

    Half of the uniforms are made to draw the draft token.
    """
    ids, _, target, accept, sample = model_rows(seed, 151_936)
    for b, i in np.ndindex(*ids.shape):
        if (b + i + seed) % 2 or b == 0:
            row = target[b, i].astype(np.float64)
            accept[b, i] = (row[: ids[b, i]].sum() + row[ids[b, i]] * 0.5) / row.sum()
    out = verifier(ids, None, target, accept, sample)
    wrong = []
    for b, n in enumerate(np.asarray(out["num_accepted"]).tolist()):
        tokens, drafted = np.asarray(out["tokens"])[b], ids[b].tolist()
        if tokens[:n].tolist() != drafted[:n] or tokens[n] in drafted[n : n + 1]:
            wrong.append(f"row {b}: {n} accepted, {tokens} of {drafted}")
        for i in range(n + 1):
            uniform = [*accept[b], sample[b]][i]
            row, token = target[b, i].astype(np.float64), tokens[i]
            if not row[token] > 0 or distance(row, token, uniform) > ROUNDING:
                wrong.append(
                    f"row {b}: token {token} at {i}, off by {distance(row, token, uniform)}"
                )
    return wrong, np.asarray(out["num_accepted"]).tolist()


def test_sampled_agrees_with_the_oracle():
    results = [sampled_failures(SAMPLED, seed) for seed in range(3)]
    assert not [x for wrong, _ in results for x in wrong]
    assert {n for _, stops in results for n in stops} == {0, 1, 2}


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


BLOCK_MUTANTS = [
    *("BlockTokenResidual", "BlockTestsTokenResidual", "BlockStopsAtFirstFailure"),
    *("BlockRatioAsBound", "BlockNotCappedAtLast", "BlockOneUniform"),
    *("BlockWeightOfPrefixBefore", "BlockWeightOfPrefixAfter", "BlockBoundFromRowBefore"),
]


def test_comparison_refuses_block_mutants():
    rows = [model_rows(seed, 500, batch=200, drafts=3) for seed in range(2)]
    rows[1] = likelier(rows[1])
    for arguments in rows:
        assert not compare(mutants.BlockRule(), arguments, block_plan)[0]
    for name in BLOCK_MUTANTS:
        verifier = mutants.MUTANTS[name]
        assert any(compare(verifier, arguments, block_plan)[0] for arguments in rows), name


@pytest.mark.parametrize("mutant", ["SampledUniformReused", "SampledDrawnAgain", "SampledResidual"])
def test_comparison_refuses_sampled_mutants(mutant):
    assert not sampled_failures(mutants.SampledRule(), 0)[0]
    assert sampled_failures(mutants.MUTANTS[mutant], 0)[0]


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


@pytest.mark.parametrize(
    "verifier",
    [TOKEN, BLOCK, SAMPLED, *(mutants.CONTROLS[name] for name in ("token", "block", "sampled"))],
    ids=["token", "block", "sampled", "token control", "block control", "sampled control"],
)
def test_monte_carlo_law(verifier):
    assert not monte_carlo_failures(verifier)


@pytest.mark.parametrize(
    "mutant",
    [
        "CorrectionFromTarget",
        "PointMassResidual",
        "CountsBeyondFirstFailure",
        "AcceptUniformReused",
        "BlockTokenResidual",
        "BlockTestsTokenResidual",
        "BlockStopsAtFirstFailure",
        "BlockRatioAsBound",
        "BlockNotCappedAtLast",
        "BlockWeightOfPrefixAfter",
        "BlockBoundFromRowBefore",
        "SampledResidual",
        "SampledDrawnAgain",
        "SampledOneUniform",
    ],
)
def test_monte_carlo_refuses_mutants(mutant):
    assert monte_carlo_failures(mutants.MUTANTS[mutant])


def test_rows_on_device_and_on_host_agree():
    arguments = model_rows(3, 32_000)
    out = TOKEN(*arguments), TOKEN(*(jnp.asarray(a) for a in arguments))
    for key in out[0]:
        np.testing.assert_array_equal(out[0][key], out[1][key])
