"""The n-gram drafter against a naive scan of the text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import speculax as sx
from tests import toy

SLOTS, BATCH, WIDTH = 24, 4, 5
MAX_NGRAM = 3


def naive(text, num_drafts, max_ngram=MAX_NGRAM):
    """The draft for a text: the longest suffix that occurred before, where it last did."""
    for size in range(min(max_ngram, len(text) - 1), 0, -1):
        suffix = text[len(text) - size :]
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == suffix:
                grown = list(text)
                for i in range(num_drafts):
                    grown.append(grown[end + i])  # which may have been proposed itself
                return grown[len(text) :]
    return []


def propose(drafter, texts, width=WIDTH, slots=SLOTS, junk=0):
    """The drafts for a batch of texts, as lists; behind a text there is junk."""
    tokens = np.full((len(texts), slots), junk, np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    draft = _propose(drafter, jnp.asarray(tokens), lengths, width)
    assert draft.probs is None
    assert draft.tokens.shape == (len(texts), width)
    assert draft.tokens.dtype == draft.lengths.dtype == jnp.int32
    return [
        row[:length]
        for row, length in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)
    ]


def _propose(drafter, tokens, lengths, width):
    state = drafter.init(tokens, lengths)
    return drafter.propose(state, toy.round_of(tokens, lengths, width))[0]


_propose = jax.jit(_propose, static_argnums=(0, 3))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=SLOTS - 2), min_size=BATCH, max_size=BATCH
    ),
    st.sampled_from([-1, 0, 1]),
)
def test_drafts_are_those_of_a_naive_scan(texts, junk):
    assert propose(sx.NGram(WIDTH), texts, junk=junk) == [naive(text, WIDTH) for text in texts]


@pytest.mark.parametrize("max_ngram", [1, 2, 5])
def test_the_longest_suffix_may_be_of_any_length(max_ngram):
    rng = np.random.default_rng(0)
    drafter = sx.NGram(WIDTH, max_ngram=max_ngram)
    seen = set()
    for _ in range(50):
        texts = [rng.integers(0, 3, size=rng.integers(1, 20)).tolist() for _ in range(BATCH)]
        expected = [naive(text, WIDTH, max_ngram) for text in texts]
        assert propose(drafter, texts) == expected
        seen.update(
            expected[b] != naive(texts[b], WIDTH, other)
            for b in range(BATCH)
            for other in (1, 2, 3)
        )
    assert seen == {True, False}  # the setting makes a difference


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        pytest.param([5], [], id="one token"),
        pytest.param([5, 6], [], id="two that differ"),
        pytest.param([5, 5], [5, 5, 5, 5, 5], id="two that are equal"),
        pytest.param([5, 6, 7, 8], [], id="no match"),
        pytest.param([1, 2, 9, 1], [2, 9, 1, 2, 9], id="a period goes on into the draft"),
        pytest.param([1, 2, 3, 1, 5, 1], [5, 1, 5, 1, 5], id="the most recent match"),
        pytest.param([1, 2, 3, 9, 2, 4, 1, 2], [3, 9, 2, 4, 1], id="the longest match first"),
        pytest.param([4, 1, 2, 3, 7, 9, 1, 2, 3, 8, 4, 1, 2, 3], [7, 9, 1, 2, 3], id="up to 4"),
    ],
)
def test_drafts_by_hand(text, draft):
    drafter = sx.NGram(WIDTH, max_ngram=4 if draft[:1] == [7] else MAX_NGRAM)
    assert propose(drafter, [text] * BATCH) == [draft] * BATCH


def test_an_empty_text_has_no_draft():
    assert propose(sx.NGram(WIDTH), [[], [1, 1], [], []])[::2] == [[], []]


def test_rows_are_independent():
    texts = [[1, 2, 3, 1, 2], [1, 1, 1], [7], [2, 1, 2, 1, 2]]
    together = propose(sx.NGram(WIDTH), texts)
    for order in ([3, 2, 1, 0], [1, 0, 3, 2]):
        assert propose(sx.NGram(WIDTH), [texts[i] for i in order]) == [together[i] for i in order]


def test_a_wider_draft_only_adds_to_a_narrower_one():
    texts = [[1, 2, 3, 1, 2], [1, 1, 1], [7], [2, 1, 2, 1, 2]]
    wide = propose(sx.NGram(WIDTH), texts)
    assert propose(sx.NGram(WIDTH), texts, width=2) == [row[:2] for row in wide]


def test_a_draft_of_no_tokens():
    drafter = sx.NGram(0)
    draft = _propose(drafter, jnp.ones((BATCH, SLOTS), jnp.int32), jnp.full((BATCH,), 5), 0)
    assert draft.tokens.shape == (BATCH, 0)
    assert draft.lengths.tolist() == [0] * BATCH


def test_a_full_history_is_read_to_its_end():
    text = [*range(3, 3 + SLOTS - 3), 3, 4, 5]
    assert len(text) == SLOTS
    assert propose(sx.NGram(WIDTH), [text]) == [[6, 7, 8, 9, 10]]


def test_the_defaults():
    assert (sx.NGram().draft_length, sx.NGram().max_ngram) == (15, 3)
    assert hash(sx.NGram(4)) == hash(sx.NGram(4))
