"""What drafts of each length cost and bring, and how draft lengths follow from it."""

import math

import numpy as np
import pytest

import speculax as sx
from speculax.draft_length import DraftLength
from tests import toy

MODEL = toy.cycle(name="counting")
PROMPT = list(range(8)) * 3


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECULAX_CACHE", str(tmp_path))


def test_each_length_is_measured_and_predicted():
    runs = []
    found = sx.tune(MODEL, sx.NGram(7), [PROMPT], max_new_tokens=40, repeats=2, done=runs.append)
    assert found.costs.widths == (0, 3, 7)
    assert sorted(runs) == [0, 0, 3, 3, 7, 7]
    assert min(found.costs.seconds) > 0
    assert found.measured[0] == found.predicted[0] == 1
    # All drafts hold: a step makes so many tokens, but for the last one.
    np.testing.assert_allclose(found.acceptance, np.ones(7))
    tokens = np.array(found.predicted) * [found.costs.of(width) for width in (0, 3, 7)]
    np.testing.assert_allclose(tokens, [1, 4, 8], atol=0.5)
    assert found.best in (0, 3, 7)


def test_drafters_that_cost_something_are_tried_at_every_length():
    drafter = sx.DraftModel(toy.cycle(), 2)
    found = sx.tune(MODEL, drafter, [[1]], max_new_tokens=12, repeats=1)
    assert found.costs.widths == (0, 1, 2)


def test_where_nothing_is_drafted_there_is_no_acceptance():
    found = sx.tune(MODEL, sx.NGram(3), [[1]], max_new_tokens=4, repeats=1)
    assert all(math.isnan(rate) for rate in found.acceptance)
    assert found.predicted[1] == 1 / found.costs.of(3)


def test_costs_are_kept_for_a_model_and_a_drafter():
    costs = sx.StepCosts((0, 3), (1e-3, 2e-3))
    assert sx.load_costs(MODEL, sx.NGram()) is None
    path = sx.save_costs(MODEL, sx.NGram(), costs)
    assert sx.load_costs(MODEL, sx.NGram(3)) == costs  # whatever its length
    assert sx.load_costs(MODEL, sx.NGram(max_ngram=2)) is None
    assert sx.load_costs(toy.cycle(name="another"), sx.NGram()) is None
    path.write_text("damaged")
    assert sx.load_costs(MODEL, sx.NGram()) is None


@pytest.mark.parametrize(
    ("widths", "seconds"), [((1, 2), (1, 2)), ((0, 2, 1), (1, 1, 1)), ((0,), (1, 2)), ((0,), (0,))]
)
def test_costs_that_mean_nothing_are_refused(widths, seconds):
    with pytest.raises(ValueError, match="costs must be of widths that rise from 0"):
        sx.StepCosts(widths, seconds)


def test_what_cannot_be_tuned_is_named():
    with pytest.raises(ValueError, match="at least one prompt"):
        sx.tune(MODEL, sx.NGram(), [])

    both = sx.FirstMatch(sx.NGram(2), sx.Suffix(2))
    for drafter, name in ((lambda: None, "function"), (both, "FirstMatch")):
        with pytest.raises(ValueError, match=f"the draft_length of a dataclass, and {name} is"):
            sx.tune(MODEL, drafter, [[1]])
    for name in ("max_new_tokens", "repeats"):
        with pytest.raises(ValueError, match=f"{name} must be an integer, at least 1, got 0"):
            sx.tune(MODEL, sx.NGram(), [[1]], **{name: 0})


def test_costs_of_a_draft_model_are_found_by_another_process():
    """There its objects are others, in other places of memory."""

    def drafter():
        return sx.DraftModel(toy.cycle(name="small", tokenizer=object()), 2)

    costs = sx.StepCosts((0, 2), (1e-3, 2e-3))
    sx.save_costs(MODEL, drafter(), costs, verify="block", temperature=1.0)
    assert sx.load_costs(MODEL, drafter(), verify="block", temperature=0.5) == costs
    assert sx.load_costs(MODEL, drafter(), verify="block") is None
    assert sx.load_costs(MODEL, drafter(), temperature=1.0) is None


def test_lengths_follow_the_costs():
    """Of drafts that hold half of the time, the best length is the one whose costs say so."""
    free = DraftLength((0, 1, 4), sx.StepCosts((0, 1, 4), (1.0, 1.0, 1.0)).of)
    dear = DraftLength((0, 1, 4), sx.StepCosts((0, 1, 4), (1.0, 1.2, 3.0)).of)
    never = DraftLength((0, 1, 4), sx.StepCosts((0, 1, 4), (1.0, 2.0, 5.0)).of)
    assert [one.current for one in (free, dear, never)] == [4, 1, 0]


def test_generation_adapts_by_given_costs():
    drafter = sx.DraftModel(toy.cycle(), 4)
    cheap = sx.StepCosts((0, 2, 4), (1.0, 1.0, 1.0))
    dear = sx.StepCosts((0, 2, 4), (1.0, 50.0, 100.0))
    kwargs = {"drafter": drafter, "max_new_tokens": 100}
    drafted = sx.generate(MODEL, [1], costs=cheap, **kwargs)
    plain = sx.generate(MODEL, [1], costs=dear, **kwargs)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert drafted.stats.steps == 20
    assert plain.stats.drafted == 0


@pytest.mark.parametrize("kwargs", [{"deterministic": True, "step_width": 3}, {"adaptive": False}])
def test_costs_of_other_lengths_are_not_needed_where_none_is_chosen(kwargs):
    costs = sx.StepCosts((0, 3), (1.0, 1.2))
    drafter = sx.DraftModel(toy.cycle(), 4)
    result = sx.generate(MODEL, [1], drafter=drafter, costs=costs, max_new_tokens=8, **kwargs)
    assert result.stats.accepted > 0


def test_a_drafter_that_did_not_pay_is_left_alone_for_a_while_and_then_tried_again():
    """It is wrong at first and right later; while it is paused it is not asked at all."""
    wrong = toy.Scripted(((1, *[0] * 130, *[(2 + i) % 8 for i in range(130, 400)]),), 3)
    object.__setattr__(wrong, "always_drafts", True)
    result = sx.generate(MODEL, [1], drafter=wrong, max_new_tokens=400, adaptive=True)
    accepted = result.accepted
    assert not accepted[:130].any()
    assert accepted[300:].mean() > 0.5
    assert result.stats.drafted < 40 + 3 * 100


@pytest.mark.slow
def test_whether_a_drafter_is_asked_does_not_depend_on_neighbours():
    """A request for which no draft pays beside one for which all do; sampled by the token rule."""
    network = toy.Markov()
    logits = toy.random_logits(network)
    logits[4:] = toy.cycle_logits()[4:]  # from 4 to 7 all is certain
    logits[:4, 4:] = -50.0
    logits[7] = np.roll(logits[7], 4)
    drafter = sx.DraftModel(toy.model(network, np.roll(logits[:4], 1, axis=1).repeat(2, axis=0)), 3)
    costs = sx.StepCosts((0, 1, 3), (1.0, 1.3, 1.9))
    kwargs = {"drafter": drafter, "costs": costs, "temperature": 1.0, "max_new_tokens": 150}
    model = toy.model(network, logits)
    alone = sx.generate(model, [1], seed=5, **kwargs)
    beside, _ = sx.generate(model, [[1], [4]], seed=[5, 6], **kwargs)
    assert alone.tokens.tolist() == beside.tokens.tolist()
    assert alone.stats.drafted == beside.stats.drafted
