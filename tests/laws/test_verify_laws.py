"""Every rule given laws: the verdict it gives for the probabilities of those laws.

The probabilities are worked out in float64 and given to the same rule as arrays. Where a verdict
hangs on the last digits, as it shows when probabilities and uniforms are changed by 1e-4 of their
size, it is left out; what is left is compared as it is.
"""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.sampler import oracle
from speculax.conformance.sampler.oracle import Settings
from tests.slow import slow_but

BATCH, DRAFTS, VOCAB = 32, 3, 600
SEEDS = np.arange(BATCH)
NUDGE = 1e-4


def coupled(ids, draft, target, accept, sample, draft_lengths):
    return sx.verify_coupled(ids, target, SEEDS, 7, draft_lengths=draft_lengths)


RULES = {
    "token": sx.verify_token,
    "block": sx.verify_block,
    "greedy": sx.verify_greedy,
    "sampled": sx.verify_sampled,
    "coupled": coupled,
    "typical": sx.verify_lossy_typical,
    "thresholds": partial(
        sx.verify_lossy_thresholds,
        threshold_single=jnp.float32(0.4),
        threshold_acc=jnp.float32(0.8),
    ),
    "top k": partial(sx.verify_lossy_top_k, k=jnp.int32(3)),
    "synthetic": partial(sx.verify_lossy_synthetic, rates=jnp.float32(0.7)),
}
RATIO = ["token", "block"]  # they read the draft's law
LOSSY = ["typical", "thresholds", "top k", "synthetic"]
JITTED = {name: jax.jit(rule) for name, rule in RULES.items()}


class Given(NamedTuple):
    """Logits, settings by row, and their laws in float64."""

    draft: np.ndarray
    target: np.ndarray
    draft_settings: dict
    target_settings: dict
    draft_probs: np.ndarray
    target_probs: np.ndarray
    sure: np.ndarray  # bool (B,), the cut-offs of a row are beyond doubt


def settings_by_row(rng, order):
    """One row in five greedy, the rest of all kinds."""
    mask = rng.random((BATCH, VOCAB)) < 0.8
    mask[:, :4] = True
    return {
        "temperature": np.where(rng.random(BATCH) < 0.2, 0, rng.uniform(0.5, 1.5, BATCH)),
        "top_k": rng.choice([0, 0, 5, 40], BATCH),
        "top_p": rng.choice([1, 0.95, 0.7], BATCH),
        "min_p": rng.choice([0, 0, 0.01], BATCH),
        "mask": mask,
        "order": order,
    }


def laws_in_float64(logits, settings):
    """Probabilities (B, G, V), and which rows' cut-offs are beyond doubt."""
    probs, sure = np.zeros(logits.shape), np.ones(BATCH, bool)
    for b, i in np.ndindex(logits.shape[:2]):
        row = Settings(**{x: y[b] for x, y in settings.items() if x != "order"})
        law = oracle.row_law(logits[b, i], row, settings["order"])
        probs[b, i] = law.after
        sure[b] &= (law.must == law.may).all()
    return probs, sure


@cache
def given(name="token", dtype="float32", order="sequential"):
    """Peaked rows, the draft's like the target's; the first four tokens are in every mask."""
    rng = np.random.default_rng(50)
    target = 2 * rng.standard_normal((BATCH, DRAFTS + 1, VOCAB))
    target[..., :4] += 4
    draft = target[:, :DRAFTS] + 0.7 * rng.standard_normal((BATCH, DRAFTS, VOCAB))
    draft, target = (
        np.asarray(jnp.asarray(x, jnp.float32).astype(dtype).astype(jnp.float32))
        for x in (draft, target)
    )
    of_draft, of_target = settings_by_row(rng, order), settings_by_row(rng, order)
    for settings in (of_draft, of_target) if name in LOSSY else (of_draft,):
        del settings["top_p"], settings["min_p"]  # for shorter programs
    of_draft["temperature"] = np.where(of_target["temperature"] > 0, of_draft["temperature"], 0)
    draft_probs, draft_sure = laws_in_float64(draft, of_draft)
    target_probs, target_sure = laws_in_float64(target, of_target)
    sure = draft_sure & target_sure
    return Given(draft, target, of_draft, of_target, draft_probs, target_probs, sure)


def own_tokens(name, probs, accept):
    """What a rule that ignores the draft's law would say itself, (B, G)."""
    if name in ("greedy", "typical", "top k"):
        return probs.argmax(-1)
    if name == "coupled":
        law = sx.law_from_probs(probs.astype(np.float32))
        return np.asarray(
            sx.coupled_draw(
                law,
                SEEDS[:, None] + np.zeros_like(accept, int),
                7 + np.arange(DRAFTS) + np.zeros_like(accept, int),
            )
        )
    return inverse(probs, accept)


