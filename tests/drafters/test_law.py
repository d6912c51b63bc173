"""Every drafter under every rule: the texts of several steps follow the target's law.

Rows with the same prompt and seeds of their own; their texts are counted and compared with exact
probabilities by a chi-square test whose false alarm rate is `FALSE_ALARM`; seeds are fixed. The
faults at the end are ones seen in public, and must fail by far.
"""

import itertools
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import speculax as sx
import speculax.loop
from tests import toy
from tests.drafters.zoo import DRAFTERS, NETWORK, OTHER, OTHER_TABLE, TABLES, TARGET, V

FALSE_ALARM = 1e-6
NUM_ROWS, NUM_NEW, TEMPERATURE = 5_000, 3, 0.6
PROMPT = [1, 2, 0, 1, 2, 4, 3, 0, 5, 3, 1, 1, 4, 2, 2, 1]  # every token has been seen to follow


@cache
def law():
    """The probability of each text (V,) * NUM_NEW after the prompt."""
    table = np.zeros((V,) * NUM_NEW)
    for text in itertools.product(range(V), repeat=NUM_NEW):
        state, probability = 0, 1.0
        for token in PROMPT:
            state = NETWORK.after(state, token)
        for token in text:
            probability *= toy.softmax(TABLES[1][state] / TEMPERATURE)[token]
            state = NETWORK.after(state, token)
        table[text] = probability
    return table


def surprise(drafter, verify):
    """How much larger than its limit the chi-square statistic is, and the acceptance rate."""
    results = sx.generate(
        TARGET,
        [PROMPT] * NUM_ROWS,
        drafter=drafter,
        verify=verify,
        max_new_tokens=NUM_NEW,
        temperature=TEMPERATURE,
        seed=range(NUM_ROWS),
        slots=NUM_ROWS,
    )
    counts = np.zeros((V,) * NUM_NEW)
    for result in results:
        counts[tuple(result.tokens)] += 1
    expected, rare = NUM_ROWS * law(), NUM_ROWS * law() < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    statistic = np.sum((counts - expected) ** 2 / expected)
    limit = scipy.stats.chi2.isf(FALSE_ALARM, len(expected) - 1)
    drafted, accepted = (
        sum(getattr(result.stats, name) for result in results) for name in ("drafted", "accepted")
    )
    assert sum(result.stats.steps > 1 for result in results) > NUM_ROWS / 20
    return statistic / limit, accepted / drafted


def textbook(
    draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, *, draft_lengths
):
    """The token rule as the paper has it: somebody's own function."""
    length = draft_tokens.shape[1]
    at = draft_tokens[:, :, None]
    p = jnp.take_along_axis(target_probs[:, :length], at, axis=2)[:, :, 0]
    q = jnp.take_along_axis(draft_probs, at, axis=2)[:, :, 0]
    place = jnp.arange(length + 1)[None]
    passed = (accept_uniforms * q < p) & (place[:, :length] < draft_lengths[:, None])
    kept = jnp.sum(jnp.cumprod(passed.astype(jnp.int32), axis=1), axis=1)
    blank = jnp.zeros_like(target_probs[:, :1])
    draft_probs = jnp.concatenate([draft_probs, blank], axis=1)
    draft_probs = jnp.where((place < draft_lengths[:, None])[:, :, None], draft_probs, 0.0)
    rows = jnp.maximum(target_probs - draft_probs, 0)
    rows = jnp.take_along_axis(rows, kept[:, None, None], axis=1)[:, 0]
    sums = jnp.cumsum(rows, axis=1)
    drawn = jnp.argmax(sums > sample_uniforms[:, None] * sums[:, -1:], axis=1)
    tokens = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    tokens = jnp.where(place < kept[:, None], tokens, -1)
    tokens = jnp.where(place == kept[:, None], drawn[:, None], tokens)
    return {"num_accepted": kept.astype(jnp.int32), "tokens": tokens.astype(jnp.int32)}


RULES = ["token", "block", "sampled", "coupled", textbook]
QUICK = {("draft model", "block"), ("early exit", "token"), ("first match", "block")}


@pytest.mark.parametrize(
    ("name", "verify"),
    [
        pytest.param(
            name,
            verify,
            marks=() if (name, verify) in QUICK else pytest.mark.slow,
            id=f"{name}-{getattr(verify, '__name__', verify)}",
        )
        for name in DRAFTERS
        for verify in RULES
    ],
)
def test_the_texts_follow_the_law_of_the_target(name, verify):
    excess, acceptance_rate = surprise(DRAFTERS[name].make(2), verify)
    assert excess < 1
    assert 0.05 < acceptance_rate < 0.95


# --- Faults


class ForgetsTheTemperature(sx.DraftModel):
    """Draws at the temperature of the request, and hands over the law at 1."""

    def propose(self, state, round):
        draft, state = super().propose(state, round)
        return draft._replace(probs=replace(draft.probs, temperature=None, normalizers=None)), state


jax.tree_util.register_dataclass(
    ForgetsTheTemperature, ["model", "ids"], ["draft_length", "unknown"]
)


@pytest.mark.parametrize("verify", ["token", pytest.param("block", marks=pytest.mark.slow)])
def test_a_drafter_that_hands_over_another_law_than_it_drew_from_is_noticed(verify):
    drafter = ForgetsTheTemperature(toy.model(OTHER, 3 * OTHER_TABLE), 2)
    assert surprise(drafter, verify)[0] > 1.5


@pytest.mark.slow
def test_a_lossy_rule_is_noticed():
    lossy = partial(sx.verify_lossy_typical, epsilon=0.1)
    assert surprise(DRAFTERS["draft model"].make(2), lossy)[0] > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft model", "early exit"])
@pytest.mark.parametrize("shared", [("PROPOSAL", "ACCEPTANCE"), ("ACCEPTANCE", "DRAW")])
def test_streams_of_noise_that_are_shared_are_noticed(monkeypatch, name, shared):
    speculax.loop.decode_chunk.clear_cache()
    monkeypatch.setattr(speculax.loop, shared[0], getattr(speculax.loop, shared[1]))
    excess, _ = surprise(DRAFTERS[name].make(2), "token")
    speculax.loop.decode_chunk.clear_cache()
    assert excess > 1.5
