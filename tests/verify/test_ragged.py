"""The flat layout: the same verdicts as in the padded form, bit for bit."""

from functools import cache, partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from tests.slow import slow_but

RULES = ["token", "block", "greedy", "sampled"]
RATIO = ["token", "block"]  # the rules that read the draft's law
VOCAB, DRAFTS, SIZE = 6, 4, 16  # SIZE is T
NAN, INF = float("nan"), float("inf")
LENGTHS = [
    (4, 0, 2, 3, 1, 0, 4, 2),
    (0, 0, 4, 4, 4, 4, 0, 0),
    (2, 2, 2, 2, 2, 2, 2, 2),
    (3, 4, 1, 0, 1, 0, 0, 0),  # fewer than T
]


class Flat(NamedTuple):
    """The arguments of `verify_ragged`, in its order."""

    ids: np.ndarray
    lengths: np.ndarray
    draft: np.ndarray
    target: np.ndarray
    bonus: np.ndarray
    accept: np.ndarray
    sample: np.ndarray

    def pad(self, drafts=DRAFTS):
        """The arguments of the padded form, lengths last; NaN and -1 where there is nothing."""
        batch = len(self.lengths)
        start = np.cumsum(self.lengths) - self.lengths
        i = np.arange(drafts + 1)
        is_own = i < self.lengths[:, None]
        nothing = len(self.target) + batch
        rows = np.where(is_own, start[:, None] + i, nothing)
        at_end = i == self.lengths[:, None]
        rows = np.where(at_end, len(self.target) + np.arange(batch)[:, None], rows)
        target = np.concatenate([self.target, self.bonus, np.full_like(self.bonus[:1], NAN)])[rows]
        rows = np.where(is_own, start[:, None] + i, len(self.target))[:, :drafts]
        ids, draft, accept = (
            np.concatenate([x, np.full((1, *x.shape[1:]), empty, x.dtype)])[rows]
            for x, empty in ((self.ids, -1), (self.draft, NAN), (self.accept, NAN))
        )
        return ids, draft, target, accept, self.sample, np.minimum(self.lengths, drafts)


def random_flat(seed, lengths, size=SIZE):
    """Rows and uniforms in sixteenths, so that tests often meet their uniforms exactly.

    Ids are likely ones mostly, some invalid; what belongs to no request is NaN.
    """
    rng, batch = np.random.default_rng(seed), len(lengths)

    def rows(count):
        return (rng.multinomial(16, np.ones(VOCAB) / VOCAB, count) / 16).astype(np.float32)

    def uniforms(count):
        return rng.integers(0, 16, count).astype(np.float32) / 16

    target, draft = rows(size), rows(size)
    draft = np.where(rng.random((size, 1)) < 0.3, target, draft)
    likely = np.where(rng.random(size) < 0.7, target.argmax(axis=1), draft.argmax(axis=1))
    ids = np.where(rng.random(size) < 0.8, likely, rng.integers(-1, VOCAB + 1, size))
    accept, used = uniforms(size), sum(lengths)
    for array in (target, draft, accept):
        array[used:] = NAN
    lengths = np.array(lengths, np.int32)
    return Flat(ids.astype(np.int32), lengths, draft, target, rows(batch), accept, uniforms(batch))


@cache
def ragged(rule, drafts=DRAFTS):
    return jax.jit(partial(sx.verify_ragged, max_draft_length=drafts, rule=rule))


@cache
def padded(rule):
    verifier = getattr(sx, f"verify_{rule}")
    return jax.jit(lambda *arguments: verifier(*arguments[:-1], draft_lengths=arguments[-1]))


def assert_same(got, want):
    assert list(got) == ["num_accepted", "tokens"]
    for key in want:
        assert got[key].dtype == jnp.int32
        np.testing.assert_array_equal(np.asarray(got[key]), np.asarray(want[key]))


# --- The same as padded


@pytest.mark.parametrize("rule", RULES)
def test_same_as_padded(rule):
    """Also where a test meets its uniform, ids are invalid, and requests have no draft."""
    kept = set()
    for seed in range(12):
        flat = random_flat(seed, LENGTHS[seed % len(LENGTHS)])
        want = padded(rule)(*flat.pad())
        assert_same(ragged(rule)(*flat), want)
        kept.update(np.asarray(want["num_accepted"]).tolist())
    assert len(kept) >= 4


@pytest.mark.parametrize("rule", RATIO)
def test_same_as_padded_without_draft_laws(rule):
    for seed in range(12):
        flat = random_flat(seed, LENGTHS[seed % len(LENGTHS)])
        ids, _, *rest = flat.pad()
        assert_same(ragged(rule)(*flat._replace(draft=None)), padded(rule)(ids, None, *rest))


