"""What a rule does not need it does not do: rows are normalised up to where it stops, and no more.

Counted on CPU, where rows stay lazy, as the program runs: laws are made to say which of their rows
are worked on.
"""

import jax
import numpy as np
import pytest

import speculax as sx
from speculax.flat_laws import FlatLaw

BATCH, DRAFTS, VOCAB = 6, 4, 700
NORMALIZED, READ = [], []  # pairs of the number of rows of a law, and the row


@pytest.fixture(autouse=True)
def _watch(monkeypatch):
    """What is traced here is found again by nobody else, as the vocabulary is of this module."""
    normalizer, scores = FlatLaw.normalizer, FlatLaw.scores

    def watched_normalizer(law, row):
        if law.normalizers is None:
            jax.debug.callback(lambda row: NORMALIZED.append((law.num_rows, row)), row)
        return normalizer(law, row)

    def watched_scores(law, row, start, size):
        if size == VOCAB:  # a row as a whole
            jax.debug.callback(lambda row: READ.append((law.num_rows, row)), row)
        return scores(law, row, start, size)

    monkeypatch.setattr(FlatLaw, "normalizer", watched_normalizer)
    monkeypatch.setattr(FlatLaw, "scores", watched_scores)
    jax.config.update("jax_disable_most_optimizations", True)  # it is compiled in less time
    _forget()
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def _forget():
    jax.effects_barrier()
    NORMALIZED.clear()
    READ.clear()


def counts(seen):
    """How often each row of the target and of the draft was met, (B, G+1) and (B, G)."""
    jax.effects_barrier()
    of_target, of_draft = (np.zeros((BATCH, n), int) for n in (DRAFTS + 1, DRAFTS))
    for num_rows, row in seen:
        (of_target if num_rows == of_target.size else of_draft).flat[row] += 1
    return of_target, of_draft


# How many draft tokens of each row are kept, and how many there are.
STOPS = np.array([0, 1, 2, 3, 4, 2])
LENGTHS = np.array([4, 4, 4, 4, 4, 2], np.int32)
TOKENS = np.array([[1, 2, 3, 4]] * BATCH, np.int32)
# The normalisers needed by a rule that goes from left to right: those up to the stop, one draft
# less where nothing stopped it.
TARGETS = np.arange(DRAFTS + 1) <= STOPS[:, None]
JUDGED = np.arange(DRAFTS) < np.minimum(STOPS + 1, LENGTHS)[:, None]
AT_STOP = np.arange(DRAFTS + 1) == STOPS[:, None]


def case(settings=(), never_kept=-np.inf):
    """Drafts that are the target's likeliest token up to the stop, and there have no mass."""
    rng = np.random.default_rng(3)
    target, draft = (
        rng.normal(size=(BATCH, n, VOCAB)).astype(np.float32) for n in (DRAFTS + 1, DRAFTS)
    )
    for b, i in np.ndindex(TOKENS.shape):
        target[b, i, TOKENS[b, i]] = 30.0 if i < STOPS[b] else never_kept
    kwargs = {name: np.full(BATCH, value, np.float32) for name, value in settings}
    return (
        TOKENS,
        sx.law_from_logits(draft, **kwargs),
        sx.law_from_logits(target, **kwargs),
        np.full((BATCH, DRAFTS), 0.5, np.float32),
        np.full(BATCH, 0.5, np.float32),
    )


def run(rule, *args, **kwargs):
    """How often each row of the target and of the draft was normalised."""
    verdict = rule(*args, draft_lengths=LENGTHS, **kwargs)
    np.testing.assert_array_equal(verdict["num_accepted"], STOPS)
    return counts(NORMALIZED)


