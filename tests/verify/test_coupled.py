"""Coupled draws and coupled verification: noise that is a function of seed, position and token.

The noise is checked against the generator's published vectors and worked out anew in float64; the
text must be the one that `coupled_draw` gives token by token, bit for bit, whatever the drafts.
Statistical tests run on fixed seeds; a test of a right generator would fail with the probability
`FALSE_ALARM` each, were the seeds drawn anew.
"""

from functools import cache, partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from scipy import stats

import speculax as sx
from speculax.gumbel import gumbel, threefry

FALSE_ALARM = 1e-6
SIGMAS = 5.0  # two-sided: 6e-7
NAN, INF = float("nan"), float("inf")
DRAW = jax.jit(sx.coupled_draw)
VERIFY = jax.jit(sx.verify_coupled)
NOISE = jax.jit(jax.vmap(gumbel, (0, 0, None)))


# --- The generator


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_published_vectors_of_threefry(key, counter, words):
    """Random123, kat_vectors: threefry2x32 with 20 rounds."""
    out = threefry(*(jnp.uint32(x) for x in (*key, *counter)))
    assert tuple(int(x) for x in out) == words
    assert tuple(int(x) for x in reference_threefry(*key, *counter)) == words


def reference_threefry(key_0, key_1, counter_0, counter_1):
    """Salmon et al. (2011), table 3 and section 3.3, in 64-bit integers cut to 32 bits."""
    cut = np.uint64(0xFFFFFFFF)
    keys = [np.uint64(key_0), np.uint64(key_1)]
    keys.append(keys[0] ^ keys[1] ^ np.uint64(0x1BD11BDA))
    x = (np.asarray(counter_0, np.uint64) + keys[0]) & cut
    y = (np.asarray(counter_1, np.uint64) + keys[1]) & cut
    rotations = [13, 15, 26, 6, 17, 29, 16, 24]
    for r in range(20):
        turn = np.uint64(rotations[r % 8])
        x = (x + y) & cut
        y = ((y << turn) | (y >> (np.uint64(32) - turn))) & cut ^ x
        if r % 4 == 3:
            s = r // 4 + 1
            x = (x + keys[s % 3]) & cut
            y = (y + keys[(s + 1) % 3] + np.uint64(s)) & cut
    return x, y


def reference_gumbel(seed, position, tokens):
    """The noise in float64."""
    zeros = np.zeros(len(tokens), np.uint64)
    high, low = reference_threefry(
        seed & 0xFFFFFFFF, position & 0xFFFFFFFF, np.asarray(tokens, np.uint64), zeros
    )
    uniform = (high.astype(np.float64) + low.astype(np.float64) * 2.0**-32) * 2.0**-32
    return -np.log(-np.log1p(-np.clip(uniform, 2.0**-64, 1 - 2.0**-24)))


def noise(seeds, positions, tokens):
    seeds, positions = np.broadcast_arrays(np.uint32(seeds), np.uint32(positions))
    return np.asarray(NOISE(seeds, positions, np.asarray(tokens, np.int32)))


def test_noise_is_that_of_the_reference():
    seeds, positions = [0, 1, 7, 2**31, 2**32 - 1], [3, 0, 2**20, 2**31 - 1, 2**32 - 1]
    tokens = np.append(np.arange(2000), [151_935, 262_143, 2**31 - 1])
    got = noise(seeds, positions, tokens)
    for row, seed, position in zip(got, seeds, positions, strict=True):
        want = reference_gumbel(seed, position, tokens)
        # -log(E), and exp(-E) is one less a uniform of 24 bits.
        exponential = np.exp(-want)
        rounding = 2.0**-24 * np.exp(exponential) / exponential
        assert (np.abs(row - want) < 1e-6 * np.maximum(np.abs(want), 1) + rounding).all()


@pytest.mark.parametrize(
    ("seed", "position", "token"),
    [(4, 1, 2431709), (3, 1, 3023226), (5, 0, 5907700), (1, 1, 7846058), (0, 0, 7112274)],
)
def test_large_noise_has_64_bits(seed, position, token):
    """From some of the smallest of 10**8 numbers: of 32 bits, the first would be a 3."""
    got = noise([seed], position, [token]).item()
    want = reference_gumbel(seed, position, [token]).item()
    assert 16 < got < 22
    assert abs(got - want) < 3e-6
    high, _ = reference_threefry(seed, position, token, 0)
    of_32_bits = -np.log(float(high) * 2.0**-32)
    assert 1e-4 < of_32_bits - got < 0.3


