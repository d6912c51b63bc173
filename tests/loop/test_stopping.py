"""Where a text ends: at an end token anywhere in a run of accepted drafts, or at its cap.

Faults seen in public: an end token accepted inside a run and the text going on; more tokens than
asked for; an end token that was only proposed ending the text; counters that run on after the end;
crashes when there are no end tokens.
"""

import numpy as np
import pytest

import speculax as sx
from tests import toy

EOS, MARGIN = 15, 10  # tokens before EOS in the longest text, caps below it
COUNTING = toy.Markov(vocab_size=16)
PERFECT = toy.perfect_drafter(toy.cycle_logits(16))


def expected(slot, cap, draft_length=3):
    """The counts of a text whose end token is its token number `slot`, all drafts right."""
    length, steps, drafted, flags = 0, 0, [0] * draft_length, []
    end = min(slot + 1, cap)
    while length < end:
        asked = min(draft_length, cap - length - 1)
        emitted = min(asked + 1, end - length)
        kept = min(asked, emitted)
        judged = asked if emitted > kept else kept
        for i in range(judged):
            drafted[i] += 1
        flags += [True] * kept + [False] * (emitted - kept)
        length, steps = length + emitted, steps + 1
    return steps, drafted, flags


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_end_tokens_and_caps_at_every_place(temperature):
    cases = [(slot, cap) for slot in range(MARGIN) for cap in range(MARGIN)]
    results = sx.generate(
        toy.cycle(COUNTING),
        [[3, EOS - slot - 1] for slot, _ in cases],
        drafter=PERFECT,
        max_new_tokens=[cap for _, cap in cases],
        temperature=temperature,
        seed=7,
        eos_ids=(EOS,),
    )
    for (slot, cap), result in zip(cases, results, strict=True):
        length = min(slot + 1, cap)
        steps, drafted, flags = expected(slot, cap)
        first = EOS - slot
        assert result.tokens.tolist() == list(range(first, first + length)), (slot, cap)
        assert result.stop_reason == ("eos" if slot < cap else "length"), (slot, cap)
        assert result.accepted.tolist() == flags, (slot, cap)
        stats = result.stats
        assert (stats.steps, stats.emitted) == (steps, length), (slot, cap)
        assert stats.drafted_by_position == tuple(drafted), (slot, cap)
        # All drafts are right: what was judged was kept.
        assert stats.accepted_by_position == tuple(drafted), (slot, cap)
        assert stats.drafted == stats.accepted == sum(flags), (slot, cap)
    # End tokens are met as accepted drafts and as drawn tokens.
    assert {bool(r.accepted[-1]) for r in results if r.stop_reason == "eos"} == {True, False}


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_a_refused_end_token_stops_nothing(temperature):
    prompt = [2]
    text = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    scripts = (
        [*prompt, EOS, 4, 5, *text[3:]],  # refused at once
        [*prompt, 3, EOS, 5, *text[3:]],  # inside a run
        [*prompt, 3, 4, EOS, *text[3:]],  # at the end of one
        [*prompt, EOS, EOS, EOS, EOS, EOS, EOS],  # again and again
    )
    results = sx.generate(
        toy.cycle(COUNTING),
        [prompt] * 4,
        drafter=toy.Scripted(tuple(map(tuple, scripts))),
        max_new_tokens=10,
        temperature=temperature,
        seed=1,
        eos_ids=(EOS,),
    )
    for result in results:
        assert result.tokens.tolist() == text
        assert result.stop_reason == "length"
    assert [result.accepted[:4].tolist() for result in results] == [
        [False, True, True, True],
        [True, False, True, True],
        [True, True, False, True],
        [False, False, False, False],
    ]
    assert results[3].stats.accepted == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_an_end_token_drawn_in_place_of_a_refused_one_stops(temperature):
    """The correction token is the end token, at each place of a draft; what follows is not made."""
    scripts = ((14, 1, 1, 1), (13, 14, 1, 1), (12, 13, 14, 1), (11, 12, 13, 14))
    prompts = [[script[0]] for script in scripts]
    results = sx.generate(
        toy.cycle(COUNTING),
        prompts,
        drafter=toy.Scripted(scripts),
        max_new_tokens=10,
        temperature=temperature,
        seed=1,
        eos_ids=(EOS,),
    )
    for place, result in enumerate(results):
        assert result.tokens.tolist() == [*range(EOS - place, EOS), EOS]
        assert result.accepted.tolist() == [True] * place + [False]
        assert result.stop_reason == "eos"
        assert (result.stats.steps, result.stats.drafted) == (1, 3)
        assert result.stats.accepted_by_position == tuple(int(i < place) for i in range(3))


def test_an_end_token_in_the_prompt_does_not_stop():
    result = sx.generate(
        toy.cycle(COUNTING), [EOS, EOS], drafter=PERFECT, max_new_tokens=5, eos_ids=(EOS,)
    )
    assert result.tokens.tolist() == [0, 1, 2, 3, 4]
    assert result.stop_reason == "length"


@pytest.mark.parametrize(
    ("own", "given", "length"),
    [
        pytest.param((9,), None, 7, id="the model's own"),
        pytest.param((9,), (5, 12), 3, id="the first of two"),
        pytest.param((9,), [12, 5], 3, id="in any order"),
        pytest.param((9,), (), 40, id="none"),
        pytest.param((), None, 40, id="the model has none"),
    ],
)
def test_which_tokens_end_a_text(own, given, length):
    result = sx.generate(
        toy.cycle(COUNTING, eos_ids=own), [2], drafter=PERFECT, max_new_tokens=40, eos_ids=given
    )
    assert result.tokens.tolist() == [(3 + i) % 16 for i in range(length)]
    assert result.stop_reason == ("eos" if length < 40 else "length")


@pytest.mark.parametrize("drafter", [None, PERFECT], ids=["plain", "drafted"])
def test_nothing_asked_for_is_nothing_made(drafter):
    result = sx.generate(toy.cycle(COUNTING), [4, 5], drafter=drafter, max_new_tokens=0)
    assert result.tokens.shape == result.accepted.shape == (0,)
    assert result.tokens.dtype == np.int32
    assert result.stop_reason == "length"
    assert (result.stats.steps, result.stats.emitted) == (0, 0)
    assert np.isnan(result.stats.time_to_first_token)


def test_a_text_that_ends_both_ways_at_once_ended_by_its_token():
    result = sx.generate(
        toy.cycle(COUNTING), [12], drafter=PERFECT, max_new_tokens=3, eos_ids=(EOS,)
    )
    assert result.tokens.tolist() == [13, 14, 15]
    assert result.stop_reason == "eos"


def test_a_row_that_ended_says_nothing_more_while_others_go_on():
    stream = sx.stream(
        toy.cycle(COUNTING),
        [[14], [0]],
        drafter=PERFECT,
        max_new_tokens=[60, 60],
        eos_ids=(EOS,),
    )
    chunks = list(stream)
    assert [new.request for chunk in chunks for new in chunk].count(0) == 1
    ended, went_on = stream.results()
    assert ended.tokens.tolist() == [EOS]
    assert ended.stats.steps == 1
    assert went_on.tokens.tolist() == list(range(1, 16))
