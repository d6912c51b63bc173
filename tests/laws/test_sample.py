"""Drawing tokens: by given uniforms, exactly; by a key, in distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

import speculax as sx
from speculax import sampling
from speculax.conformance.sampler import oracle
from speculax.conformance.sampler.oracle import LARGEST_UNIFORM, Settings
from speculax.laws import flat_law

FALSE_ALARM = 1e-9  # of each chi-square; and seeds are fixed: what passes once passes always
SAMPLE = jax.jit(sx.sample)
WITH_KEY = jax.jit(lambda law, key: sx.sample(law, key=key))


# --- Given uniforms


def dyadic_row(size, rng):
    """Whole numbers whose sum is a power of two, some of them zero: no sum is ever rounded."""
    cuts = np.sort(rng.integers(0, 2**20, size - 1))
    parts = np.diff(np.concatenate([[0], cuts, [2**20]]))
    parts[rng.random(size) < 0.3] = 0
    parts[rng.integers(size)] += 2**20 - parts.sum()
    return parts


@pytest.mark.parametrize(
    ("size", "how"),
    [(1, "law"), (5, "law"), (513, "array"), (1500, "law"), (1500, "counts")],
)
def test_uniform_on_the_boundary(size, how):
    """Cumulative probability that meets the uniform is not more than it: the next token."""
    rng = np.random.default_rng(size)
    parts = dyadic_row(size, rng)
    ends = np.cumsum(parts)
    places = np.unique(np.concatenate([ends[:-1], ends[:-1] - 1, ends[:-1] + 1, [0, 2**20 - 1]]))
    places = places[(places >= 0) & (places < 2**20)]
    places = np.resize(rng.permutation(places)[:256], 256)
    want = np.searchsorted(ends, places, side="right")
    row = parts.astype(np.float32) / (1 if how == "counts" else 2**20)
    table = jnp.broadcast_to(jnp.asarray(row), (256, size))
    law = table if how == "array" else sx.law_from_probs(table)
    drawn = SAMPLE(law, (places / 2**20).astype(np.float32))
    np.testing.assert_array_equal(drawn, want)
    assert drawn.dtype == jnp.int32


def test_uniform_on_the_boundary_of_equal_logits():
    """Equal logits weigh one each: with a power of two of them, nothing is rounded."""
    size = 1024
    kept = np.random.default_rng(0).permutation(2 * size) < size
    law = sx.law_from_logits(jnp.full((size, 2 * size), -3.7), mask=kept, top_p=0.75)
    places = np.arange(size)
    drawn = SAMPLE(law, (places / size).astype(np.float32))
    np.testing.assert_array_equal(drawn, np.flatnonzero(kept)[places])
    below = np.nextafter((places[1:] / size).astype(np.float32), np.float32(0))
    drawn = SAMPLE(law, np.append(below, np.float32(0)))
    np.testing.assert_array_equal(drawn[:-1], np.flatnonzero(kept)[places[:-1]])


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_uniforms_outside_their_range(kind):
    """They are clipped, NaN counts as 0; the ends have mass."""
    probs = np.array([0, 0.25, 0.5, 0.25, 0], np.float32)
    make = sx.law_from_probs if kind == "probs" else sx.law_from_logits
    with np.errstate(divide="ignore"):
        row = probs if kind == "probs" else np.log(probs)
    uniforms = [0, -0.0, -1, -np.inf, np.nan, 2**-149, LARGEST_UNIFORM, 1, 1.5, np.inf, 0.25, 0.75]
    want = [1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 2, 3]
    law = make(jnp.broadcast_to(jnp.asarray(row), (len(want), 5)))
    np.testing.assert_array_equal(SAMPLE(law, np.array(uniforms, np.float32)), want)
    for dtype in ("float16", "bfloat16") if kind == "probs" else ():
        some = [0, 0.5, 1, np.nan, -3, np.inf, 0.125, 0.375, 0.875, 0.5, 0.5, 0.5]
        want = [1, 2, 3, 1, 1, 3, 1, 2, 3, 2, 2, 2]
        np.testing.assert_array_equal(SAMPLE(law, jnp.asarray(some, dtype)), want)


ROUNDING = 2.0**-20  # how far a float32 draw may be off, as a part of the row's mass


def off_the_oracle(drawn, weights, uniforms):
    """How far outside its token's share of the mass each uniform lies; and the wrong tokens."""
    cumulative = np.cumsum(weights) / weights.sum()
    before = np.append(0, cumulative[:-1])
    off = np.maximum(before[drawn] - uniforms, uniforms - cumulative[drawn])
    exact = np.array([oracle.draw(weights, u) for u in uniforms])
    return off, np.flatnonzero(drawn != exact)


