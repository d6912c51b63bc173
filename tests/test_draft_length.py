"""Draft lengths follow what became of earlier drafts."""

import pytest

from speculax.draft_length import DraftLength, draft_widths, step_cost


@pytest.mark.parametrize(
    ("draft_length", "widths"),
    [
        (0, (0,)),
        (1, (0, 1)),
        (2, (0, 2)),
        (3, (0, 3)),
        (4, (0, 3, 4)),
        (7, (0, 3, 7)),
        (15, (0, 3, 7, 15)),
        (40, (0, 3, 7, 15, 31, 40)),
    ],
)
def test_widths_are_few_and_end_with_the_length_asked_for(draft_length, widths):
    assert draft_widths(draft_length) == widths


def test_a_plain_step_is_the_unit_of_cost_and_wider_ones_cost_more():
    assert step_cost(0) == 1
    costs = [step_cost(width) for width in (0, 1, 3, 7, 15)]
    assert costs == sorted(set(costs))


def lengths_after(updates, widths=(0, 3, 7, 15)):
    policy = DraftLength(widths)
    lengths = [policy.current]
    for hits, misses in updates:
        policy.update(hits, misses)
        lengths.append(policy.current)
    return lengths


def test_it_starts_with_a_short_draft_to_learn_whether_it_pays():
    assert lengths_after([]) == [3]
    assert lengths_after([], widths=(0,)) == [0]


def test_hopeless_drafts_end_within_two_chunks():
    assert lengths_after([(0, 4)] * 2)[-1] == 0


def test_perfect_drafts_grow_to_the_longest():
    lengths = [3]
    policy = DraftLength((0, 3, 7, 15))
    for _ in range(5):
        policy.update(4 * policy.current, 0)
        lengths.append(policy.current)
    assert lengths == sorted(lengths)
    assert lengths[-1] == 15


def test_one_bad_chunk_after_many_good_ones_does_not_end_drafting():
    assert lengths_after([(12, 0)] * 5 + [(0, 4)])[-1] > 0


def test_it_comes_back_when_drafts_would_hold_again():
    given_up = [(0, 4)] * 6
    assert lengths_after(given_up)[-1] == 0
    assert lengths_after(given_up + [(4, 0)] * 6)[-1] > 0


def test_better_drafts_are_never_shorter():
    lengths = [lengths_after([(hits, 4)] * 3)[-1] for hits in range(0, 61, 2)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] == 15


@pytest.mark.parametrize("widths", [(0,), (0, 1), (0, 3, 5)])
def test_the_length_is_always_one_of_the_widths(widths):
    for updates in ([(0, 4)] * 3, [(50, 0)] * 3, [(2, 2)] * 3, [(0, 0)] * 40):
        assert set(lengths_after(updates, widths)) <= set(widths)
