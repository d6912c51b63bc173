"""The same bytes with speculation on or off, with a real network, whose logits round by width.

Faults seen in public: greedy texts that differ between batched and single steps; prefills of other
shapes that flip the first token.
"""

import numpy as np
import pytest

import speculax as sx

TARGET, NEAR = sx.load("demo"), sx.load("demo-draft")
PROMPTS = ["class Stack:\n", "import os\nimport sys\n", "def f(x):\n    return x\n\n\ndef f(x"]
FULL_EFFORT = True  # compile as users do


def run(drafter, *, slots, temperature, deterministic=True, prompts=PROMPTS):
    results = sx.generate(
        TARGET,
        prompts,
        drafter=drafter,
        verify="coupled",
        temperature=temperature,
        seed=list(range(len(prompts))),
        max_new_tokens=24,
        max_length=60,
        slots=slots,
        deterministic=deterministic,
        log_probs=1,
    )
    # The log-probabilities tell the logits apart to the last bit, which few texts do.
    return [(result.tokens.tolist(), result.log_probs.model.tobytes()) for result in results]


NGRAM, DRAFT_MODEL = sx.NGram(7), sx.DraftModel(NEAR, 3)


@pytest.mark.parametrize(
    ("drafter", "slots", "temperature"),
    [
        pytest.param(NGRAM, 2, 0.8, id="n-gram"),
        pytest.param(DRAFT_MODEL, 1, 0.8, marks=pytest.mark.slow, id="draft model"),
        pytest.param(NGRAM, 1, 0.8, marks=pytest.mark.slow, id="n-gram alone"),
        pytest.param(NGRAM, 2, 0.0, marks=pytest.mark.slow, id="n-gram, greedy"),
        pytest.param(sx.NGram(1), 3, 0.8, marks=pytest.mark.slow, id="n-gram of one"),
        pytest.param(sx.DraftModel(NEAR, 9), 1, 0.8, marks=pytest.mark.slow, id="a longer model"),
        pytest.param(sx.NGram(20), 1, 0.8, marks=pytest.mark.slow, id="longer than a step"),
        pytest.param(sx.EarlyExit(1, 2), 1, 0.8, marks=pytest.mark.slow, id="early exit"),
        pytest.param(DRAFT_MODEL, 2, 0.0, marks=pytest.mark.slow, id="draft model, greedy"),
    ],
)
def test_texts_and_the_logits_behind_them_are_the_same_bytes(drafter, slots, temperature):
    plain = run(None, slots=slots, temperature=temperature)
    assert run(drafter, slots=slots, temperature=temperature) == plain


@pytest.mark.slow
def test_without_a_fixed_width_they_are_not():
    """Else the test above would say nothing."""
    plain = run(None, slots=1, temperature=0.8, deterministic=False)
    other = run(sx.NGram(7), slots=1, temperature=0.8, deterministic=False)
    assert [one[0] for one in plain] == [one[0] for one in other]
    for one, two in zip(plain, other, strict=True):
        assert one != two
        near = [np.frombuffer(log_probs, np.float32) for _, log_probs in (one, two)]
        np.testing.assert_allclose(*near, rtol=0, atol=1e-4)


@pytest.mark.parametrize("place", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_request_alone_in_as_many_rows(place):
    together = run(sx.NGram(7), slots=2, temperature=0.8)
    [alone] = sx.generate(
        TARGET, [PROMPTS[place]], drafter=sx.NGram(7), verify="coupled", temperature=0.8,
        seed=[place], max_new_tokens=24, max_length=60, slots=2, deterministic=True, log_probs=1,
    )  # fmt: skip
    assert alone.tokens.tolist() == together[place][0]
    assert alone.log_probs.model.tobytes() == together[place][1]


@pytest.mark.slow
def test_the_width_is_a_setting_of_its_own():
    """Drafts have one token less, and plain decoding reads as many."""
    narrow = sx.generate(
        TARGET, PROMPTS[2], drafter=sx.NGram(7), max_new_tokens=24, deterministic=True, step_width=3
    )
    assert len(narrow.stats.drafted_by_position) == 2
    single = sx.generate(
        TARGET, PROMPTS[2], drafter=sx.NGram(7), max_new_tokens=24, deterministic=True, step_width=1
    )
    assert single.stats.drafted == 0
    assert single.text == narrow.text