def test_inverse_of_the_cumulative_law():
    """Rows of logits with settings against the inverse CDF of their float64 laws."""
    size = 32_000
    rng = np.random.default_rng(size)
    table = 3 * rng.standard_normal((24, size), np.float32)
    temperature = rng.choice([0.5, 1.0, 1.5], 24).astype(np.float32)
    top_k = rng.choice([0, 5, 200], 24)
    top_p = rng.choice([1, 0.9, 0.5], 24).astype(np.float32)
    mask = rng.random((24, size)) < 0.7
    law = sx.law_from_logits(
        table, temperature=temperature, top_k=top_k, top_p=top_p, min_p=1e-5, mask=mask
    )
    uniforms = rng.random(24, np.float32)
    drawn = np.asarray(SAMPLE(law, uniforms))
    wrong = 0
    for r in range(24):
        settings = Settings(temperature[r], top_k[r], top_p[r], 1e-5, mask[r])
        want = oracle.row_law(table[r], settings)
        assert want.may[drawn[r]]
        off, differs = off_the_oracle(drawn[r : r + 1], want.after, uniforms[r : r + 1])
        assert off[0] <= 4 * ROUNDING
        wrong += len(differs)
    assert wrong <= 1


def test_greedy_rows_beside_sampled_ones():
    rng = np.random.default_rng(20)
    table = np.round(2 * rng.standard_normal((64, 700))).astype(np.float32)
    temperature = np.where(np.arange(64) % 2, 1.0, 0.0).astype(np.float32)
    uniforms = rng.random(64, np.float32)
    drawn = np.asarray(SAMPLE(sx.law_from_logits(table, temperature=temperature), uniforms))
    np.testing.assert_array_equal(drawn[::2], table[::2].argmax(-1))
    for r in range(1, 64, 2):
        off, _ = off_the_oracle(drawn[r : r + 1], np.exp(np.float64(table[r])), uniforms[r : r + 1])
        assert off[0] <= ROUNDING
    assert (drawn[1::2] != table[1::2].argmax(-1)).any()


MASKED = 3000


def masked_rows():
    """Rows most of which no token may come from, with what is left where rounding is worst."""
    rng = np.random.default_rng(21)
    mask = np.stack(
        [
            np.arange(MASKED) % 2 == 0,
            np.arange(MASKED) >= MASKED // 2,
            np.arange(MASKED) < MASKED // 2,
            rng.random(MASKED) < 0.5,
            np.arange(MASKED) == 511,
            np.arange(MASKED) % 512 == 0,
        ]
    )
    return (3 * rng.standard_normal((6, MASKED))).astype(np.float32), mask


def test_only_tokens_that_are_kept():
    """At the ends of the range and between, by uniforms and by key."""
    table, mask = masked_rows()
    ends = [0, 2.0**-149, 2.0**-24, 1 - 2.0**-22, 1 - 2.0**-23, LARGEST_UNIFORM]
    uniforms = [*ends, *np.random.default_rng(22).random(26)]
    for filters in ({}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}):
        many = [Settings(mask=row, **filters) for row in mask]
        laws = [oracle.row_law(row, s, is_logits=True) for row, s in zip(table, many, strict=True)]
        given = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters}
        law = sx.law_from_logits(table, mask=mask, **given)
        drawn = [SAMPLE(law, np.full(6, u, np.float32)) for u in uniforms]
        drawn += [WITH_KEY(law, jax.random.key(seed)) for seed in range(32)]
        for tokens in np.asarray(drawn):
            assert all(one.may[y] for one, y in zip(laws, tokens, strict=True))
        assert len({*np.asarray(drawn)[:, 3].tolist()}) > 5


def test_unusable_arrays():
    rows = np.full((5, 3), 0.25, np.float32)
    rows[1, 0], rows[2, 1], rows[3], rows[4] = np.nan, np.inf, 0, [-1, 0.5, -1]
    np.testing.assert_array_equal(SAMPLE(rows, np.full(5, 0.5, np.float32)), [1, -1, -1, -1, 1])
    keys = jax.random.split(jax.random.key(0), 5)
    np.testing.assert_array_equal(np.asarray(WITH_KEY(rows, keys)) == -1, [0, 1, 1, 1, 0])


# --- Keys


def chi_square_failures(tokens, probs, groups=None):
    """Words if the counts of tokens do not fit the law; `groups` (V,) merges rare tokens."""
    groups = np.arange(len(probs)) if groups is None else groups
    expected = np.bincount(groups, probs) * len(tokens)
    seen = np.bincount(groups[tokens], minlength=len(expected))
    if seen[expected == 0].any():
        return ["tokens without mass"]
    seen, expected = seen[expected > 0], expected[expected > 0]
    assert expected.min() >= 5
    statistic = ((seen - expected) ** 2 / expected).sum()
    limit = chi2.isf(FALSE_ALARM, len(expected) - 1)
    return [] if statistic < limit else [f"chi-square {statistic:.1f}, limit {limit:.1f}"]


