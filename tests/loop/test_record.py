"""The record of a run: the probabilities of all draft tokens, as the rule saw them."""

import numpy as np
import pytest

import speculax as sx
from tests import toy
from tests.slow import slow_but

NETWORK = toy.Markov()
LOGITS = toy.random_logits(NETWORK)
DRAFT = toy.softmax(0.5 * toy.random_logits(NETWORK, seed=1)).astype(np.float32)


def run(drafter, temperature=0.7, record=True, **kwargs):
    return sx.generate(
        toy.model(NETWORK, LOGITS),
        [[1], [2]],
        drafter=drafter,
        max_new_tokens=[30, 7],
        temperature=temperature,
        seed=[4, 5],
        record=record,
        **kwargs,
    )


@pytest.mark.parametrize("verify", slow_but(["block"], ["token", "block", "coupled"]))
def test_accepted_tokens_have_the_probabilities_recorded(verify):
    target = toy.softmax(LOGITS / 0.7)
    drafter = toy.sampling_drafter(DRAFT)
    for start, result in zip((1, 2), run(drafter, verify=verify), strict=True):
        record = result.record
        assert record.target_probs.shape == record.draft_probs.shape == (result.stats.steps, 3)
        text, place = [start, *result.tokens.tolist()], 0
        for p, q in zip(record.target_probs, record.draft_probs, strict=True):
            for i in range(3):
                if place >= len(result.accepted) or not result.accepted[place]:
                    break
                before, token = text[place], text[place + 1]
                np.testing.assert_allclose(p[i], target[before, token], rtol=1e-5)
                np.testing.assert_allclose(q[i], DRAFT[before, token], rtol=1e-5)
                place += 1
            place += 1


def test_refused_tokens_are_in_it_too_and_nothing_behind_the_end_of_a_draft():
    [result, _] = run(toy.sampling_drafter(DRAFT))
    drafted = np.sum(result.record.draft_probs > 0)
    assert drafted == result.stats.drafted > result.stats.accepted


def test_deterministic_drafts_have_probability_one():
    for result in run(toy.perfect_drafter(LOGITS)):
        assert set(np.unique(result.record.draft_probs)) <= {0.0, 1.0}
        assert (result.record.target_probs[result.record.draft_probs > 0] > 0).all()


def test_greedy_rows_accept_what_has_probability_one():
    for result in run(toy.perfect_drafter(LOGITS), temperature=0.0):
        assert (result.record.target_probs == result.record.draft_probs).all()


def test_a_record_changes_nothing_and_is_not_made_unasked():
    drafter = toy.sampling_drafter(DRAFT)
    for result, other in zip(run(drafter), run(drafter, record=False), strict=True):
        np.testing.assert_array_equal(result.tokens, other.tokens)
        assert other.record is None


def test_plain_decoding_has_an_empty_record():
    for result in run(None):
        assert result.record.target_probs.shape == (result.stats.steps, 0)


def held(ratios):
    """P_n of block verification."""
    scale = 1.0
    for ratio in ratios:
        scale = min(1.0, scale * ratio)
    return scale


@pytest.mark.parametrize("verify", slow_but(["block"], ["token", "block", "coupled"]))
@pytest.mark.parametrize(
    "drafter",
    [toy.sampling_drafter(DRAFT), sx.NGram(3), None],
    ids=["sampled", "copied", "none"],
)
def test_candidates_are_those_of_the_law_that_is_drawn_from(verify, drafter):
    """And the token that was drawn is where the uniform falls, or the first of them if certain."""
    target = toy.softmax(LOGITS / 0.7)
    [result, _] = run(drafter, verify=verify)
    record, text, place = result.record, [1, *result.tokens.tolist()], 0
    for number, kept in enumerate(record.accepted):
        before = text[place + kept]
        p, q, scale = target[before], np.zeros(8), 1.0
        if kept < np.sum(record.draft_tokens[number] >= 0):
            q = DRAFT[before] if record.draft_probs[number, kept] < 1 else q
            if drafter == sx.NGram(3):
                q = np.eye(8)[record.draft_tokens[number, kept]]
        if verify == "block":
            ratios = record.target_probs[number, :kept] / record.draft_probs[number, :kept]
            scale = held(ratios)
        law = p if verify == "coupled" else np.maximum(scale * p - q, 0)
        law = law / law.sum()
        order = np.argsort(-law, kind="stable")
        likely = law[order] > 1e-6
        np.testing.assert_array_equal(record.candidates[number][likely], order[likely])
        np.testing.assert_allclose(record.candidate_draw_probs[number], law[order], atol=1e-5)
        own = record.candidates[number]
        np.testing.assert_allclose(record.candidate_target_probs[number], p[own], atol=1e-5)
        if drafter is None or verify != "coupled":
            np.testing.assert_allclose(record.candidate_draft_probs[number], q[own], atol=1e-5)
        place += kept + 1
        drawn = text[place] if place < len(text) else None
        assert drawn is None or drawn in own[record.candidate_draw_probs[number] > 0]


def test_the_uniforms_are_those_of_the_tests():
    [result, _] = run(toy.sampling_drafter(DRAFT))
    record = result.record
    ratios = record.target_probs / np.where(record.draft_probs > 0, record.draft_probs, 1)
    passed = (record.accept_uniforms < ratios) & (record.draft_tokens >= 0)
    np.testing.assert_array_equal(np.cumprod(passed, axis=1).sum(axis=1), record.accepted)
