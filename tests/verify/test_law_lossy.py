"""Lossy rules: their law is the one their own formula gives, and it is not the target's.

The joint law of tokens and number accepted, draft by draft, is found with `cells` and compared with
the formula in float64.
"""

from collections import defaultdict
from functools import cache, partial
from itertools import pairwise

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.verifier import cells
from speculax.conformance.verifier.cells import (
    Laws,
    cut_steps,
    law_of_step,
    paths_of,
    total_variation,
)

RULES = {
    name: jax.jit(getattr(sx, f"verify_lossy_{name}"))
    for name in ("typical", "thresholds", "top_k", "synthetic")
}
SETTINGS = [
    ("typical", {"epsilon": 0.09, "delta": 0.3}),
    ("typical", {"epsilon": 0.3, "delta": 5.0}),
    ("typical", {"epsilon": 1.0, "delta": 0.6}),
    ("thresholds", {"threshold_single": 0.5, "threshold_acc": 1.0}),
    ("thresholds", {"threshold_single": 1.0, "threshold_acc": 0.5}),
    ("thresholds", {"threshold_single": 0.6, "threshold_acc": 0.7}),
    ("top_k", {"k": 1}),
    ("top_k", {"k": 2}),
    ("top_k", {"k": 5}),
    ("synthetic", {"rates": 0.8}),
    ("synthetic", {"rates": (0.9, 0.25)}),
    ("synthetic", {"rates": (1.0, 0.0)}),
]
LOSSLESS = [
    ("thresholds", {"threshold_single": 1.0, "threshold_acc": 1.0}),
    ("synthetic", {"rates": 0.0}),
    # Only a token that has all the mass is above these.
    ("typical", {"epsilon": 1.0, "delta": 1e6}),
]
NEAR, DRAFTS = 1e-6, 2


@cache
def starts(kinds=("near", "far", "zeros")):
    return [(Laws(seed, kind, DRAFTS), ()) for kind in kinds for seed in range(2)]


def with_settings(name, settings):
    """The rule with its settings traced, so that all of them share one program."""
    traced = {
        key: jnp.asarray(value, jnp.int32 if key == "k" else jnp.float32)
        for key, value in settings.items()
    }
    if name == "synthetic":
        traced["rates"] = jnp.broadcast_to(traced["rates"], (DRAFTS,))
    return partial(RULES[name], **traced)


def chance(name, row, token, place, settings):
    """The probability that a draft token passes, by the rule's own formula; row is float64."""
    p = row[token]
    if name == "typical":
        entropy = -sum(x * np.log(x) for x in row if x > 0)
        return float(p > min(settings["epsilon"], settings["delta"] * np.exp(-entropy)))
    if name == "thresholds":
        return 1.0 if p >= settings["threshold_single"] else min(1, p / settings["threshold_acc"])
    if name == "top_k":
        return float(p > 0 and (row > p).sum() < settings["k"])
    return np.broadcast_to(settings["rates"], DRAFTS)[place]


def formula(name, laws, path, settings, length=DRAFTS):
    """The law of what one draft becomes: {emitted tokens: probability}."""
    rows = laws.rows(laws.target, (), path).astype(np.float64)
    rows /= rows.sum(axis=1, keepdims=True)
    law, reached = defaultdict(float), 1.0
    for n in range(length + 1):
        row, passed = rows[n], 0.0
        if n < length:
            passed = chance(name, row, path[n], n, settings)
            if name == "thresholds" and passed < 1:
                row = row * (np.arange(laws.vocab) != path[n])
                row = row / row.sum()
        for token in range(laws.vocab):
            law[(*path[:n], token)] += reached * (1 - passed) * row[token]
        reached *= passed
    return law


def differences(name, settings, steps, length=lambda path: DRAFTS):
    """Total variation between code and formula, for each draft of each model."""
    result = []
    for (laws, _), per_path in zip(steps.starts, steps.cells, strict=True):
        for path, found in zip(paths_of(laws.vocab, DRAFTS), per_path, strict=True):
            want = formula(name, laws, path, settings, length(path))
            got = defaultdict(float)
            for cell in found:
                assert cells.is_well_formed(cell, path, laws.vocab)
                got[cell.emitted] += cell.size
            result.append(sum(abs(got[text] - want[text]) for text in {*got, *want}) / 2)
    return result


@pytest.mark.parametrize(("name", "settings"), SETTINGS + LOSSLESS)
def test_law_is_that_of_the_formula(name, settings):
    steps = cut_steps(with_settings(name, settings), starts(), DRAFTS)
    assert max(differences(name, settings, steps)) < NEAR