SMALL = np.array([0.35, 0.05, 0.0, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("key", "keys"), [(jax.random.key(1), "one a row"), (jax.random.PRNGKey(1), "one")]
)
def test_small_law_by_key(key, keys):
    rows = 60_000
    if keys == "one a row":
        key = jax.random.split(key, rows)
    table = jnp.broadcast_to(jnp.asarray(SMALL, jnp.float32), (rows, 6))
    tokens = np.asarray(WITH_KEY(table, key))
    assert not chi_square_failures(tokens, SMALL)
    assert chi_square_failures(tokens, np.roll(SMALL, 3))
    slightly_off = oracle.normalized(SMALL + np.array([0.04, 0, 0, 0, 0, 0]))
    assert chi_square_failures(tokens, slightly_off)
    # Neighbours are independent: so are pairs of tokens.
    pairs = np.outer(SMALL, SMALL).reshape(-1)
    assert not chi_square_failures(6 * tokens[::2] + tokens[1::2], pairs)


UNEVEN = 1500  # two full blocks and a part of one


def uneven_row():
    """Masses that differ by block, and inside each; some are zero."""
    rng = np.random.default_rng(30)
    row = rng.gamma(0.7, size=UNEVEN) * np.repeat([1, 0.2, 3], [512, 512, UNEVEN - 1024])
    row[rng.random(UNEVEN) < 0.2] = 0
    return oracle.normalized(row)


def groups_of(probs, num):
    """Tokens put together in groups of nearly equal mass, in random order."""
    order = np.random.default_rng(31).permutation(len(probs))
    groups = np.empty(len(probs), int)
    groups[order] = np.minimum((np.cumsum(probs[order]) * num).astype(int), num - 1)
    return groups


def test_large_law_by_key():
    """The public function: the blocks, and groups of tokens from all over."""
    row, rows = uneven_row(), 4096
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(row), jnp.float32)
    law = sx.law_from_logits(jnp.broadcast_to(logits, (rows, UNEVEN)))
    tokens = np.concatenate([WITH_KEY(law, jax.random.key(seed)) for seed in range(10)])
    assert (row[tokens] > 0).all()
    blocks = np.arange(UNEVEN) // 512
    assert not chi_square_failures(tokens, row, blocks)
    assert not chi_square_failures(tokens, row, groups_of(row, 300))
    assert chi_square_failures(tokens, np.roll(row, 1), groups_of(row, 300))


def drawer(row, one_uniform=False, chunk=2**16):
    """`draw(key)` is `chunk` tokens of one row, whose block sums are computed once."""
    law = flat_law(sx.law_from_probs(jnp.asarray(row[None], jnp.float32)))
    place = jnp.int32(0)
    sums = law.sum_blocks(place)

    @jax.jit
    def draw(key):
        if one_uniform:
            noise = jax.random.uniform(key, (chunk,)), None
        else:
            pairs = sampling._pairs_of_uniforms(key, (chunk,))
            noise = pairs[:, 0], pairs[:, 1]
        # By the thousand, which stays in cache.
        noise = jax.tree.map(lambda x: x.reshape(-1, min(chunk, 1024)), noise)
        choose = jax.vmap(lambda noise: sampling.choose_from(law, place, sums, *noise))
        return jax.lax.map(choose, noise).reshape(-1)

    return draw


