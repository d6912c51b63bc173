"""What a request gets depends on its prompt and settings alone, not on its neighbours.

Faults seen in public: seeds of requests ignored, or one for all; rows with seeds disturbing each
other; rows without drafts using up noise; stale keys in rows that accept fewer tokens than others;
a greedy row beside sampled ones that is not greedy; unseeded calls that repeat each other; sampled
drafts that corrupt batches only.
"""

import numpy as np
import pytest

import speculax as sx
from tests import toy

FULL_EFFORT = True  # compile as users do: these tests ask for equality to the last bit

EOS = 7
MEMORY = toy.LongMemory()
LOGITS = toy.random_logits(MEMORY, seed=1, spread=2.0)
LOGITS[:, :3] += 3.0  # repeats itself, so that some drafts hold
LOGITS[:, EOS] -= 3.0
MODEL = toy.model(MEMORY, LOGITS)
NGRAM = sx.NGram(7)
REPEATING = [1, 2, 3, 4] * 6


def request(prompt, temperature, seed, max_new_tokens=40):
    return {
        "prompt": prompt,
        "temperature": temperature,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }


REQUESTS = [
    request([4], 1.0, 11),
    request(REPEATING, 0.0, 12),  # greedy beside sampled ones
    request([0, 5] * 40, 0.3, 13, 60),  # a long prompt: the others are padded
    request([2, 2, 2], 2.0, 14, 7),
]
NEIGHBOURS = [
    request([7, 7], 1.5, 99, 33),
    request([6] * 100, 0.0, 98, 80),
    request([0], 1.0, 11, 64),
]


def run(requests, drafter=NGRAM, model=MODEL):
    merged = {key: [one[key] for one in requests] for key in requests[0]}
    return sx.generate(model, merged.pop("prompt"), drafter=drafter, eos_ids=(EOS,), **merged)


def outcome(result):
    """All that is not time."""
    counts = result.stats.drafted_by_position, result.stats.accepted_by_position
    tokens, flags = result.tokens.tolist(), result.accepted.tolist()
    return tokens, flags, result.stop_reason, result.stats.steps, counts


@pytest.fixture(scope="module")
def alone():
    return [outcome(run([one])[0]) for one in REQUESTS]


def test_the_requests_differ_in_what_they_do(alone):
    """Else the comparisons below would mean little."""
    assert len({tuple(tokens) for tokens, *_ in alone}) == len(REQUESTS)
    assert alone[1][0] == until_eos(toy.greedy_text(MEMORY, LOGITS, REPEATING, 40))
    drafted = [sum(counts[0]) for *_, counts in alone]
    assert len(set(drafted)) == len(REQUESTS)
    assert any(any(flags) for _, flags, *_ in alone)


def until_eos(text):
    return text[: text.index(EOS) + 1] if EOS in text else text


def test_a_request_in_a_batch_is_as_alone(alone):
    assert [outcome(result) for result in run(REQUESTS)] == alone


def test_the_order_of_a_batch_does_not_matter(alone):
    order = [2, 0, 3, 1]
    results = run([REQUESTS[i] for i in order])
    assert [outcome(result) for result in results] == [alone[i] for i in order]


@pytest.mark.parametrize("kept", range(4))
def test_other_neighbours_change_nothing(kept, alone):
    """Neither their texts, nor how much they draft, nor when they end."""
    requests = list(NEIGHBOURS)
    requests.insert(kept, REQUESTS[kept])
    assert outcome(run(requests)[kept]) == alone[kept]


def test_sampled_drafts_are_as_alone():
    """The proposals too are a matter of the request's own noise."""
    network = toy.Markov()
    logits = toy.random_logits(network, seed=5)
    drafter = toy.sampling_drafter(0.7 * toy.softmax(logits) + 0.3 / toy.VOCAB)
    requests = [request([i], 0.8, 20 + i, 30) for i in range(4)]
    model = toy.model(network, logits)
    together = [outcome(result) for result in run(requests, drafter, model)]
    assert together[1:3] == [outcome(run([one], drafter, model)[0]) for one in requests[1:3]]
    assert len({tuple(tokens) for tokens, *_ in together}) == 4
    assert {flag for _, flags, *_ in together for flag in flags} == {True, False}


def test_one_seed_is_the_same_seed_for_each():
    first, second, third, other = run([request([3], 1.0, seed) for seed in (5, 5, 5, 6)])
    assert first.tokens.tolist() == second.tokens.tolist() == third.tokens.tolist()
    assert first.tokens.tolist() != other.tokens.tolist()
    shared = sx.generate(
        MODEL, [[3]] * 4, drafter=NGRAM, eos_ids=(EOS,), max_new_tokens=40, temperature=1.0, seed=5
    )
    assert [result.tokens.tolist() for result in shared] == [first.tokens.tolist()] * 4
    assert [result.seed for result in shared] == [5] * 4


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 - 1])
def test_any_seed_of_32_bits_will_do(seed):
    results = run([request([3], 1.0, one) for one in (seed, 1, seed, 2)])
    assert results[0].seed == seed
    assert results[0].tokens.tolist() == results[2].tokens.tolist()
    assert results[0].tokens.tolist() != results[1].tokens.tolist()


def test_without_a_seed_each_request_and_call_gets_a_fresh_one_that_replays():
    flat = np.zeros_like(LOGITS)  # texts of 64 tokens collide once in 2**179
    flat[:, EOS] = -np.inf

    def call(seed=None):
        return sx.generate(
            toy.model(MEMORY, flat),
            [[3]] * 4,
            drafter=NGRAM,
            eos_ids=(EOS,),
            max_new_tokens=64,
            temperature=1.0,
            seed=seed,
        )

    first, second = call(), call()
    texts = [result.tokens.tolist() for result in first + second]
    assert len({tuple(text) for text in texts}) == 8
    again = call([result.seed for result in first])
    assert [result.tokens.tolist() for result in again] == texts[:4]
    assert [result.seed for result in again] == [result.seed for result in first]


def test_greedy_rows_do_not_depend_on_seeds():
    *results, sampled = run([*(request([3], 0.0, seed) for seed in range(3)), request([3], 1.0, 3)])
    text = until_eos(toy.greedy_text(MEMORY, LOGITS, [3], 40))
    assert [result.tokens.tolist() for result in results] == [text] * 3
    assert sampled.tokens.tolist() != text


def test_the_lowest_id_wins_a_tie_in_greedy_rows_also_beside_sampled_ones():
    tied = np.zeros_like(LOGITS)
    tied[:, [2, 5]] = 1.0
    requests = [request([3], 0.0, 1), *(request([3], 1.0, seed) for seed in (2, 3, 4))]
    greedy, *sampled = run(requests, model=toy.model(MEMORY, tied))
    assert greedy.tokens.tolist() == [2] * 40
    assert {token for result in sampled for token in result.tokens.tolist()} > {2, 5}