def bias(steps):
    return [
        total_variation(
            law_of_step(steps, i, DRAFTS + 1), laws.joint(laws.target, prefix, DRAFTS + 1)
        )
        for i, (laws, prefix) in enumerate(steps.starts)
    ]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_rule_is_lossy(name, settings):
    steps = cut_steps(with_settings(name, settings), starts(), DRAFTS)
    assert max(bias(steps)) > 0.02


@pytest.mark.parametrize(("name", "settings"), LOSSLESS)
def test_rule_is_lossless_where_nothing_is_given_away(name, settings):
    steps = cut_steps(with_settings(name, settings), starts(), DRAFTS)
    assert max(bias(steps)) < NEAR


@pytest.mark.parametrize("name", RULES)
def test_short_rows(name):
    """What lies beyond a row's own drafts is NaN, and never read."""
    settings = dict(SETTINGS)[name]
    length = lambda path: path[0]
    steps = cut_steps(with_settings(name, settings), starts(), DRAFTS, length, poison=True)
    assert max(differences(name, settings, steps, length)) < NEAR


@pytest.mark.parametrize("name", ["typical", "thresholds", "top_k"])
def test_law_from_logits(name):
    """The target as logits with a temperature, the draft's law left out."""
    settings = dict(SETTINGS)[name]
    rule = with_settings(name, settings)

    @jax.jit
    def verifier(ids, draft, target, accept, sample):
        law = sx.law_from_logits(jnp.log(target) * 0.5 + 2.0, temperature=jnp.float32(0.5))
        return rule(ids, None, law, accept, sample)

    steps = cut_steps(verifier, starts(), DRAFTS, dense=False)
    assert max(differences(name, settings, steps)) < NEAR


def test_formula_can_fail():
    """Another setting, or a correction from the whole row, is another law."""
    steps = cut_steps(with_settings("typical", SETTINGS[0][1]), starts(), DRAFTS)
    assert max(differences("typical", {"epsilon": 0.2, "delta": 0.3}, steps)) > 0.1
    steps = cut_steps(with_settings("thresholds", SETTINGS[3][1]), starts(), DRAFTS)
    assert max(differences("thresholds", SETTINGS[4][1], steps)) > 0.1
    assert max(differences("synthetic", {"rates": 0.5}, steps)) > 0.1


def test_more_is_kept_the_more_is_given_away():
    def kept(name, settings):
        steps = cut_steps(with_settings(name, settings), starts(), DRAFTS)
        return sum(
            cell.size * cell.num_accepted * weight
            for i in range(len(steps.starts))
            for cell, weight in steps.outcomes(i)
        )

    scales = {
        "typical": [{"epsilon": e, "delta": 1.0} for e in (0.5, 0.3, 0.1)],
        "thresholds": [{"threshold_single": 1.0, "threshold_acc": a} for a in (1.0, 0.6, 0.2)],
        "top_k": [{"k": k} for k in (1, 2, 3)],
        "synthetic": [{"rates": r} for r in (0.2, 0.5, 1.0)],
    }
    for name, scale in scales.items():
        assert all(a < b for a, b in pairwise(kept(name, settings) for settings in scale))


# --- Edges


def arguments(ids, target, accept=(0.5, 0.5), sample=0.5):
    laws, uniforms = (np.array([x], np.float32) for x in (target, accept))
    return np.array([ids], np.int32), None, laws, uniforms, np.float32([sample])


def emitted(name, settings, *args, **kwargs):
    out = getattr(sx, f"verify_lossy_{name}")(*arguments(*args, **kwargs), **settings)
    n = int(out["num_accepted"][0])
    assert (np.asarray(out["tokens"][0, n + 1 :]) == -1).all()
    return np.asarray(out["tokens"][0, : n + 1]).tolist()


GENEROUS = {
    "typical": {"epsilon": 0.01, "delta": 0.1},
    "thresholds": {"threshold_single": 0.01, "threshold_acc": 0.1},
    "top_k": {"k": 4},
    "synthetic": {"rates": 1.0},
}
NAN = float("nan")
FLAT, LAST = [0.25] * 4, [0, 0, 0, 1]


@pytest.mark.parametrize("name", RULES)
def test_generous_settings_keep_all(name):
    assert emitted(name, GENEROUS[name], (1, 2), (FLAT, FLAT, LAST)) == [1, 2, 3]


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", RULES)
def test_id_outside_the_vocabulary_fails(name, wrong):
    assert emitted(name, GENEROUS[name], (1, wrong), (FLAT, LAST, FLAT)) == [1, 3]