WAYS = {
    "along tokens": (np.full(16, 3), np.arange(16) * 1000, np.arange(2**14)),
    "along positions": (np.full(2**16, 5), np.arange(2**16), np.arange(4)),
    "along seeds": (np.arange(2**16), np.full(2**16, 9), np.arange(4)),
}


@pytest.mark.parametrize("way", WAYS)
def test_noise_is_standard_gumbel(way):
    values = noise(*WAYS[way]).astype(np.float64).ravel()
    count, variance = len(values), np.pi**2 / 6
    assert abs(values.mean() - np.euler_gamma) < SIGMAS * np.sqrt(variance / count)
    # The fourth central moment of the law is 5.4 of its variance squared.
    assert abs(values.var() - variance) < SIGMAS * variance * np.sqrt(4.4 / count)
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > FALSE_ALARM
    for level in (6.0, 9.0):  # the tail, which decides where vocabularies are large
        low, high = stats.poisson.ppf(
            [FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], count * -np.expm1(-np.exp(-level))
        )
        assert low <= (values > level).sum() <= high


def test_neighbours_in_noise_are_not_correlated():
    values = noise(np.arange(512).repeat(512), np.tile(np.arange(512), 512), np.arange(4))
    cube = values.reshape(512, 512, 4).astype(np.float64)
    cube = (cube - np.euler_gamma) / (np.pi / np.sqrt(6))
    for shift in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, -1, 0), (0, 1, -1), (1, 0, -1)):
        product = cube * np.roll(cube, shift, axis=(0, 1, 2))
        assert abs(product.mean()) < SIGMAS / np.sqrt(product.size)
    swapped = (cube * cube.swapaxes(0, 1))[np.triu_indices(512, 1)]  # seed for position
    assert abs(swapped.mean()) < SIGMAS / np.sqrt(swapped.size)


# --- Laws


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def reference_scores(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, mask=None, bias=None):
    """The logits of one row that sampling sees, divided by the temperature; by sorting, float64."""
    logits = np.asarray(logits, np.float64) + (0 if bias is None else np.asarray(bias, np.float64))
    if mask is not None:
        logits = np.where(mask, logits, -INF)
    if temperature == 0:
        return np.where(np.arange(len(logits)) == np.argmax(logits), 0, -INF)
    logits = logits / temperature
    if top_k:
        logits = np.where(logits >= np.sort(logits)[-top_k], logits, -INF)
    probs = softmax(logits)
    order = np.argsort(-probs)
    size = np.searchsorted(np.cumsum(probs[order]), top_p) + 1
    logits = np.where(probs >= probs[order[min(size, len(order)) - 1]], logits, -INF)
    return np.where(probs >= min_p * probs.max(), logits, -INF)