def inverse(probs, uniforms):
    return (probs.cumsum(-1) <= uniforms[..., None] * probs.sum(-1, keepdims=True)).sum(-1)


def drafts_and_noise(name, law):
    """Tokens, uniforms and lengths, such that drafts of every length are kept."""
    rng = np.random.default_rng(51)
    accept, sample = rng.random((BATCH, DRAFTS)), rng.random(BATCH)
    ids = inverse(law.draft_probs, rng.random((BATCH, DRAFTS)))
    if name not in RATIO:
        own = own_tokens(name, law.target_probs[:, :DRAFTS], accept)
        ids = np.where(rng.random(ids.shape) < 0.75, own, ids)
    lengths = rng.choice([0, 1, 2, 3, 3, 3], BATCH).astype(np.int32)
    return ids.astype(np.int32), accept.astype(np.float32), sample.astype(np.float32), lengths


def dense_verdicts(name, law, ids, accept, sample, lengths):
    """The rule on float64 probabilities, and which rows hang on the last digits."""
    rng, results = np.random.default_rng(52), []

    def changed(probs, scale):
        factors = 1 + abs(scale) * NUDGE * rng.uniform(-1, 1, probs.shape)
        return (probs * factors).astype(np.float32)

    def shifted(uniforms, scale):
        return np.clip(uniforms + np.float32(scale * NUDGE), 0, np.float32(oracle.LARGEST_UNIFORM))

    for scale in (0, 1, -1, 1, -1):
        out = JITTED[name](
            ids,
            changed(law.draft_probs, scale),
            changed(law.target_probs, scale),
            shifted(accept, scale),
            shifted(sample, scale),
            draft_lengths=lengths,
        )
        results.append(np.column_stack([out["num_accepted"], out["tokens"]]))
    return results[0], law.sure & np.all([x == results[0] for x in results], axis=(0, 2))


def make_laws(law, dtype="float32"):
    """The laws as a user makes them, settings traced."""
    laws = []
    for logits, settings in ((law.draft, law.draft_settings), (law.target, law.target_settings)):
        arrays = {x: jnp.asarray(y) for x, y in settings.items() if x != "order"}
        table = jnp.asarray(logits).astype(dtype)
        laws.append(sx.law_from_logits(table, order=settings["order"], **arrays))
    return laws


def verdict(name, ids, draft, target, accept, sample, lengths):
    out = JITTED[name](ids, draft, target, accept, sample, draft_lengths=lengths)
    return np.column_stack([out["num_accepted"], out["tokens"]])


def differences(got, want, sure):
    return [
        f"row {b}: {got[b]}, should be {want[b]}"
        for b in np.flatnonzero(sure)
        if (got[b] != want[b]).any()
    ]


@pytest.mark.parametrize("name", slow_but(("token", "greedy", "typical"), RULES))
def test_laws_from_logits_give_the_verdict_of_their_probabilities(name):
    """Masks and cut-offs, greedy rows beside sampled ones, drafts of every length."""
    law = given(name)
    ids, accept, sample, lengths = drafts_and_noise(name, law)
    want, sure = dense_verdicts(name, law, ids, accept, sample, lengths)
    draft, target = make_laws(law)
    got = verdict(name, ids, draft, target, accept, sample, lengths)
    assert not differences(got, want, sure)
    assert sure.sum() >= 0.8 * BATCH
    greedy = law.target_settings["temperature"] == 0
    for rows in (greedy, ~greedy):
        assert len({*want[sure & rows, 0].tolist()}) > 1  # some are refused, some kept
    assert differences(np.roll(got, 1, axis=0), want, sure)


def test_laws_normalised_beforehand():
    """As a drafter does that has read its rows to sample from them."""
    law = given()
    ids, accept, sample, lengths = drafts_and_noise("token", law)
    want, sure = dense_verdicts("token", law, ids, accept, sample, lengths)
    draft, target = make_laws(law)
    got = verdict("token", ids, draft.normalize(), target, accept, sample, lengths)
    assert not differences(got, want, sure)


def test_narrow_logits_in_the_other_order():
    law = given("token", "bfloat16", "joint")
    ids, accept, sample, lengths = drafts_and_noise("token", law)
    want, sure = dense_verdicts("token", law, ids, accept, sample, lengths)
    got = verdict("token", ids, *make_laws(law, "bfloat16"), accept, sample, lengths)
    assert not differences(got, want, sure)
    assert sure.sum() >= 0.8 * BATCH