@pytest.mark.parametrize("rule", RULES)
def test_longer_drafts_are_cut(rule):
    """As if a request had fewer; the next token comes from the row of the first that is cut."""
    num_whole = 0
    for seed in range(40):
        flat = random_flat(seed, LENGTHS[0])
        want = padded(rule)(*flat.pad()[:-1], np.minimum(flat.lengths, 2))
        out = ragged(rule, 2)(*flat)
        assert_same(out, want | {"tokens": want["tokens"][:, :3]})
        num_whole += (np.asarray(out["num_accepted"])[flat.lengths > 2] == 2).sum()
    assert num_whole > 8


def test_more_room_than_drafts_is_padding():
    """max_draft_length may be more than any request has, and more than T."""
    flat = random_flat(7, (2, 0, 1, 0, 0, 0, 0, 0), 3)
    want = padded("token")(*flat.pad())
    out = ragged("token", 9)(*flat)
    assert out["tokens"].shape == (8, 10)
    assert (np.asarray(out["tokens"])[:, 5:] == -1).all()
    assert_same(out | {"tokens": out["tokens"][:, :5]}, want)


@pytest.mark.parametrize("rule", RULES)
def test_no_drafts_at_all(rule):
    """T = 0: the bonus alone."""
    flat = random_flat(3, (0,) * 8, 0)
    want = padded(rule)(*flat.pad())
    assert (np.asarray(want["tokens"])[:, 0] >= 0).all()
    assert_same(ragged(rule)(*flat), want)


@pytest.mark.parametrize("rule", RATIO)
def test_no_draft_is_looked_at(rule):
    """G = 0 where there are drafts: each request's first row, or its bonus."""
    flat = random_flat(4, LENGTHS[0])
    want = padded(rule)(*flat.pad()[:-1], np.zeros(8, np.int32))
    assert_same(ragged(rule, 0)(*flat), want | {"tokens": want["tokens"][:, :1]})


@pytest.mark.parametrize("rule", RULES)
def test_what_belongs_to_no_request_is_never_read(rule):
    flat = random_flat(20, LENGTHS[3])
    want, used = padded(rule)(*flat.pad()), flat.lengths.sum()
    for fill, token in ((0.5, 1), (NAN, 2**31 - 1), (-1.0, -(2**31)), (INF, VOCAB)):
        changed = {}
        for name in ("ids", "draft", "target", "accept"):
            changed[name] = getattr(flat, name).copy()
            changed[name][used:] = token if name == "ids" else fill
        assert_same(ragged(rule)(*flat._replace(**changed)), want)


@pytest.mark.parametrize("rule", ["block", "sampled"])
def test_request_alone_is_as_among_others(rule):
    flat = random_flat(21, LENGTHS[0])
    out = ragged(rule)(*flat)
    start = np.cumsum(flat.lengths) - flat.lengths
    for b in np.flatnonzero(flat.lengths == 4):
        own = slice(start[b], start[b] + 4)
        alone = Flat(*(x[own] if len(x) == SIZE else x[b : b + 1] for x in flat))
        assert_same(ragged(rule)(*alone), {key: x[b : b + 1] for key, x in out.items()})


def test_sum_of_lengths_beyond_the_range_of_their_type():
    lengths = (100, 0, 90, 3, 0, 100, 2, 5)
    flat = random_flat(22, lengths, 300)
    want = padded("token")(*flat.pad())
    assert_same(ragged("token")(*flat._replace(lengths=np.array(lengths, np.int8))), want)


def test_lengths_out_of_contract():
    """Negative ones count as zero; requests before one that reaches beyond T are untouched."""
    flat = random_flat(23, LENGTHS[0])
    want = ragged("token")(*flat)
    wrong = flat._replace(lengths=np.where(flat.lengths == 0, np.int32(-5), flat.lengths))
    assert_same(ragged("token")(*wrong), want)
    wrong.lengths[-1] = 2**31 - 1
    out = ragged("token")(*wrong)
    assert_same({k: x[:-1] for k, x in out.items()}, {k: x[:-1] for k, x in want.items()})


# --- Laws with settings by request


class Requests(NamedTuple):
    """Logits in the flat layout, and settings by request."""

    flat: Flat  # its laws are logits
    settings: dict
    draft_settings: dict

    def laws(self):
        """(draft, target, bonus) in the flat layout."""
        lengths, size = self.flat.lengths, len(self.flat.ids)
        request = np.repeat(np.arange(len(lengths)), lengths)
        request = np.pad(request, (0, size - len(request)))  # whoever's, it is never read
        return (
            sx.law_from_logits(self.flat.draft, **self.draft_settings, rows=request),
            sx.law_from_logits(self.flat.target, **self.settings, rows=request),
            sx.law_from_logits(self.flat.bonus, **self.settings, rows=np.arange(len(lengths))),
        )