SETTINGS = [
    {"temperature": 0.6},
    {"temperature": 5.0},
    {"temperature": 0.0},
    {"top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.2},
]
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize("form", ["logits", "probabilities"])
@pytest.mark.parametrize("with_settings", [False, True])
@pytest.mark.parametrize("size", [20, 1100])  # in one block, in three
def test_draw_is_the_largest_of_logits_with_noise(size, with_settings, form):
    """Worked out in float64, where the two largest differ by more than rounding."""
    batch = 200
    rng = np.random.default_rng(size)
    seeds, positions = rng.integers(0, 2**32, (2, batch))
    logits = (2 * rng.standard_normal((batch, size))).astype(np.float32)
    settings = [{}] * batch
    arrays = {}
    if with_settings:
        settings = [NEUTRAL | SETTINGS[b % len(SETTINGS)] for b in range(batch)]
        arrays = {key: np.array([s[key] for s in settings]) for key in NEUTRAL}
        arrays = {k: v.astype(np.int32 if k == "top_k" else np.float32) for k, v in arrays.items()}
        arrays["mask"] = rng.random((batch, size)) < 0.8
        arrays["bias"] = rng.standard_normal((batch, size)).astype(np.float32)
        for b, row in enumerate(settings):
            row |= {"mask": arrays["mask"][b], "bias": arrays["bias"][b]}
    if form == "logits":
        law = sx.law_from_logits(logits, **arrays)
    else:
        probs = softmax(logits.astype(np.float64)).astype(np.float32)
        law = sx.law_from_probs(probs, **arrays)
    tokens = np.asarray(DRAW(law, seeds, positions))
    num_close = 0
    for b in range(batch):
        scores = reference_scores(logits[b], **settings[b])
        values = scores + reference_gumbel(int(seeds[b]), int(positions[b]), np.arange(size))
        second, first = np.sort(values)[-2:]
        num_close += first - second < 1e-4
        assert tokens[b] == np.argmax(values) or first - second < 1e-4
    assert num_close < 3


def test_temperature_zero_is_the_lowest_of_the_likeliest():
    size = 700
    logits = np.full((2, size), 1.5, np.float32)
    logits[0, 0] = -1
    logits[1, : size - 1] = -INF
    law = sx.law_from_logits(logits, temperature=jnp.float32(0.0))
    for seed in range(5):
        assert DRAW(law, seed, np.arange(2)).tolist() == [1, size - 1]


def test_entries_of_a_law_have_the_noise_of_their_tokens():
    """A sparse law draws what the whole one draws: noise goes by token, not by place."""
    rng = np.random.default_rng(2)
    ids = np.stack([rng.permutation(50)[:6] for _ in range(64)]).astype(np.int32)
    probs = rng.dirichlet(np.ones(6), 64).astype(np.float32)
    whole = np.zeros((64, 50), np.float32)
    np.put_along_axis(whole, ids, probs, axis=1)
    sparse = DRAW(sx.law_from_probs(probs, ids=ids), 5, np.arange(64))
    np.testing.assert_array_equal(sparse, DRAW(whole, 5, np.arange(64)))
    assert len(np.unique(np.asarray(sparse))) > 20


# --- Draws follow the law

TILTED = np.linspace(2.5, -2.5, 20).astype(np.float32)[np.random.default_rng(3).permutation(20)]
COUNT = 40_000
LAWS = {
    "plain": {},
    "temperature": {"temperature": 1.7},
    "top-k": {"top_k": 8},
    "top-p and temperature": {"temperature": 0.7, "top_p": 0.95},
}


def draws(settings, seeds, positions):
    law = sx.law_from_logits(np.broadcast_to(TILTED, (len(seeds), 20)), **LAWS[settings])
    return np.asarray(DRAW(law, seeds, positions))


def chi_square(counts, probs):
    """The p-value; cells of no mass must be empty, those of little mass are put together."""
    counts, wanted = counts.ravel(), probs.ravel() * counts.sum()
    assert not counts[wanted == 0].any()
    order = np.argsort(wanted)
    cut = np.searchsorted(np.cumsum(wanted[order]), 10)
    few, rest = order[: cut + 1], order[cut + 1 :]
    got = np.append(counts[rest], counts[few].sum())
    want = np.append(wanted[rest], wanted[few].sum())
    return stats.chisquare(got, want * (got.sum() / want.sum())).pvalue


@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize("settings", LAWS)
def test_draws_follow_the_law(settings, along):
    many, one = np.arange(COUNT), np.full(COUNT, 11)
    seeds, positions = (many, one) if along == "seeds" else (one, many)
    probs = softmax(reference_scores(TILTED, **LAWS[settings]))
    counts = np.bincount(draws(settings, seeds, positions), minlength=20)
    assert chi_square(counts, probs) > FALSE_ALARM
    # A law off by a fifth in one token would be seen.
    wrong = probs.copy()
    wrong[np.argmax(probs)] *= 1.2
    assert chi_square(counts, wrong / wrong.sum()) < FALSE_ALARM


@pytest.mark.parametrize("along", ["seeds", "positions"])
@pytest.mark.parametrize("settings", ["top-k", "top-p and temperature"])
def test_draws_at_neighbouring_positions_are_independent(settings, along):
    if along == "seeds":
        seeds, positions = np.arange(COUNT), np.full(COUNT, 100)
    else:
        seeds, positions = np.full(COUNT, 100), 2 * np.arange(COUNT)
    probs = softmax(reference_scores(TILTED, **LAWS[settings]))
    first = draws(settings, seeds, positions)
    for next_seeds, next_positions, independent in (
        (seeds, positions + 1, True),
        (seeds + 1, positions, True),
        (seeds, positions, False),
    ):
        if independent and along == "seeds" and next_seeds is not seeds:
            continue  # the same numbers in another order
        second = draws(settings, next_seeds, next_positions)
        table = np.bincount(20 * first + second, minlength=400)
        if independent:
            assert chi_square(table, np.outer(probs, probs)) > FALSE_ALARM
        else:  # the control: the same noise twice
            table[np.arange(20) * 21] = 0
            assert not table.any()


def test_token_without_mass_is_never_drawn():
    probs = np.where(np.arange(600) % 5 == 0, 1.0, 0.0).astype(np.float32)
    tokens = np.asarray(DRAW(np.broadcast_to(probs, (4000, 600)), 1, np.arange(4000)))
    assert set(tokens.tolist()) == set(range(0, 600, 5))


# --- Verification, path by path

VOCAB = 7


@cache
def tables():
    """Target and draft rows by the last two tokens; 7 stands for none. float32 (8, 8, 7) each."""
    rng = np.random.default_rng(4)
    target = rng.dirichlet(np.ones(VOCAB), (VOCAB + 1,) * 2)
    target[rng.random(target.shape) < 0.1] = 0
    draft = 0.6 * target + 0.4 * rng.dirichlet(np.ones(VOCAB), (VOCAB + 1,) * 2)
    return target.astype(np.float32), draft.astype(np.float32)


def plain_text(table, seeds, first, length):
    """`coupled_draw` token by token, from position `first`, (B, length)."""
    text = np.full((len(seeds), length + 2), VOCAB)
    for t in range(length):
        text[:, t + 2] = DRAW(table[text[:, t], text[:, t + 1]], seeds, first + t)
    return text[:, 2:]


class Drafters:
    """Ways to propose tokens after `text`: (text, at, num, seeds, positions, rng) -> (B, num)."""

    @staticmethod
    def anything(text, at, num, seeds, positions, rng):
        return rng.integers(0, VOCAB, (len(seeds), num))

    @staticmethod
    def invalid(text, at, num, seeds, positions, rng):
        return rng.choice([-1, VOCAB, 2**31 - 1], (len(seeds), num))

    @staticmethod
    def same_noise(text, at, num, seeds, positions, rng, table=1):
        """A drafter with a law of its own, that draws with the noise of the target."""
        words = np.stack([text[np.arange(len(seeds)), at + i] for i in range(2)], axis=1)
        out = np.zeros((len(seeds), num), int)
        for i in range(num):
            out[:, i] = DRAW(tables()[table][words[:, 0], words[:, 1]], seeds, positions + i)
            words = np.stack([words[:, 1], out[:, i]], axis=1)
        return out

    right = staticmethod(partial(same_noise.__func__, table=0))


def run_steps(propose, drafts, seeds, first, length, ragged=False):
    """The text of several steps, and how many draft tokens were accepted and drafted."""
    rng = np.random.default_rng(5)
    batch, rows = len(seeds), np.arange(len(seeds))
    text = np.full((batch, length + drafts + 3), VOCAB)
    at, accepted, drafted = np.zeros(batch, int), 0, 0
    while at.min() < length:
        at = np.minimum(at, length)  # rows that are done wait
        ids = np.asarray(propose(text, at, drafts, seeds, first + at, rng)).reshape(batch, drafts)
        lengths = rng.integers(0, drafts + 1, batch) if ragged else np.full(batch, drafts)
        before = text[rows[:, None], at[:, None] + [0, 1]]
        seen = np.concatenate([before, np.clip(ids, 0, VOCAB)], axis=1)
        target = tables()[0][seen[:, :-1], seen[:, 1:]]
        out = VERIFY(ids.astype(np.int32), target, seeds, first + at, draft_lengths=lengths)
        n, tokens = np.asarray(out["num_accepted"]), np.asarray(out["tokens"])
        live = at < length
        accepted, drafted = accepted + n[live].sum(), drafted + lengths[live].sum()
        for b in rows[live]:
            text[b, at[b] + 2 : at[b] + n[b] + 3] = tokens[b, : n[b] + 1]
            at[b] += n[b] + 1
    return text[:, 2 : length + 2], accepted, drafted


@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("drafter", ["anything", "invalid", "same_noise", "right"])
def test_text_is_a_function_of_the_seed_alone(drafter, drafts):
    """Whatever the drafts and their number: the text that plain draws give."""
    seeds, first, length = np.arange(48) * 977, 13, 14
    plain = plain_text(tables()[0], seeds, first, length)
    assert len({tuple(x) for x in plain.tolist()}) == 48
    propose = getattr(Drafters, drafter)
    for ragged in (False, True):
        text, accepted, drafted = run_steps(propose, drafts, seeds, first, length, ragged)
        np.testing.assert_array_equal(text, plain)
        if drafts:
            rate = accepted / drafted
            low, high = {
                "anything": (0.02, 0.3),
                "invalid": (0, 0),
                "same_noise": (0.35, 0.9),
                "right": (1, 1),
            }[drafter]
            assert low <= rate <= high


def test_law_of_the_text_is_the_targets():
    """The first three tokens over 20,000 seeds, whatever a drafter with the same noise proposes."""
    count = 20_000
    target = tables()[0].astype(np.float64)
    target /= target.sum(axis=-1, keepdims=True)
    text, *_ = run_steps(Drafters.same_noise, 2, np.arange(count), 0, 3)
    none = VOCAB
    joint = target[none, none][:, None, None] * target[none, :VOCAB][:, :, None]
    joint = joint * target[:VOCAB, :VOCAB]
    counts = np.bincount(text @ [VOCAB**2, VOCAB, 1], minlength=VOCAB**3)
    assert chi_square(counts, joint) > FALSE_ALARM
    # The control: the drafter's law in place of the target's.
    draft = tables()[1].astype(np.float64)
    joint = draft[none, none][:, None, None] * draft[none, :VOCAB][:, :, None]
    assert chi_square(counts, joint * draft[:VOCAB, :VOCAB]) < FALSE_ALARM


def random_step(seed, batch=64, drafts=3, vocab=5):
    """Ids of which about half are the target's own, target, seeds and positions."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.ones(vocab), (batch, drafts + 1)).astype(np.float32)
    seeds = rng.integers(0, 2**32, batch).astype(np.uint32)
    positions = rng.integers(0, 2**20, batch).astype(np.int32)
    own = own_draws(target, seeds, positions)
    ids = np.where(rng.random(own.shape) < 0.6, own, rng.integers(0, vocab, own.shape))
    return ids[:, :-1].astype(np.int32), target, seeds, positions


def own_draws(target, seeds, positions):
    """The target's own token in each row, (B, G+1)."""
    shape = target.shape[:2]
    places = np.asarray(positions)[:, None] + np.arange(shape[1], dtype=np.int32)
    return np.asarray(DRAW(target, np.broadcast_to(seeds[:, None], shape), places))


def expected(ids, own, lengths):
    """The verdict by hand."""
    n, tokens = [], []
    for row, draws, length in zip(ids.tolist(), own.tolist(), lengths, strict=True):
        k = 0
        while k < length and row[k] == draws[k] >= 0:
            k += 1
        n.append(k)
        tokens.append([*row[:k], draws[k], *[-1] * (len(row) - k)])
    return {"num_accepted": n, "tokens": tokens}


def assert_same(got, want):
    assert list(got) == ["num_accepted", "tokens"]
    for key in want:
        np.testing.assert_array_equal(np.asarray(got[key]), np.asarray(want[key]))


@pytest.mark.parametrize("vocab", [1, 5, 1100])
def test_verdict_is_that_of_plain_draws(vocab):
    ids, target, seeds, positions = random_step(6, vocab=vocab)
    own = own_draws(target, seeds, positions)
    lengths = np.random.default_rng(7).integers(0, 4, 64)
    if vocab == 5:
        assert_same(VERIFY(ids, target, seeds, positions), expected(ids, own, [3] * 64))
    out = VERIFY(ids, target, seeds, positions, draft_lengths=lengths)
    assert_same(out, expected(ids, own, lengths))
    assert len(np.unique(np.asarray(out["num_accepted"]))) > 2


def test_verdict_on_logits_with_settings_by_row():
    rng = np.random.default_rng(8)
    batch, drafts, vocab = 64, 3, 40
    logits = rng.standard_normal((batch, drafts + 1, vocab)).astype(np.float32) * 2
    settings = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 2.0], batch).astype(np.float32),
        "top_k": rng.choice([0, 3, 10], batch).astype(np.int32),
        "mask": rng.random((batch, vocab)) < 0.7,
    }
    law = sx.law_from_logits(logits, **settings)
    seeds, positions = rng.integers(0, 1000, (2, batch)).astype(np.int32)
    own = own_draws(law, seeds, positions)
    assert np.take_along_axis(settings["mask"], own, axis=1).all()
    is_greedy = settings["temperature"] == 0
    best = np.where(settings["mask"][:, None], logits, -INF).argmax(axis=2)
    np.testing.assert_array_equal(own[is_greedy], best[is_greedy])
    ids = np.where(rng.random(own.shape) < 0.7, own, 0)[:, :-1].astype(np.int32)
    assert_same(VERIFY(ids, law, seeds, positions), expected(ids, own, [drafts] * batch))


