"""Draft laws on some of the tokens, against the dense laws that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.sampler import oracle

BATCH, DRAFTS, VOCAB, ENTRIES = 16, 3, 600, 40
RULES = {"token": jax.jit(sx.verify_token), "block": jax.jit(sx.verify_block)}


def entries(rng, lead, padded=True):
    """Distinct ids in any order, those that the target likes among them; some places empty."""
    rows = []
    for _ in range(int(np.prod(lead))):
        ids = np.append(4 + rng.permutation(VOCAB - 4)[: ENTRIES - 4], np.arange(4))
        ids[: 7 if padded else 0] = -1
        rows.append(rng.permutation(ids))
    return np.array(rows).reshape(*lead, ENTRIES)


def spread(probs, ids):
    """The dense law, (B, G, V)."""
    dense = np.zeros((BATCH, DRAFTS, VOCAB + 1), probs.dtype)
    ids = np.broadcast_to(ids if ids.ndim != 2 else ids[:, None], probs.shape)
    np.put_along_axis(dense, np.where(ids < 0, VOCAB, ids), probs, axis=-1)
    return dense[..., :VOCAB]


def target_and_noise(rng):
    logits = 1.5 * rng.standard_normal((BATCH, DRAFTS + 1, VOCAB))
    logits[..., :4] += 5
    target = oracle.normalized(np.exp(logits)).astype(np.float32)
    accept = 0.6 * rng.random((BATCH, DRAFTS), np.float32)
    lengths = rng.choice([0, 1, 2, 3, 3], BATCH).astype(np.int32)
    return target, accept, rng.random(BATCH, np.float32), lengths


def sampled(dense, rng):
    """Draft tokens from the dense law; some others, and some that are none."""
    cumulative = dense.cumsum(-1, dtype=np.float64)
    threshold = rng.random((BATCH, DRAFTS, 1)) * cumulative[..., -1:]
    ids = (cumulative <= threshold).sum(-1)
    ids = np.where(rng.random(ids.shape) < 0.1, rng.integers(0, VOCAB, ids.shape), ids)
    return np.where(rng.random(ids.shape) < 0.05, -1, ids).astype(np.int32)


def verdict(name, ids, draft, target, accept, sample, lengths):
    out = RULES[name](ids, draft, target, accept, sample, draft_lengths=lengths)
    return np.column_stack([out["num_accepted"], out["tokens"]])


LEADS = {"shared": (), "by row": (BATCH,), "by position": (BATCH, DRAFTS)}


@pytest.mark.parametrize(
    ("name", "lead"),
    [("token", "shared"), ("token", "by row"), ("token", "by position"), ("block", "by position")],
)
def test_sparse_laws_are_their_dense_ones(name, lead):
    """Probabilities of the support: bit for bit, whatever the order of the entries."""
    seen = set()
    for seed in range(6):
        rng = np.random.default_rng([60, seed])
        target, accept, sample, lengths = target_and_noise(rng)
        ids = entries(rng, LEADS[lead])
        probs = rng.gamma(0.5, size=(BATCH, DRAFTS, ENTRIES))
        own = np.broadcast_to(ids if ids.ndim != 2 else ids[:, None], probs.shape)
        probs = oracle.normalized(np.where(own < 0, 0, probs + 5.0 * (own < 4)))
        probs = probs.astype(np.float32)
        dense = spread(probs, ids)
        drafts = sampled(dense, rng)
        rest = target, accept, sample, lengths
        want = verdict(name, drafts, dense, *rest)
        got = verdict(name, drafts, sx.law_from_probs(probs, ids=ids), *rest)
        np.testing.assert_array_equal(got, want)
        seen |= {*want[:, 0].tolist()}
        mixed_up = sx.law_from_probs(probs, ids=np.flip(ids, -1))
        assert (verdict(name, drafts, mixed_up, *rest) != want).any()
    assert seen == {0, 1, 2, 3}


def test_laws_of_a_smaller_vocabulary_are_their_dense_ones():
    """Logits of a drafter with its own vocabulary, temperature and cut-offs applied to them."""
    temperature = np.where(np.arange(BATCH) % 4 == 0, 0, 0.8).astype(np.float32)
    top_k = np.where(np.arange(BATCH) % 3 == 0, 10, 0)
    seen, num_sure = set(), 0
    for seed in range(4):
        rng = np.random.default_rng([61, seed])
        target, accept, sample, lengths = target_and_noise(rng)
        ids = entries(rng, (), padded=False)
        logits = rng.standard_normal((BATCH, DRAFTS, ENTRIES)).astype(np.float32)
        logits += np.float32(3) * (ids < 4)
        whole = np.empty((BATCH, DRAFTS, ENTRIES))
        for b, i in np.ndindex(BATCH, DRAFTS):
            law = oracle.row_law(logits[b, i], oracle.Settings(temperature[b], top_k[b], 0.95))
            assert (law.must == law.may).all()
            whole[b, i] = law.after
        dense = spread(whole, ids)
        drafts = sampled(dense, rng)
        law = sx.law_from_logits(
            jnp.asarray(logits), temperature=temperature, top_k=top_k, top_p=0.95, ids=ids
        )
        got = verdict("token", drafts, law, target, accept, sample, lengths)
        # Uniforms a little larger or smaller: where that changes nothing, rounding does not.
        want = []
        for by in np.float32([0, 1e-4, -1e-4]):
            nudged = [np.clip(u + by, 0, 1) for u in (accept, sample)]
            rest = dense.astype(np.float32), target, *nudged, lengths
            want.append(verdict("token", drafts, *rest))
        sure = np.all([x == want[0] for x in want], axis=(0, 2))
        np.testing.assert_array_equal(got[sure], want[0][sure])
        num_sure += sure.sum()
        seen |= {*want[0][sure, 0].tolist()}
    assert num_sure >= 4 * 0.8 * BATCH
    assert seen == {0, 1, 2, 3}


def test_sample_returns_tokens_of_the_targets_vocabulary():
    """By uniforms and by key, ids shared, by row and by position."""
    rng = np.random.default_rng(62)
    probs = oracle.normalized(rng.random((2, 3, 5))).astype(np.float32)
    uniforms = rng.random((2, 3), np.float32)
    places = np.asarray(sx.sample(probs, uniforms))
    by_key = np.asarray(sx.sample(probs, key=jax.random.key(0)))
    for lead in ((), (2,), (2, 3)):
        ids = rng.permutation(100)[: 5 * int(np.prod(lead))].reshape(*lead, 5)
        whole = np.broadcast_to(ids.reshape(lead + (1,) * (2 - len(lead)) + (5,)), (2, 3, 5))
        law = sx.law_from_probs(probs, ids=ids)
        want = np.take_along_axis(whole, places[..., None], -1)[..., 0]
        np.testing.assert_array_equal(sx.sample(law, uniforms), want)
    want = np.take_along_axis(whole, by_key[..., None], -1)[..., 0]
    np.testing.assert_array_equal(sx.sample(law, key=jax.random.key(0)), want)


def test_padding_without_mass_is_never_drawn():
    law = sx.law_from_probs(
        jnp.asarray([[0.0, 0.5, 0.0, 0.5, 0.0]] * 64), ids=np.array([-1, 9, -1, 4, -1])
    )
    uniforms = np.linspace(0, oracle.LARGEST_UNIFORM, 64, dtype=np.float32)
    assert {*sx.sample(law, uniforms).tolist()} == {9, 4}
    assert {*sx.sample(law, key=jax.random.key(1)).tolist()} == {9, 4}


def test_rows_without_a_law_give_no_token():
    probs = np.array([[0.5, 0.5], [np.nan, 0.5], [0, 0]], np.float32)
    law = sx.law_from_probs(probs, ids=np.array([7, 3]))
    np.testing.assert_array_equal(sx.sample(law, np.full(3, 0.7, np.float32)), [3, -1, -1])


@pytest.mark.parametrize(
    "rule", ["verify_token", "verify_block", "verify_greedy", "verify_sampled", "verify_coupled"]
)
def test_target_laws_must_be_whole(rule):
    target = sx.law_from_probs(np.full((2, 3, 4), 0.25, np.float32), ids=np.arange(4))
    drafts, uniforms = np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32)
    arguments = (drafts, None, target, uniforms, uniforms[:, 0])
    if rule == "verify_coupled":
        arguments = (drafts, target, 1, 2)
    with pytest.raises(ValueError, match=r"target.*ids"):
        getattr(sx, rule)(*arguments)


def test_draft_laws_of_wrong_shape():
    target = np.full((2, 3, 4), 0.25, np.float32)
    drafts, uniforms = np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32)
    law = sx.law_from_probs(np.full((2, 3, 2), 0.5, np.float32), ids=np.arange(2))
    with pytest.raises(ValueError, match=r"draft_probs.*\(2, 3, 2\)"):
        sx.verify_token(drafts, law, target, uniforms, uniforms[:, 0])
    with pytest.raises(ValueError, match=r"ids.*2"):
        sx.law_from_probs(np.full((2, 3, 2), 0.5, np.float32), ids=np.arange(3))