def test_what_is_counted_is_what_is_done():
    """All rows, by a rule that normalises first; each once."""

    @jax.jit
    def eager(ids, draft, target, accept, sample, draft_lengths):
        return sx.verify_token(
            ids, draft.normalize(), target.normalize(), accept, sample, draft_lengths=draft_lengths
        )

    target, draft = run(eager, *case())
    assert target.tolist() == [[1] * (DRAFTS + 1)] * BATCH
    assert draft.tolist() == [[1] * DRAFTS] * BATCH


@pytest.mark.parametrize("settings", [(), (("temperature", 0.7), ("top_p", 0.9))])
def test_token_verification_normalises_up_to_the_first_failure(settings):
    target, draft = run(sx.verify_token, *case(settings))
    np.testing.assert_array_equal(target, TARGETS)
    np.testing.assert_array_equal(draft, JUDGED)


def test_block_verification_normalises_until_its_ratio_is_zero():
    """From then on no prefix can be held; as long as it is not, all are judged together."""
    target, draft = run(sx.verify_block, *case())
    np.testing.assert_array_equal(target, TARGETS)
    np.testing.assert_array_equal(draft, JUDGED)


def test_block_verification_normalises_all_drafts_that_it_may_hold():
    """A token that is unlikely, not impossible, stops the token rule only."""
    arguments = case(never_kept=-20.0)
    np.testing.assert_array_equal(run(sx.verify_token, *arguments)[0], TARGETS)
    _forget()
    target, draft = run(sx.verify_block, *arguments)
    np.testing.assert_array_equal(target, np.arange(DRAFTS + 1) <= LENGTHS[:, None])
    np.testing.assert_array_equal(draft[:5] > 0, True)


@pytest.mark.parametrize("rule", [sx.verify_token, sx.verify_block])
def test_normalisers_that_are_supplied_are_not_computed(rule):
    ids, draft, target, accept, sample = case()
    given = draft.normalize()
    _forget()
    of_target, of_draft = run(rule, ids, given, target, accept, sample)
    np.testing.assert_array_equal(of_target, TARGETS)
    assert not of_draft.any()


def coupled(ids, draft, target, accept, sample, draft_lengths):
    return sx.verify_coupled(ids, target, seeds=5, positions=9, draft_lengths=draft_lengths)


@pytest.mark.parametrize("rule", [sx.verify_greedy, sx.verify_sampled, coupled])
def test_rules_that_follow_the_target_normalise_nothing_and_read_up_to_the_stop(rule):
    target, draft = run(rule, *case())
    assert not target.any()
    assert not draft.any()
    of_target, of_draft = counts(READ)
    np.testing.assert_array_equal(of_target > 0, TARGETS)
    assert not of_draft.any()


@pytest.mark.parametrize("rule", [sx.verify_token, sx.verify_block])
def test_no_row_beyond_the_stop_is_read(rule):
    run(rule, *case())
    of_target, of_draft = counts(READ)
    np.testing.assert_array_equal(of_target > 0, TARGETS)
    np.testing.assert_array_equal(of_draft > 0, JUDGED)


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        (sx.verify_lossy_typical, TARGETS),
        (sx.verify_lossy_thresholds, TARGETS),
        (sx.verify_lossy_top_k, AT_STOP),
    ],
)
def test_lossy_rules_read_the_target_up_to_the_first_failure(rule, needed):
    target, draft = run(rule, *case())
    np.testing.assert_array_equal(target > 0, needed)
    assert not draft.any()
    of_target, of_draft = counts(READ)
    np.testing.assert_array_equal(of_target > 0, TARGETS)
    assert not of_draft.any()


def test_synthetic_acceptance_reads_one_row():
    ids, draft, target, _, sample = case()
    accept = np.where(np.arange(DRAFTS) < STOPS[:, None], 0.0, 0.99).astype(np.float32)
    target, draft = run(sx.verify_lossy_synthetic, ids, draft, target, accept, sample)
    np.testing.assert_array_equal(target, AT_STOP)
    of_target, of_draft = counts(READ)
    np.testing.assert_array_equal(of_target > 0, AT_STOP)
    assert not of_draft.any()