def test_acceptance_with_the_same_noise_is_that_of_the_formula():
    """sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), within 5 standard deviations; Daliri et al."""
    rng, count = np.random.default_rng(9), 20_000
    for mix in (0.2, 0.7):
        p = rng.dirichlet(np.ones(20)).astype(np.float32)
        q = (mix * p + (1 - mix) * rng.dirichlet(np.ones(20))).astype(np.float32)
        ids = DRAW(np.broadcast_to(q, (count, 20)), np.arange(count), 3)[:, None]
        out = VERIFY(ids, np.broadcast_to(p, (count, 2, 20)), np.arange(count), 3)
        p, q = p.astype(np.float64), q.astype(np.float64)
        want = (1 / np.maximum(p / p[:, None], q / q[:, None]).sum(axis=1)).sum()
        distance = np.abs(p / p.sum() - q / q.sum()).sum() / 2
        assert (1 - distance) / (1 + distance) < want < 1 - distance
        rate = np.asarray(out["num_accepted"]).mean()
        assert abs(rate - want) < SIGMAS * np.sqrt(want * (1 - want) / count)
        # The control: noise of its own agrees less often.
        ids = DRAW(np.broadcast_to(q, (count, 20)), np.arange(count), 99)[:, None]
        out = VERIFY(ids, np.broadcast_to(p, (count, 2, 20)), np.arange(count), 3)
        assert np.asarray(out["num_accepted"]).mean() < want - 0.1


