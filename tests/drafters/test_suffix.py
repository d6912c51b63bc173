"""The suffix drafter against a naive search of the text and of what it remembers."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import speculax as sx
from tests import toy

SLOTS, BATCH, WIDTH, MAX = 24, 4, 5, 4


def naive(text, history=(), num_drafts=WIDTH, max_suffix=MAX, tokens_per_match=4):
    """The most frequent continuation of the longest suffix, the latest of those that tie."""
    sources = [*history, text]
    for size in range(min(max_suffix, len(text)), 0, -1):
        suffix = text[len(text) - size :]
        at = [
            (k, end)
            for k, source in enumerate(sources)
            for end in range(size, len(source) + (k < len(history)))
            if source[end - size : end] == suffix
        ]
        if at:
            break
    else:
        return []
    grown, draft = list(text), []
    while len(draft) < min(num_drafts, tokens_per_match * size):
        following = [
            (source[end], k, end)
            for k, end in at
            if end < len(source := grown if k == len(history) else history[k])
        ]
        if not following:
            break
        votes = Counter(token for token, *_ in following)
        draft.append(max(following, key=lambda one: (votes[one[0]], one[1:]))[0])
        at = [(k, end + 1) for token, k, end in following if token == draft[-1]]
        grown.append(draft[-1])
    return draft


def propose(drafter, texts, junk=0):
    """The drafts for a batch of texts, as lists; behind a text there is junk."""
    tokens = np.full((len(texts), SLOTS), junk, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    draft = _propose(drafter, jnp.asarray(tokens), lengths)
    assert draft.probs is None
    assert draft.tokens.dtype == draft.lengths.dtype == jnp.int32
    pairs = zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)
    return [row[:length] for row, length in pairs]


@jax.jit
def _propose(drafter, tokens, lengths):
    return drafter.propose((), toy.round_of(tokens, lengths, WIDTH))[0]


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=SLOTS - WIDTH - 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(TEXT, min_size=BATCH, max_size=BATCH), st.sampled_from([-1, 0, 1]))
def test_drafts_are_those_of_a_naive_search(texts, junk):
    drafter = sx.Suffix(WIDTH, max_suffix=MAX)
    assert propose(drafter, texts, junk) == [naive(text) for text in texts]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(TEXT, min_size=BATCH, max_size=BATCH), st.lists(TEXT, max_size=4))
def test_earlier_texts_count_as_well(texts, earlier):
    drafter = sx.Suffix(WIDTH, max_suffix=MAX, share_history=True, history=np.full(200, -1))
    for text in earlier:
        drafter = drafter.remember(np.array(text))
    assert propose(drafter, texts) == [naive(text, earlier) for text in texts]


def test_the_oldest_texts_fall_out_of_the_history():
    drafter = sx.Suffix(WIDTH, share_history=True, history=np.full(6, -1))
    for text in ([1, 2, 3], [4, 5], [6]):
        drafter = drafter.remember(np.array(text))
    assert drafter.history.tolist() == [-1, 4, 5, -1, 6, -1]
    assert propose(drafter, [[1], [4]]) == [[], [5]]


def test_one_of_two_drafters_may_share_its_history():
    both = sx.FirstMatch(sx.Suffix(2, share_history=True), sx.NGram(2)).remember(np.array([5, 6]))
    assert both.first.history.tolist()[-3:] == [5, 6, -1]


def test_what_is_not_shared_is_not_remembered():
    drafter = sx.Suffix(WIDTH)
    assert drafter.remember(np.array([1, 2, 3])) is drafter


@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.slow), True])
def test_requests_copy_from_earlier_ones_only_if_they_may(shared):
    network = toy.LongMemory(modulus=499)
    model = toy.model(network, toy.random_logits(network, seed=3))
    prompt = [1, 2, 3]
    first, second = sx.generate(
        model, [prompt, prompt], drafter=sx.Suffix(share_history=shared), slots=1, max_new_tokens=60
    )
    assert first.tokens.tolist() == second.tokens.tolist()
    if shared:
        assert second.stats.accepted > first.stats.accepted + 20
    else:
        assert second.stats.accepted == first.stats.accepted


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"draft_length": -1}, r"draft_length .*from 0 to 512.*-1"),
        ({"max_suffix": 0}, r"max_suffix .*from 1 to 64.*0"),
        ({"tokens_per_match": 1.5}, r"tokens_per_match .*from 1 to 512.*1.5"),
    ],
)
def test_bad_numbers_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        sx.Suffix(**kwargs)
