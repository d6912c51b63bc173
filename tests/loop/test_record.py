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


def refusals(verify, drafter, **kwargs):
    """The record's rows of steps in which a token was refused and another drawn, and that token."""
    [result, _] = run(drafter, verify=verify, temperature=1.0, **kwargs)
    record, place = result.record, 0
    for number, kept in enumerate(record.accepted):
        place += kept
        if place < len(result.tokens):
            if kept < np.sum(record.draft_tokens[number] >= 0):
                yield record, number, kept, result.tokens[place]
            place += 1


def test_a_rule_that_draws_without_the_refused_token():
    for record, number, kept, drawn in refusals("lossy_thresholds", toy.sampling_drafter(DRAFT)):
        refused = record.draft_tokens[number, kept]
        assert drawn != refused
        draw = dict(
            zip(record.candidates[number], record.candidate_draw_probs[number], strict=True)
        )
        assert draw[refused] == 0
        np.testing.assert_allclose(sum(draw.values()), 1, rtol=1e-5)


def test_the_noise_of_sampled_verification_is_that_of_the_place():
    found = list(refusals("sampled", toy.sampling_drafter(DRAFT)))
    assert len(found) > 3
    for record, number, kept, drawn in found:
        noise = record.sample_uniforms[number]
        assert noise == record.accept_uniforms[number, kept]
        law = np.zeros(8)
        law[record.candidates[number]] = record.candidate_draw_probs[number]
        assert np.argmax(np.cumsum(law) > noise) == drawn


def test_rules_without_uniforms_have_none():
    for verify, temperature in (("coupled", 0.7), ("token", 0.0)):
        record = run(toy.sampling_drafter(DRAFT), temperature, verify=verify)[0].record
        assert np.isnan(record.sample_uniforms).all()
        assert np.isnan(record.accept_uniforms[record.draft_tokens >= 0]).all()


def own(draft_tokens, draft_probs, target_probs, accept, sample, *, draft_lengths):
    return sx.verify_token(
        draft_tokens, draft_probs, target_probs, accept, sample, draft_lengths=draft_lengths
    )


def test_what_somebody_elses_function_draws_from_is_not_known():
    record = run(toy.sampling_drafter(DRAFT), verify=own)[0].record
    assert np.isnan(record.candidate_draw_probs[:-1]).all()
    assert (record.candidate_target_probs[:-1].sum(axis=1) > 0.99).all()


def test_where_nothing_was_drawn_there_are_no_candidates():
    result = sx.generate(
        toy.cycle(), [0], drafter=toy.perfect_drafter(toy.cycle_logits(), 6), stop_ids=[3],
        max_new_tokens=30, record=True, adaptive=False,
    )  # fmt: skip
    assert result.record.accepted.tolist() == [3]
    assert (result.record.candidates == -1).all()
    assert (result.record.candidate_draw_probs == 0).all()