# --- Edges


def test_nan_row_gives_no_token_and_accepts_none():
    ids, target, seeds, positions = random_step(10, batch=8)
    own = own_draws(target, seeds, positions)
    for wrong in (NAN, 0.0, INF):
        for i in range(4):
            broken = target.copy()
            broken[:, i] = wrong
            mixed = own[:, :-1].copy()
            mixed[1::2, min(i, 2)] = -1  # equals the missing token, and must not pass
            out = VERIFY(mixed.astype(np.int32), broken, seeds, positions)
            want = own.copy()
            want[:, i] = -1
            assert_same(out, expected(mixed, want, [3] * 8))
            assert (np.asarray(out["num_accepted"])[::2] == i).all()
    one = target.copy()
    one[:, 1, 4] = NAN  # one entry is enough
    assert (np.asarray(VERIFY(ids, one, seeds, positions)["tokens"])[:, 1] != own[:, 1]).all()


def test_rows_that_are_not_got_to_are_not_read():
    ids, target, seeds, positions = random_step(11)
    own = own_draws(target, seeds, positions)
    want = expected(ids, own, [3] * 64)
    beyond = np.arange(4) > np.array(want["num_accepted"])[:, None]
    assert_same(VERIFY(ids, np.where(beyond[..., None], NAN, target), seeds, positions), want)
    lengths = np.random.default_rng(12).integers(0, 4, 64)
    beyond = np.arange(4) > lengths[:, None]
    out = VERIFY(
        np.where(beyond[:, 1:], -7, ids),
        np.where(beyond[..., None], np.float32(NAN), target),
        seeds,
        positions,
        draft_lengths=lengths,
    )
    got, want = (np.asarray(x["tokens"]) for x in (out, expected(ids, own, lengths)))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1, -(2**31)])
