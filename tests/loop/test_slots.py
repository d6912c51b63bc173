"""More requests than rows: those that end make way for others, and each gets what it gets alone.

Faults seen in public: a failing request takes its batch along; what a finished request left in its
row disturbs the next; requests lost or answered twice.
"""

import numpy as np
import pytest

import speculax as sx
from tests import toy

FULL_EFFORT = True  # compile as users do: these tests ask for equality to the last bit

V, EOS = 8, 7
NETWORK = toy.LongMemory(vocab_size=V)
LOGITS = toy.random_logits(NETWORK, seed=1, spread=2.0)
TARGET = toy.model(NETWORK, LOGITS, eos_ids=(EOS,))
DRAFT = sx.DraftModel(toy.model(NETWORK, LOGITS + toy.random_logits(NETWORK, seed=2)), 3)
NUM = 12
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 7, RNG.integers(1, 30)).tolist() for _ in range(NUM)]
SETTINGS = {
    "temperature": RNG.choice([0.0, 0.7, 1.0], NUM).tolist(),
    "max_new_tokens": RNG.integers(0, 60, NUM).tolist(),
    "repetition_penalty": RNG.choice([1.0, 1.3], NUM).tolist(),
    "top_k": RNG.choice([0, 4], NUM).tolist(),
    "seed": list(range(NUM)),
}


def run(numbers, **kwargs):
    settings = {name: [values[i] for i in numbers] for name, values in SETTINGS.items()}
    kwargs = {"drafter": DRAFT, "max_length": 100, "deterministic": True} | kwargs
    return sx.generate(TARGET, [PROMPTS[i] for i in numbers], **(settings | kwargs))


def outcome(result):
    stats = result.stats
    return result.tokens.tolist(), result.accepted.tolist(), result.stop_reason, stats.steps


# With a penalty and a cut-off in use, for one request as for many.
USED = {"temperature": 0.5, "repetition_penalty": 1.2, "top_k": 5}


def alone(number):
    """With an idle request beside it that uses all settings, so that the program is the same."""
    settings = {name: [values[number]] for name, values in SETTINGS.items()}
    idle = USED | {"max_new_tokens": 0, "seed": 0}
    both = {name: [*settings[name], idle[name]] for name in settings}
    return sx.generate(
        TARGET, [PROMPTS[number], [1]], drafter=DRAFT, max_length=100, deterministic=True, slots=3,
        **both,
    )[0]  # fmt: skip


def test_each_is_as_alone_and_they_come_in_order():
    together = run(range(NUM), slots=3)
    assert len({tuple(result.tokens) for result in together}) > NUM // 2
    for number in range(NUM):
        assert outcome(together[number]) == outcome(alone(number))


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 12])
def test_the_number_of_rows_changes_nothing_but_rounding(slots):
    together = run(range(NUM), slots=3)
    other = run(range(NUM), slots=slots, deterministic=False)
    same = [a.tokens.tolist() == b.tokens.tolist() for a, b in zip(together, other, strict=True)]
    assert all(same)


def test_a_failing_request_leaves_its_row_to_the_next():
    logits = toy.cycle_logits()
    logits[5] = np.nan
    results = sx.generate(
        toy.model(toy.Markov(), logits), [[4], [6], [4], [6], [6]], slots=1, max_new_tokens=3
    )
    assert [result.stop_reason for result in results] == ["error", "length"] * 2 + ["length"]
    assert all(result.tokens.tolist() == [7, 0, 1] for result in (results[1], results[4]))


def test_a_cancelled_request_frees_its_row():
    stream = sx.stream(toy.cycle(), [[0], [1], [2], [3]], slots=1, max_new_tokens=200, seed=0)
    stream.cancel(2)
    seen = []
    for chunk in stream:
        for new in chunk:
            seen.append(new.request)
            if new.request == 0:
                stream.cancel(0)
    results = stream.results()
    assert [r.stop_reason for r in results] == ["cancelled", "length", "cancelled", "length"]
    assert [len(r.tokens) for r in results] == [4, 200, 0, 200]
    assert (set(seen), seen.count(2)) == ({0, 1, 2, 3}, 1)


def test_who_is_cancelled_at_the_end_of_another_makes_no_token():
    """Also if it has just taken a row, and if that other ended without a chunk."""
    stream = sx.stream(toy.cycle(), [[1], [2], [3]], max_new_tokens=[0, 40, 0], slots=1)
    for chunk in stream:
        if any(new.request == 0 for new in chunk):
            stream.cancel(1)
    results = stream.results()
    assert [(len(r.tokens), r.stop_reason) for r in results] == [
        (0, "length"), (0, "cancelled"), (0, "length")
    ]  # fmt: skip


@pytest.mark.parametrize("number", [-1, 4, "a"])
def test_who_is_not_there_cannot_be_cancelled(number):
    stream = sx.stream(toy.cycle(), [[0], [1], [2], [3]])
    with pytest.raises(IndexError, match="request must be from 0 to 3"):
        stream.cancel(number)


def test_every_token_is_handed_out_once_and_in_order():
    made = {i: [] for i in range(NUM)}
    ended = []

    def note(new):
        made[new.request] += new.tokens
        if new.stop_reason is not None:
            ended.append(new.request)

    results = run(range(NUM), slots=4, on_tokens=note)
    for i, result in enumerate(results):
        assert made[i] == result.tokens.tolist()
    assert sorted(ended) == list(range(NUM))


def test_no_requests_no_results():
    assert sx.generate(TARGET, []) == []