def test_laws_from_probabilities_beside_no_law():
    """The target's law from probabilities with settings; the drafts point masses."""
    law = given()
    ids, accept, sample, lengths = drafts_and_noise("token", law)
    law = law._replace(draft_probs=(np.arange(VOCAB) == ids[..., None]) * 1.0)
    want, sure = dense_verdicts("token", law, ids, accept, sample, lengths)
    settings = {x: jnp.asarray(y) for x, y in law.target_settings.items() if x != "order"}
    table = oracle.normalized(np.exp(law.target.astype(np.float64))).astype(np.float32)
    target = sx.law_from_probs(table, **settings)
    got = verdict("token", ids, None, target, accept, sample, lengths)
    assert not differences(got, want, sure)
    assert sure.sum() >= 0.8 * BATCH


# --- Rows keep to themselves


@pytest.mark.parametrize("name", slow_but(("token", "coupled"), RULES))
def test_bad_row_spoils_only_itself(name):
    """NaN among the logits, settings that mean nothing, all tokens masked."""
    law = given(name)
    ids, accept, sample, lengths = drafts_and_noise(name, law)
    lengths[:8] = DRAFTS
    draft, target = make_laws(law)
    base = verdict(name, ids, draft, target, accept, sample, lengths)
    logits, drafted = law.target.copy(), law.draft.copy()
    logits[0, :, 5] = np.nan
    logits[1, :, 2] = np.inf
    drafted[5, 0, 5] = np.nan
    settings = {x: y.copy() for x, y in law.target_settings.items() if x != "order"}
    settings["mask"][0, 5] = True
    settings["temperature"][2] = -0.5
    settings["top_k"][3] = -2
    settings["mask"][4] = False
    of_draft = {x: y.copy() for x, y in law.draft_settings.items() if x != "order"}
    of_draft["mask"][5, 5] = True
    of_draft["temperature"][5], of_draft["top_k"][6] = 1.0, -1
    bad = law._replace(
        draft=drafted,
        target=logits,
        draft_settings=of_draft | {"order": "sequential"},
        target_settings=settings | {"order": "sequential"},
    )
    got = verdict(name, ids, *make_laws(bad), accept, sample, lengths)
    np.testing.assert_array_equal(got[7:], base[7:])
    # No token comes from a target row that cannot be used; and only tests that do not look at the
    # target let drafts pass it.
    n = got[:5, 0]
    assert (got[np.arange(5), 1 + n] == -1).all()
    if name == "synthetic":
        np.testing.assert_array_equal(n, base[:5, 0])
    else:
        assert (n == 0).all()
    # A draft law that cannot be used: refused, and the token is the target's.
    if name in RATIO:
        assert (got[5:7, 0] == 0).all()
        probs = law.target_probs[5:7, 0]
        assert (probs[[0, 1], got[5:7, 1]] > 0).all()
    else:
        np.testing.assert_array_equal(got[5:7], base[5:7])


# --- Rows that are not needed


def with_nan(law, of_draft, of_target):
    """The same with NaN where the masks (B, G) and (B, G+1) say."""
    draft, target = law.draft.copy(), law.target.copy()
    draft[of_draft], target[of_target] = np.nan, np.nan
    return make_laws(law._replace(draft=draft, target=target))


@pytest.mark.parametrize("name", RULES)
def test_what_is_not_needed_is_not_read(name):
    """NaN beyond the drafts there are; and, for rules that stop there, beyond the first failure."""
    law = given(name)
    ids, accept, sample, lengths = drafts_and_noise(name, law)
    base = verdict(name, ids, *make_laws(law), accept, sample, lengths)
    i = np.arange(DRAFTS + 1)
    beyond = i > lengths[:, None]
    ends = [beyond]
    if name != "block":
        stop = base[:, :1]
        assert ((stop < lengths[:, None]) & (stop < DRAFTS)).any()
        ends.append(i > stop)
    for end in ends:
        draft_end = (
            end[:, 1:]
            if name == "block" or end is beyond
            else (end | (i >= lengths[:, None]))[:, :DRAFTS]
        )
        laws = with_nan(law, draft_end, end)
        got = verdict(name, ids, *laws, accept, sample, lengths)
        np.testing.assert_array_equal(got, base)


def test_block_does_not_read_beyond_a_ratio_of_zero():
    """A draft token that the target rules out ends the draft, whatever comes after it."""
    law = given()
    ids, accept, sample, lengths = drafts_and_noise("block", law)
    dead = law.target_probs[np.arange(BATCH)[:, None], np.arange(DRAFTS), ids] == 0
    first = np.where(dead.any(-1), dead.argmax(-1), DRAFTS)
    assert (first[lengths > first] < DRAFTS - 1).sum() >= 3
    i = np.arange(DRAFTS + 1)
    past = i > np.minimum(first, lengths)[:, None]
    base = verdict("block", ids, *make_laws(law), accept, sample, lengths)
    got = verdict("block", ids, *with_nan(law, past[:, :DRAFTS], past), accept, sample, lengths)
    np.testing.assert_array_equal(got, base)