def test_id_outside_the_vocabulary_fails(wrong):
    _, target, seeds, positions = random_step(13)
    own = own_draws(target, seeds, positions)
    ids = own[:, :-1].copy()
    ids[:, 1] = wrong
    out = VERIFY(ids, target, seeds, positions)
    assert_same(out, expected(ids, own, [3] * 64))
    assert (np.asarray(out["num_accepted"]) == 1).all()


def test_lengths_are_clipped():
    ids, target, seeds, positions = random_step(14)
    own = own_draws(target, seeds, positions)
    lengths = np.random.default_rng(15).integers(-3, 7, 64).astype(np.int8)
    out = VERIFY(ids, target, seeds, positions, draft_lengths=lengths)
    assert_same(out, expected(ids, own, np.clip(lengths, 0, 3)))


def test_no_drafts():
    _, target, seeds, positions = random_step(16)
    out = VERIFY(np.zeros((64, 0), np.int32), target[:, :1], seeds, positions)
    own = own_draws(target, seeds, positions)
    assert_same(out, {"num_accepted": [0] * 64, "tokens": own[:, :1]})


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes_of_laws(dtype):
    """Narrow laws are read in float32, whatever they were."""
    ids, target, seeds, positions = random_step(17)
    with jax.enable_x64(dtype == "float64"):
        given = jnp.asarray(target).astype(dtype)
        out = sx.verify_coupled(ids, given, seeds, positions)
        want = own_draws(np.asarray(given.astype(jnp.float32)), seeds, positions)
        assert out["tokens"].dtype == out["num_accepted"].dtype == jnp.int32
    assert_same(out, expected(ids, want, [3] * 64))


