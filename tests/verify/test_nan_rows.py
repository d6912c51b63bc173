"""One NaN in a row of a real vocabulary: no plausible token comes out.

XLA's own maximum of 4,096 floats or more loses NaN on CPU, so that rows of a test's size, or rows
that are NaN throughout, do not show it.
"""

import jax
import numpy as np
import pytest

import speculax as sx
from tests.slow import slow_but

SIZES = [4_097, 8_200]
HALF, NO_IDS = np.full((1, 1), 0.5, np.float32), np.full((1, 1), -1)
SETTINGS = {
    "none": {},
    "greedy": {"temperature": 0.0},
    "top-k": {"top_k": 50},
    "top-p": {"top_p": 0.9},
    "min-p, tempered": {"min_p": 0.05, "temperature": 0.8},
}
VERIFIERS = {
    "token": sx.verify_token,
    "block": sx.verify_block,
    "greedy": sx.verify_greedy,
    "sampled": sx.verify_sampled,
    "typical": sx.verify_lossy_typical,
}


def logits_with_nan(size, place=2):
    rows = np.random.default_rng(0).normal(size=(1, 2, size)).astype(np.float32)
    rows[0, 0, place] = np.nan
    return rows


def tokens_of(name, law, ids=NO_IDS):
    if name == "coupled":
        return sx.verify_coupled(ids, law, 1, 1)["tokens"].tolist()
    return VERIFIERS[name](ids, None, law, HALF, HALF[0])["tokens"].tolist()


@pytest.mark.parametrize("size", slow_but(SIZES[:1], SIZES))
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", slow_but(("token",), ["token", "coupled"]))
def test_target_row(name, settings, size):
    for place in (2, size - 1):
        law = sx.law_from_logits(logits_with_nan(size, place), **SETTINGS[settings])
        assert tokens_of(name, law) == [[-1, -1]]


@pytest.mark.parametrize("name", ["block", "greedy", "sampled", "typical"])
def test_rules(name):
    law = sx.law_from_logits(logits_with_nan(8_200), top_k=50)
    likeliest = np.nanargmax(logits_with_nan(8_200)[:, :1], axis=2)
    assert tokens_of(name, law) == tokens_of(name, law, likeliest) == [[-1, -1]]


def test_probabilities():
    probs = np.exp(logits_with_nan(8_200))
    likeliest = np.nanargmax(probs[:, :1], axis=2)
    assert tokens_of("greedy", probs, likeliest) == [[-1, -1]]
    assert sx.coupled_draw(probs[0], 1, np.arange(2))[0] == -1


@pytest.mark.parametrize("settings", ["greedy", "top-k"])
def test_draft_row(settings):
    """The draft token fails, and the next one comes from the target."""
    law = sx.law_from_logits(logits_with_nan(8_200)[:, :1], **SETTINGS[settings])
    assert sx.sample(law, HALF).tolist() == [[-1]]
    target = np.zeros((1, 2, 8_200), np.float32)
    target[..., 7] = 1
    verdict = sx.verify_token(np.full((1, 1), 7), law, target, 0 * HALF, HALF[0])
    assert verdict["tokens"].tolist() == [[7, -1]]
    assert verdict["num_accepted"].tolist() == [0]


def test_log_probs():
    logs = sx.log_probs(sx.law_from_logits(logits_with_nan(8_200)[0], top_k=50), np.array([0, 0]))
    for values in logs:
        assert np.isnan(values[0])
        assert np.isfinite(values[1]) or values[1] == -np.inf


def test_small_rows_side_by_side():
    """What counts is the size of the whole batch."""
    rows = np.random.default_rng(0).normal(size=(8, 600)).astype(np.float32)
    rows[3, 5] = np.nan

    def choose(row):
        none = np.zeros((1, 0), np.float32)
        law = sx.law_from_logits(row[None, None])
        return sx.verify_greedy(none.astype(int), None, law, none, none[:, :1].sum(1))["tokens"]

    assert jax.vmap(choose)(rows)[:, 0, 0].tolist() == [
        -1 if np.isnan(row).any() else np.argmax(row) for row in rows
    ]
