"""Draft lengths from 0 to beyond the text, prompts from one token to several pieces of prefill."""

import pytest

import speculax as sx
from speculax.prefill import PIECE
from tests import toy

MEMORY = toy.LongMemory()
LOGITS = toy.random_logits(MEMORY, seed=2)


@pytest.mark.parametrize("draft_length", [0, 1, 40])
def test_any_draft_length_gives_the_same_text(draft_length):
    prompt, num_new = [0, 1, 2, 3, 4, 5, 6, 7, 0], 150
    result = sx.generate(
        toy.cycle(), prompt, drafter=sx.NGram(draft_length), max_new_tokens=num_new, eos_ids=()
    )
    assert result.tokens.tolist() == [(1 + i) % 8 for i in range(num_new)]
    stats = result.stats
    assert len(stats.drafted_by_position) == draft_length
    assert stats.accepted == stats.drafted == num_new - stats.steps
    if draft_length == 0:
        assert stats.steps == num_new
    elif draft_length == 1:
        assert stats.steps == num_new // 2
    else:  # the draft grows while it holds, up to the longest that pays
        assert stats.drafted_by_position[30] > 0
        assert stats.steps < 20


def test_one_or_two_tokens_with_a_longer_draft():
    drafter = sx.NGram(40)
    prompt = [0, 1, 2, 3, 4, 5, 6, 7, 0]
    for cap in (1, 2, 3):
        result = sx.generate(toy.cycle(), prompt, drafter=drafter, max_new_tokens=cap, eos_ids=())
        assert result.tokens.tolist() == [1, 2, 3][:cap]
        assert result.stats.steps == 1
        assert result.stats.drafted == cap - 1


@pytest.mark.parametrize("drafter", [None, sx.NGram(3)], ids=["plain", "n-gram"])
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([1, 2, PIECE - 1, PIECE], id="one piece"),
        pytest.param([PIECE + 1, PIECE, 1, 2], id="a little more"),
        pytest.param([2 * PIECE, 2 * PIECE + 1, 220, 5], id="several pieces"),
    ],
)
def test_prompts_of_any_length_are_read_in_full(lengths, drafter):
    """The state of the text depends on every token, so one that is lost or read twice shows."""
    prompts = [[(i * i + length) % 8 for i in range(length)] for length in lengths]
    results = sx.generate(
        toy.model(MEMORY, LOGITS), prompts, drafter=drafter, max_new_tokens=20, eos_ids=()
    )
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens.tolist() == toy.greedy_text(MEMORY, LOGITS, prompt, 20)


@pytest.mark.parametrize("length", [255, 256, 257])
def test_texts_that_just_fill_their_slots(length):
    """Slots are made in hundreds; the last ones are as good as the first."""
    prompt = [(3 * i) % 8 for i in range(length - 24)]
    result = sx.generate(
        toy.model(MEMORY, LOGITS), prompt, drafter=sx.NGram(3), max_new_tokens=24, eos_ids=()
    )
    assert result.tokens.tolist() == toy.greedy_text(MEMORY, LOGITS, prompt, 24)