def test_seeds_and_positions_are_32_bits_of_any_integer_type():
    law = np.full((3, 40), 0.025, np.float32)
    want = DRAW(law, np.uint32([7, 2**32 - 1, 2**31]), np.uint32([2**31, 5, 2**32 - 2]))
    same = [
        (np.int64([7, -1, -(2**31)]), np.int64([2**31, 5, 2**32 - 2])),
        (np.int32([7, -1, -(2**31)]), np.int32([-(2**31), 5, -2])),
        (jnp.array([7, -1, -(2**31)], jnp.int32), jnp.array([2**31, 5, 2**32 - 2], jnp.uint32)),
        ([7, 2**32 - 1, 2**31], [2**31, 5, 2**32 - 2]),
    ]
    for seeds, positions in same:
        np.testing.assert_array_equal(sx.coupled_draw(law, seeds, positions), want)
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(x), jnp.int64) for x in same[0])
        np.testing.assert_array_equal(sx.coupled_draw(law, *wide), want)
    one = sx.coupled_draw(law, 7, 3)
    np.testing.assert_array_equal(one, sx.coupled_draw(law, np.full(3, 7), np.full(3, 3)))
    assert sx.coupled_draw(law[0], 7, 3).tolist() == one[0].tolist()


def test_positions_go_on_beyond_31_bits():
    target = np.full((1, 3, 40), 0.025, np.float32)
    places = np.uint32([[2**31 - 1, 2**31, 2**31 + 1]])
    own = np.asarray(DRAW(target, 3, places))
    out = VERIFY(own[:, :2], target, 3, np.int32([2**31 - 1]))
    assert_same(out, {"num_accepted": [2], "tokens": own})


def test_errors():
    ids, target, seeds, positions = random_step(18, batch=4)
    with pytest.raises(TypeError, match="seeds"):
        sx.verify_coupled(ids, target, seeds.astype(np.float32), positions)
    with pytest.raises(TypeError, match="positions"):
        sx.coupled_draw(target, 1, 0.5)
    with pytest.raises(ValueError, match=r"seeds.*\(4,\).*\(3,\)"):
        sx.verify_coupled(ids, target, seeds[:3], positions)
    with pytest.raises(ValueError, match="positions"):
        sx.verify_coupled(ids, target, seeds, positions[:, None])
    with pytest.raises(ValueError, match=r"seeds.*\(4, 4\).*\(4,\)"):
        sx.coupled_draw(target, seeds, 0)
    with pytest.raises(ValueError, match="draft_tokens"):
        sx.verify_coupled(ids[:, :2], target, seeds, positions)
    with pytest.raises(TypeError, match="draft_tokens"):
        sx.verify_coupled(ids.astype(np.float32), target, seeds, positions)
    with pytest.raises(ValueError, match=r"^target must.*\(4, 5\)"):
        sx.verify_coupled(ids, target[:, 0], seeds, positions)
    with pytest.raises(ValueError, match="draft_lengths"):
        sx.verify_coupled(ids, target, seeds, positions, draft_lengths=[1, 2])


# --- Programs