def test_every_token_of_a_large_law_by_key():
    """All 1500 tokens apart, a third of a million draws."""
    row = uneven_row()
    row[row > 0] += 2e-5
    row = oracle.normalized(row)
    draw = drawer(row)
    tokens = np.concatenate([draw(jax.random.key(seed)) for seed in range(5)])
    assert not chi_square_failures(tokens, row)
    off = row.copy()
    off[:512] *= 1.05
    assert chi_square_failures(tokens, oracle.normalized(off), np.arange(UNEVEN) // 512)


@pytest.mark.slow
def test_drawer_draws_as_sample_does():
    """What the tests of many draws call is what `sample` calls."""
    row = uneven_row().astype(np.float32)
    table = jnp.broadcast_to(jnp.asarray(row), (512, UNEVEN))
    drawn = drawer(row, chunk=512)(jax.random.key(3))
    np.testing.assert_array_equal(drawn, WITH_KEY(table, jax.random.key(3)))


def test_row_with_its_own_key_alone_and_in_company():
    rng = np.random.default_rng(32)
    law = sx.law_from_logits(
        rng.standard_normal((6, 1300), np.float32),
        temperature=np.array([0, 0.5, 1, 1, 1.5, 1], np.float32),
        min_p=np.array([0, 0, 0.02, 0, 0.1, 0], np.float32),
    )
    keys = jax.random.split(jax.random.key(4), 6)
    together = np.asarray(sx.sample(law, key=keys))
    for rows in ([0], [3], [5], [5, 4, 3, 2, 1, 0], [3, 3, 0, 3, 3, 3]):
        rows = np.array(rows)
        some = jax.tree.map(lambda x, rows=rows: x[rows], law)
        np.testing.assert_array_equal(sx.sample(some, key=keys[rows]), together[rows])
    assert len({*together.tolist()}) > 3
    other = np.asarray(sx.sample(law, key=jax.random.split(jax.random.key(5), 6)))
    assert (other != together)[1:].any()
    assert other[0] == together[0]  # greedy


def test_typed_and_legacy_keys_draw_the_same():
    table = jnp.full((64, 40), 1.0)
    drawn = np.asarray(sx.sample(table, key=jax.random.key(7)))
    np.testing.assert_array_equal(drawn, sx.sample(table, key=jax.random.PRNGKey(7)))
    assert len({*drawn.tolist()}) > 20


def test_rows_of_any_rank():
    """Leading axes are only a shape."""
    table = np.random.default_rng(33).random((2, 3, 9), np.float32)
    keys = jax.random.split(jax.random.key(8), (2, 3))
    by_row = np.asarray(sx.sample(table, key=keys))
    flat = sx.sample(table.reshape(6, 9), key=keys.reshape(6))
    np.testing.assert_array_equal(by_row.reshape(6), flat)
    assert sx.sample(table[0, 0], key=keys[0, 0]) == by_row[0, 0]


def test_keys_under_vmap():
    table = jnp.asarray(np.random.default_rng(34).random((4, 30), np.float32))
    keys = jax.random.split(jax.random.key(10), 5)
    draw = lambda key: sx.sample(table, key=key)
    want = np.stack([draw(key) for key in keys])
    np.testing.assert_array_equal(jax.vmap(draw)(keys), want)


# --- Errors


def test_wrong_arguments():
    table, uniforms, key = np.full((2, 3), 0.3, np.float32), np.zeros(2, np.float32), jax.random.key
    with pytest.raises(TypeError, match="uniforms or key"):
        sx.sample(table)
    with pytest.raises(TypeError, match="uniforms or key"):
        sx.sample(table, uniforms, key=key(0))
    with pytest.raises(ValueError, match=r"uniforms.*\(2,\).*\(3,\)"):
        sx.sample(table, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"key.*\(2,\).*\(3,\)"):
        sx.sample(table, key=jax.random.split(key(0), 3))
    with pytest.raises(TypeError, match="int32"):
        sx.sample(np.ones((2, 3), np.int32), uniforms)
    with pytest.raises(ValueError, match=r"\(2, 0\)"):
        sx.sample(np.ones((2, 0), np.float32), uniforms)


# --- Many draws

TEN_MILLION = 10_000_000
TAIL, TAIL_MASS = 131_072, 1e-3


def many_draws(draw, chunk, seed=40):
    for number in range(-(-TEN_MILLION // chunk)):
        yield np.asarray(draw(jax.random.fold_in(jax.random.key(seed), number)))


@pytest.mark.slow
@pytest.mark.parametrize("one_uniform", [False, True], ids=["key", "one uniform"])
def test_rare_tokens_are_all_within_reach(one_uniform):
    """A tail of 1e-3 spread over 131,072 ids, of which 10**7 draws should meet some 9,630.

    The number of tail draws is 10,000 give or take 100, and the number of distinct ids among them
    then has a deviation of about 95 more or less: 9,400 is 2.4 deviations below. One uniform
    reaches only the ids in which a multiple of 2**-23 falls, about 8,390, and meets some 5,840.
    """
    row = np.full(TAIL + 1, TAIL_MASS / TAIL)
    row[TAIL // 3] = 1 - TAIL_MASS
    met = set()
    for tokens in many_draws(drawer(row, one_uniform), 2**16):
        met |= {*tokens[tokens != TAIL // 3].tolist()}
    if one_uniform:
        assert 5_500 < len(met) < 6_200
    else:
        assert 9_400 <= len(met) < 9_900


@pytest.mark.slow
@pytest.mark.parametrize("one_uniform", [False, True], ids=["key", "one uniform"])
def test_no_masked_token_in_ten_million_draws(one_uniform):
    """Half of 262,144 tokens masked."""
    size = 262_144
    rng = np.random.default_rng(41)
    kept = rng.permutation(size) < size // 2
    row = oracle.normalized(np.exp(2 * rng.standard_normal(size)) * kept)
    for tokens in many_draws(drawer(row, one_uniform), 2**16):
        assert kept[tokens].all()