def random_requests(seed, lengths=LENGTHS[0], with_cutoffs=False):
    """Greedy and sampled requests side by side, each with a mask of its own, perhaps a top-k."""
    flat = random_flat(seed, lengths)
    rng, batch = np.random.default_rng([1, seed]), len(lengths)
    settings = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 1.5], batch).astype(np.float32),
        "mask": rng.random((batch, VOCAB)) < 0.8,
    }
    settings["mask"][:, 0] = True
    if with_cutoffs:
        settings["top_k"] = rng.choice([0, 2, 4], batch).astype(np.int32)
    logits = {
        name: rng.standard_normal(getattr(flat, name).shape).astype(np.float32) * 2
        for name in ("target", "bonus", "draft")
    }
    used, request = sum(lengths), np.repeat(np.arange(batch), lengths)
    logits["draft"][:used] += logits["target"][:used]
    # Mostly what a greedy drafter with the target's settings would say.
    seen = np.where(settings["mask"][request], logits["target"][:used], -INF)
    best = seen.argmax(axis=1)
    ids = flat.ids.copy()
    ids[:used] = np.where(rng.random(used) < 0.8, best, ids[:used])
    for name in ("target", "draft"):
        logits[name][used:] = NAN
    draft_settings = {"temperature": settings["temperature"]}
    return Requests(flat._replace(ids=ids, **logits), settings, draft_settings)


@pytest.mark.parametrize("rule", slow_but(("token",), RULES))
def test_laws_with_settings_by_request(rule):
    """Temperature 0 beside others, masks, cut-offs; the padded form has settings by batch row."""
    kept = set()
    for seed in range(6):
        requests = random_requests(seed, with_cutoffs=rule == "sampled")
        draft, target, bonus = requests.laws()
        flat = requests.flat._replace(draft=draft, target=target, bonus=bonus)
        ids, draft, target, *rest = requests.flat.pad()
        draft = sx.law_from_logits(draft, **requests.draft_settings)
        target = sx.law_from_logits(target, **requests.settings)
        want = padded(rule)(ids, draft, target, *rest)
        assert_same(ragged(rule)(*flat), want)
        n, tokens = np.asarray(want["num_accepted"]), np.asarray(want["tokens"])
        for b in range(len(n)):  # nothing that a request masks is ever said
            assert requests.settings["mask"][b, tokens[b, : n[b] + 1]].all()
        kept.update(n.tolist())
    assert len(kept) >= 4


@pytest.mark.parametrize("rule", RATIO)
def test_greedy_requests_say_the_likeliest_token(rule):
    """Whatever their drafts, and although others are sampled."""
    requests = random_requests(40, (0, 4, 0, 2, 0, 3, 0, 1))
    settings = requests.settings | {"temperature": np.float32([0, 0, 0, 0, 1, 1, 1, 1])}
    requests = requests._replace(settings=settings)
    flat = requests.flat
    draft, target, bonus = requests.laws()
    out = ragged(rule)(*flat._replace(draft=draft, target=target, bonus=bonus))
    start = np.cumsum(flat.lengths) - flat.lengths
    for b in range(4):
        row = flat.target[start[b]] if flat.lengths[b] else flat.bonus[b]
        assert out["tokens"][b, 0] == np.argmax(np.where(settings["mask"][b], row, -INF))


def test_draft_laws_normalised_beforehand():
    for seed in range(4):
        flat = random_requests(seed).flat
        weights = {name: np.exp(getattr(flat, name)) for name in ("target", "bonus")}
        probs = {key: x / x.sum(axis=1, keepdims=True) for key, x in weights.items()}
        flat = flat._replace(**probs)
        ids, draft, *rest = flat.pad()
        want = padded("token")(ids, sx.law_from_logits(draft).normalize(), *rest)
        flat = flat._replace(draft=sx.law_from_logits(flat.draft).normalize())
        assert_same(ragged("token")(*flat), want)


def test_draft_laws_on_some_of_the_tokens():
    """Probabilities of four tokens, by a table of ids that all rows share."""
    table = np.array([4, -1, 2, 0], np.int32)
    for seed in range(4):
        flat = random_flat(seed, LENGTHS[seed])
        probs = np.random.default_rng(seed).dirichlet(np.ones(4), SIZE).astype(np.float32)
        ids, draft, *rest = flat._replace(draft=probs).pad()
        want = padded("token")(ids, sx.law_from_probs(draft, ids=table), *rest)
        flat = flat._replace(draft=sx.law_from_probs(probs, ids=table))
        assert_same(ragged("token")(*flat), want)