def test_row_alone_is_as_in_a_batch():
    """Bit for bit: in each row noise makes all logits equal but one, larger in its last bit."""
    size, batch, drafts = 1100, 12, 3
    seeds, places = np.arange(batch).astype(np.uint32), 5 + np.arange(drafts + 1)
    logits = np.stack([-noise(seed, places, np.arange(size)) for seed in seeds])
    own = np.random.default_rng(0).integers(0, size, (batch, drafts + 1))
    larger = np.take_along_axis(logits, own[..., None], axis=2)
    larger = np.nextafter(larger, np.float32(INF))
    np.put_along_axis(logits, own[..., None], larger, axis=2)

    law = sx.law_from_logits(logits)
    np.testing.assert_array_equal(own_draws(law, seeds, np.full(batch, 5)), own)
    alone = [sx.coupled_draw(sx.law_from_logits(logits[b, 2]), b, 7) for b in range(batch)]
    np.testing.assert_array_equal(alone, own[:, 2])
    mapped = jax.vmap(sx.coupled_draw, (0, 0, None))(law, seeds, places)
    np.testing.assert_array_equal(mapped, own)
    # Verification makes the draws anew, in another program; with drafts of any length.
    for rows, length in ((slice(None), drafts), (slice(3, 4), 1)):
        law = sx.law_from_logits(logits[rows, : length + 1])
        out = VERIFY(own[rows, :length].astype(np.int32), law, seeds[rows], 5)
        tokens = own[rows, : length + 1]
        assert_same(out, {"num_accepted": [length] * len(tokens), "tokens": tokens})


def test_program_for_accelerators_gives_the_same():
    """Lowered for another platform, run on CPU; the draws have no loop over rows."""
    ids, target, seeds, positions = random_step(19, vocab=600)
    skip = [jax.export.DisabledSafetyCheck.platform()]
    export = partial(jax.export.export, platforms=["cuda"], disabled_checks=skip)
    arguments = ids, target, seeds, positions
    program = export(VERIFY)(*arguments)
    assert_same(jax.jit(program.call)(*arguments), VERIFY(*arguments))
    program = export(DRAW)(target[:, 0], seeds, positions)
    assert "stablehlo.while" not in program.mlir_module()
    want = DRAW(target[:, 0], seeds, positions)
    np.testing.assert_array_equal(jax.jit(program.call)(target[:, 0], seeds, positions), want)


def test_jit_vmap_scan_while_and_shard_map():
    steps = [random_step(seed, batch=4) for seed in range(6)]
    stacked = [np.stack(x) for x in zip(*steps, strict=True)]
    want = [VERIFY(*step) for step in steps]
    want = {key: np.stack([w[key] for w in want]) for key in want[0]}
    assert_same(jax.jit(jax.vmap(sx.verify_coupled))(*stacked), want)

    @jax.jit
    def scan(arguments):
        return jax.lax.scan(lambda _, a: (None, sx.verify_coupled(*a)), None, arguments)[1]

    assert_same(scan(stacked), want)

    @jax.jit
    def loop(arguments):
        def body(state):
            i, total = state
            out = sx.verify_coupled(*(a[i] for a in arguments))
            return i + 1, total + out["num_accepted"]

        start = jnp.int32(0), jnp.zeros(4, jnp.int32)
        return jax.lax.while_loop(lambda s: s[0] < 6, body, start)[1]

    total = loop([jnp.asarray(x) for x in stacked])
    np.testing.assert_array_equal(total, want["num_accepted"].sum(axis=0))

    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    spec = PartitionSpec("rows")
    shard = partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    out = jax.jit(shard(sx.verify_coupled))(*steps[0])
    assert_same(out, {key: value[0] for key, value in want.items()})
    draw = jax.jit(shard(sx.coupled_draw))(steps[0][1][:, 0], *steps[0][2:])
    np.testing.assert_array_equal(draw, DRAW(steps[0][1][:, 0], *steps[0][2:]))


def test_no_retrace_for_new_values():
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(temperature, ids, target, *keys, draft_lengths):
        law = sx.law_from_probs(target, temperature=temperature)
        return sx.verify_coupled(ids, law, *keys, draft_lengths=draft_lengths)

    seen = set()
    for seed in range(4):
        lengths = np.roll(np.array([3, 1, 0, 2], np.int32), seed)
        temperature = np.float32(seed / 2)
        out = once(temperature, *random_step(seed, batch=4), draft_lengths=lengths)
        seen.add(np.asarray(out["tokens"]).tobytes())
    assert len(seen) == 4