@pytest.mark.parametrize("name", ["typical", "thresholds", "top_k"])
def test_token_without_mass_fails(name):
    half = [0.5, 0, 0.5, 0]
    assert emitted(name, GENEROUS[name], (1, 1), (FLAT, half, FLAT), (0.0, 0.0)) == [1, 2]


@pytest.mark.parametrize("row", [[NAN] * 4, [0.0] * 4, [0.5, float("inf"), 0.5, 0]])
@pytest.mark.parametrize("name", RULES)
def test_target_row_that_cannot_be_used_gives_no_token(name, row):
    """What was accepted before it stands, and the row itself is never drawn from."""
    settings = {"rates": (1.0, 0.0)} if name == "synthetic" else GENEROUS[name]
    assert emitted(name, settings, (1, 3), (FLAT, row, FLAT)) == [1, -1]


@pytest.mark.parametrize("name", ["thresholds", "synthetic"])
def test_uniform_that_is_nan_fails(name):
    assert emitted(name, GENEROUS[name], (1, 2), (FLAT, LAST, FLAT), (0.5, NAN)) == [1, 3]


def test_whole_row_is_drawn_from_where_the_failed_token_left_nothing():
    """Not reachable with rows that sum to one: here the token has all of too little mass."""
    row = [0, 0.25, 0, 0]
    settings = {"threshold_single": 1.0, "threshold_acc": 1.0}
    assert emitted("thresholds", settings, (1, 1), (row, FLAT, FLAT)) == [1]


@pytest.mark.parametrize("name", ["typical", "synthetic"])
def test_no_drafts(name):
    settings = {"rates": 0.5} if name == "synthetic" else GENEROUS[name]
    out = getattr(sx, f"verify_lossy_{name}")(
        jnp.zeros((2, 0), jnp.int32),
        None,
        jnp.array([[[0.5, 0.5]], [[0.0, 1.0]]]),
        jnp.zeros((2, 0)),
        jnp.array([0.4, 0.4]),
        **settings,
    )
    assert out["num_accepted"].tolist() == [0, 0]
    assert out["tokens"].tolist() == [[0], [1]]


def test_top_k_ties_count():
    """Tokens that tie with the k-th likeliest pass, whatever their id."""
    row = [0.2, 0.4, 0.2, 0.2]
    for token, kept in ((0, [0, 1]), (3, [3, 1]), (1, [1, 1])):
        assert emitted("top_k", {"k": 2}, (token, 0), (row, [0, 1, 0, 0], FLAT))[:2] == kept


def test_rates_are_met():
    """20,000 rows: each rate within 5 standard deviations, a false alarm in 10**6."""
    rates, count = np.array([0.9, 0.5, 0.7]), 20_000
    uniforms = np.random.default_rng(0).random((count, 3), np.float32)
    out = sx.verify_lossy_synthetic(
        np.zeros((count, 3), np.int32),
        None,
        np.ones((count, 4, 1), np.float32),
        uniforms,
        np.zeros(count, np.float32),
        rates=rates,
    )
    n = np.asarray(out["num_accepted"])
    for i, rate in enumerate(rates):
        reached = (n >= i).sum()
        kept = (n > i).sum()
        assert abs(kept - reached * rate) < 5 * np.sqrt(reached * rate * (1 - rate))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("typical", {"epsilon": 0.0}),
        ("typical", {"epsilon": 1.5}),
        ("typical", {"delta": 0.0}),
        ("typical", {"delta": NAN}),
        ("typical", {"epsilon": [0.1, 0.2]}),
        ("thresholds", {"threshold_single": 0.0}),
        ("thresholds", {"threshold_acc": 1.1}),
        ("thresholds", {"threshold_acc": -0.5}),
        ("top_k", {"k": 0}),
        ("synthetic", {"rates": 1.5}),
        ("synthetic", {"rates": [0.5, -0.1]}),
        ("synthetic", {"rates": [0.5, 0.5, 0.5]}),
        ("synthetic", {"rates": NAN}),
    ],
)
def test_settings_out_of_range(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        emitted(name, settings, (1, 2), (FLAT, FLAT, FLAT))


@pytest.mark.parametrize("name", RULES)
def test_no_retrace_for_new_settings(name):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(settings, *args):
        return getattr(sx, f"verify_lossy_{name}")(*args, **settings)

    accepted = set()
    for settings in (s for n, s in (*SETTINGS, *LOSSLESS) if n == name):
        traced = with_settings(name, settings).keywords
        out = once(traced, *arguments((0, 1), ([0.4, 0.35, 0.25], [0.5, 0.3, 0.2], [1, 0, 0])))
        accepted.add(int(out["num_accepted"][0]))
    assert len(accepted) > 1