def test_comparison_can_fail():
    """A request that takes the settings of the next, or the bonus of the first, is seen."""
    seen = np.zeros(2, bool)
    for seed in range(4):
        requests = random_requests(seed)
        draft, target, bonus = requests.laws()
        flat = requests.flat._replace(draft=draft, target=target, bonus=bonus)
        want = np.asarray(ragged("token")(*flat)["tokens"])
        shifted = requests._replace(
            settings={key: np.roll(x, 1, axis=0) for key, x in requests.settings.items()}
        )
        for i, wrong in enumerate((shifted.laws()[1:], (target, shifted.laws()[2]))):
            other = flat._replace(target=wrong[0], bonus=wrong[1])
            seen[i] |= (np.asarray(ragged("token")(*other)["tokens"]) != want).any()
    assert seen.all()


# --- Programs


@pytest.mark.parametrize("rule", ["block", "sampled"])
def test_no_retrace_for_other_lengths(rule):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(*arguments):
        return sx.verify_ragged(*arguments, max_draft_length=DRAFTS, rule=rule)

    seen = {np.asarray(once(*random_flat(9, x))["tokens"]).tobytes() for x in LENGTHS}
    assert len(seen) == len(LENGTHS)


def test_vmap():
    flats = [random_flat(seed, LENGTHS[seed]) for seed in range(4)]
    want = [ragged("block")(*flat) for flat in flats]
    want = {key: np.stack([w[key] for w in want]) for key in want[0]}
    stacked = [np.stack(x) for x in zip(*flats, strict=True)]
    verify = partial(sx.verify_ragged, max_draft_length=DRAFTS, rule="block")
    assert_same(jax.jit(jax.vmap(verify))(*stacked), want)


# --- Errors

GOOD = random_flat(0, LENGTHS[0])


@pytest.mark.parametrize(
    ("argument", "wrong", "words"),
    [
        ("ids", GOOD.ids[:, None], r"draft_tokens.*\(16,\).*got \(16, 1\)"),
        ("lengths", GOOD.lengths[:5], r"draft_lengths.*\(8,\).*got \(5,\)"),
        ("draft", GOOD.draft[:9], r"draft_probs.*\(16, 6\).*got \(9, 6\)"),
        ("draft", GOOD.draft[:, :4], r"draft_probs.*\(16, 6\).*got \(16, 4\)"),
        ("target", GOOD.target[:15], r"target_probs.*\(16, 6\).*got \(15, 6\)"),
        ("target", GOOD.target[None], r"target_probs.*\(16, 6\).*got \(1, 16, 6\)"),
        ("bonus", GOOD.bonus[:, None], r"bonus_probs.*got \(8, 1, 6\)"),
        ("bonus", GOOD.bonus[:0], r"bonus_probs.*got \(0, 6\)"),
        ("accept", GOOD.accept[:3], r"accept_uniforms.*\(16,\).*got \(3,\)"),
        ("sample", GOOD.sample[:3], r"sample_uniforms.*\(8,\).*got \(3,\)"),
    ],
)
def test_wrong_shapes(argument, wrong, words):
    with pytest.raises(ValueError, match=words):
        ragged("token")(*GOOD._replace(**{argument: wrong}))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("ids", "draft_tokens.*an integer dtype.*float32"),
        ("lengths", "draft_lengths.*an integer dtype.*float32"),
        ("draft", "draft_probs.*a floating-point dtype.*int32"),
        ("target", "target_probs.*a floating-point dtype.*int32"),
        ("bonus", "bonus_probs.*a floating-point dtype.*int32"),
        ("accept", "accept_uniforms.*a floating-point dtype.*int32"),
        ("sample", "sample_uniforms.*a floating-point dtype.*int32"),
    ],
)
def test_wrong_dtypes(argument, words):
    array = np.nan_to_num(getattr(GOOD, argument))
    array = array.astype(np.float32 if array.dtype == np.int32 else np.int32)
    with pytest.raises(TypeError, match=words):
        ragged("token")(*GOOD._replace(**{argument: array}))


def test_other_errors():
    with pytest.raises(ValueError, match="rule must be one of token, block, greedy, sampled"):
        sx.verify_ragged(*GOOD, max_draft_length=2, rule="typical")
    with pytest.raises(ValueError, match=r"max_draft_length.*-1"):
        sx.verify_ragged(*GOOD, max_draft_length=-1)
    law = sx.law_from_logits(GOOD.target, temperature=0.5)
    with pytest.raises(ValueError, match="bonus_probs must be made as target_probs was"):
        sx.verify_ragged(*GOOD._replace(target=law), max_draft_length=2)
    bonus = sx.law_from_logits(GOOD.bonus)
    with pytest.raises(ValueError, match="bonus_probs must be made as target_probs was"):
        sx.verify_ragged(*GOOD._replace(target=law, bonus=bonus), max_draft_length=2)
