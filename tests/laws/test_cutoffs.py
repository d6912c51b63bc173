"""Top-k, top-p and min-p, found without sorting, against the sorted definition.

The checks take a function that makes laws, so that wrong definitions go through the very same
ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

import speculax as sx
from speculax.conformance.sampler import mutants, oracle
from speculax.conformance.sampler.definition import Sampler, laws_of
from speculax.conformance.sampler.oracle import Settings
from speculax.laws import flat_law

from .expand import expand

MAKE = {"logits": sx.law_from_logits, "probs": sx.law_from_probs}
# From this size on, likely tokens are looked for in 64 blocks of 64 and what is left over.
BLOCK, SPLIT = 64, 65 * 64


def columns(many):
    """Settings of rows as keyword arguments; masks and biases only if there are any."""
    given = {
        "temperature": np.array([s.temperature for s in many], np.float32),
        "top_k": np.array([s.top_k for s in many], np.int32),
        "top_p": np.array([s.top_p for s in many], np.float32),
        "min_p": np.array([s.min_p for s in many], np.float32),
    }
    if many[0].mask is not None:
        given["mask"] = np.stack([s.mask for s in many])
    if many[0].bias is not None:
        given["bias"] = np.stack([s.bias for s in many])
    return given


def library(table, many, order, kind, side_by_side=False):
    """The laws as the library has them, everything traced."""
    given = jax.tree.map(jnp.asarray, columns(many))
    law = MAKE[kind](jnp.asarray(table), order=order, **given)
    return np.asarray(expand(law, side_by_side=side_by_side))


def failures(laws, table, many, order, kind="logits"):
    """What is wrong with the laws that a function makes; a list of words."""
    probs = laws(table, many, order, kind)
    table = np.asarray(table).astype(np.float32)
    return [
        f"row {r}, {many[r][:4]}: {words}"
        for r in range(len(table))
        for words in oracle.failures(
            probs[r], oracle.row_law(table[r], many[r], order, kind == "logits")
        )
    ]


# --- Rows


def rows_of_all_kinds(size, rng):
    """Logits (R, V) of every kind that a bisection may stumble over."""
    normal = rng.standard_normal((12, size))
    rank = rng.permutation(size) + 1.0
    half = rng.random((3, size)) < 0.5
    half[:, rng.integers(size)] = True
    place = np.arange(size)
    at, last = rng.integers(size), size - 1
    rows = [
        3 * normal[0],
        10 * normal[1],
        0.01 * normal[2],  # flat
        -1.1 * np.log(rank),  # as in a language
        np.round(2 * normal[3]),  # heavy ties
        np.where(half[0], 0.0, -1.0),
        np.where(half[0], 0.0, -0.0),
        np.zeros(size),
        np.full(size, -7.3),
        np.where(place == at, 0.0, -np.inf),
        np.where(place == last, 30.0, 0.0),
        np.where(half[1], 3 * normal[4], -np.inf),
        np.where(half[2], 3 * normal[5], np.finfo(np.float32).min),
        -1000 - np.abs(3 * normal[6]),  # negative only
        1 + rng.integers(0, 50, size) * 2.0**-23,  # tiny differences
        1e4 * normal[7],
        np.where(normal[8] > 0, 3e38, -3e38),
        np.sort(3 * normal[9]),
        np.sort(3 * normal[10])[::-1],
        np.where(place >= size - size % BLOCK, 4.0, 0.0) + 0.5 * normal[11],
    ]
    return np.stack(rows).astype(np.float32)


def probabilities_of_all_kinds(size, rng):
    """The same as probabilities, and what only those can be: negative, unnormalised, dyadic."""
    logits = rows_of_all_kinds(size, rng).astype(np.float64)
    weights = oracle.normalized(np.exp(logits - logits.max(-1, keepdims=True)))
    weights[0] *= 7
    weights[1, rng.random(size) < 0.3] *= -1
    weights[1, 0] = 0.5
    dyadic = 2.0 ** -rng.integers(1, 30, size)
    return np.concatenate([weights, dyadic[None]]).astype(np.float32)


def any_settings(size, rng, kind, masked=True):
    """One row of settings; each value neutral about one time in four."""
    top_k = [0, 0, 1, 2, 3, 50, max(size - 1, 0), size, size + 7, int(rng.integers(size + 1))]
    top_p = [1, 1, 1, 0.9, 0.9, 0.5, 0.1, 1e-3, 1e-30, 0.999, 1 - 2.0**-24, rng.random() + 1e-9]
    min_p = [0, 0, 0, 0, 0.02, 0.05, 0.3, 1, 1e-5, rng.random()]
    # Powers of probabilities are off by 2**-24 / temperature: cold rows are for logits alone.
    cold = [0.05, 1e-3, 1e-30] if kind == "logits" else [0.5]
    temperature = [1, 1, 1, 0, 0.3, 0.7, 1.5, 3, 100, *cold]
    mask = bias = None
    if masked:
        mask = rng.random(size) < rng.choice([1, 0.9, 0.5, 0.02])
        mask[rng.integers(size)] = True
        bias = np.where(rng.random(size) < 0.05, -np.inf, 0.0)
        if kind == "logits":
            bias = rng.choice([0, 0, 1]) * np.round(rng.standard_normal(size), 1) + bias
        bias = bias.astype(np.float32)
    return Settings(*(rng.choice(x) for x in (temperature, top_k, top_p, min_p)), mask, bias)


def all_failures(laws, size, seed, order, kind="logits", dtype=None, masked=True):
    rng = np.random.default_rng([seed, size])
    table = (rows_of_all_kinds if kind == "logits" else probabilities_of_all_kinds)(size, rng)
    if dtype is not None:
        with np.errstate(over="ignore"):
            table = np.asarray(jnp.asarray(np.clip(table, -6e4, 6e4)).astype(dtype))
    many = [any_settings(size, rng, kind, masked) for _ in table]
    return failures(laws, table, many, order, kind)


SMALL = [1, 2, 5, 63, 64, 65]
MIDDLE = [4095, 4096, 4097, SPLIT, SPLIT + 1]
LARGE = [32_000, 151_936]
BOTH_ORDERS = [5, SPLIT + 1]


@pytest.mark.parametrize(
    ("size", "order"),
    [(size, "sequential") for size in SMALL + MIDDLE + LARGE]
    + [(size, "joint") for size in BOTH_ORDERS],
)
def test_logits(size, order):
    """Everything differs by row and is traced."""
    seeds = range(30 if size < 100 else 6 if size < 10_000 else 2)
    assert not [x for seed in seeds for x in all_failures(library, size, seed, order)]


@pytest.mark.parametrize(
    ("size", "order"),
    [(size, "joint") for size in (1, 64, 32_000)] + [(SPLIT + 1, "sequential")],
)
def test_probabilities(size, order):
    seeds = range(30 if size < 100 else 6 if size < 10_000 else 2)
    assert not [x for seed in seeds for x in all_failures(library, size, seed, order, "probs")]


@pytest.mark.parametrize(
    ("kind", "size", "order"), [("logits", SPLIT + 1, "joint"), ("probs", 65, "sequential")]
)
def test_rows_side_by_side(kind, size, order):
    """The form without a loop over rows, in which one search waits for another."""
    laws = partial(library, side_by_side=True)
    assert not [x for seed in range(4) for x in all_failures(laws, size, seed, order, kind)]


@pytest.mark.parametrize(
    ("kind", "size", "order", "dtype"),
    [
        ("logits", 65, "joint", "bfloat16"),
        ("logits", SPLIT + 1, "sequential", "float16"),
        ("probs", 65, "sequential", "bfloat16"),
    ],
)
def test_narrow_types(kind, size, order, dtype):
    """They are full of ties; arithmetic on them is float32."""
    for seed in range(4):
        assert not all_failures(library, size, seed, order, kind, dtype)


# --- Values worked out by hand

FLAT, STEPS, TENTHS = [0.25] * 4, [0.5, 0.25, 0.125, 0.125], [0.4, 0.3, 0.2, 0.1]
BY_HAND = [  # probabilities, settings, and what is kept of the row that temperature leaves
    # The k-th value and its ties.
    (STEPS, Settings(top_k=1), [1, 0, 0, 0]),
    (STEPS, Settings(top_k=2), [2, 1, 0, 0]),
    (STEPS, Settings(top_k=3), STEPS),
    (STEPS, Settings(top_k=9), STEPS),
    (FLAT, Settings(top_k=1), FLAT),
    ([0.5, 0, 0.5, 0], Settings(top_k=3), [1, 0, 1, 0]),
    # The smallest set that reaches the mass, and its ties.
    (STEPS, Settings(top_p=0.4), [1, 0, 0, 0]),
    (STEPS, Settings(top_p=0.6), [2, 1, 0, 0]),
    (STEPS, Settings(top_p=0.76), STEPS),
    (FLAT, Settings(top_p=0.1), FLAT),
    # The temperature comes first.
    (TENTHS, Settings(temperature=0.5, top_p=0.51), [1, 0, 0, 0]),
    (TENTHS, Settings(temperature=2, top_p=0.65), [2, 3**0.5, 2**0.5, 0]),
    (TENTHS, Settings(temperature=2, min_p=0.6), [2, 3**0.5, 2**0.5, 0]),
    # The ratio to the likeliest.
    (TENTHS, Settings(min_p=0.4), [4, 3, 2, 0]),
    (TENTHS, Settings(min_p=1), [1, 0, 0, 0]),
    # The likeliest is the lowest id of a tie, whatever the cut-offs.
    ([0.2, 0.4, 0.4, 0.0], Settings(temperature=0, top_k=3, top_p=0.1), [0, 1, 0, 0]),
    (FLAT, Settings(temperature=0), [1, 0, 0, 0]),
]
ORDERS_BY_HAND = {
    # 4/7 of what top-k leaves reaches a half; 0.4 of the whole does not.
    "sequential": [
        (TENTHS, Settings(top_k=2, top_p=0.5), [1, 0, 0, 0]),
        (TENTHS, Settings(top_k=2, top_p=0.6, min_p=0.9), [1, 0, 0, 0]),
        (TENTHS, Settings(top_k=3, top_p=0.75), [4, 3, 0, 0]),
    ],
    "joint": [
        (TENTHS, Settings(top_k=2, top_p=0.5), [4, 3, 0, 0]),
        (TENTHS, Settings(top_k=2, top_p=0.6, min_p=0.9), [1, 0, 0, 0]),
        (TENTHS, Settings(top_k=3, top_p=0.75), [4, 3, 2, 0]),
    ],
}


def failures_by_hand(laws, order, kind):
    rows, many, want = zip(*BY_HAND, *ORDERS_BY_HAND[order], strict=False)
    table, want = np.array(rows, np.float32), oracle.normalized(np.array(want, np.float64))
    with np.errstate(divide="ignore"):
        got = laws(np.log(table) if kind == "logits" else table, many, order, kind)
    return [
        f"{table[r]}, {many[r][:4]}: {got[r]}"
        for r in range(len(table))
        if not np.allclose(got[r], want[r], rtol=2e-6, atol=0)
    ]


@pytest.mark.parametrize(
    ("kind", "order"), [("logits", "sequential"), ("logits", "joint"), ("probs", "sequential")]
)
def test_worked_out_by_hand(kind, order):
    assert not failures_by_hand(library, order, kind)


def test_ratio_met_exactly_is_met():
    """Min-p of probabilities, where the numbers are powers of two and nothing is rounded."""
    law = sx.law_from_probs(jnp.array([STEPS] * 2), min_p=jnp.array([0.5, 0.25]))
    np.testing.assert_array_equal(np.asarray(expand(law)) > 0, [[1, 1, 0, 0], [1, 1, 1, 1]])


# --- Wrong definitions


def by_definition(make):
    """The laws as a sampler by definition has them."""

    def laws(table, many, order, kind):
        table = np.asarray(table).astype(np.float64)
        with np.errstate(divide="ignore"):
            logits = table if kind == "logits" else np.log(np.maximum(table, 0))
        return laws_of(make(order), logits, many)

    return laws


# Those whose laws are wrong in rows of moderate logits.
MUTANTS = [
    "TopPBeforeTemperature",
    "TopPOfTheWholeLaw",
    "TopPOfWhatTopKLeaves",
    "TemperatureIgnored",
    "TemperatureMultiplied",
    "SettingsOfTheFirstRow",
    "TopKDropsTies",
    "TopPDropsTies",
    "TopKOneMore",
    "TopKOneLess",
    "TopKWraps",
    "TopPWithoutTheTokenThatReaches",
    "MinPOfOne",
    "MinPIgnored",
    "NeverRenormalised",
    "GreedyLogitsInverted",
    "GreedyTakesTheLastOfATie",
    "ColdInsteadOfGreedy",
]


def plain_failures(laws, order):
    """The check of `test_logits` on rows of moderate logits, where the definition needs no care."""
    rng = np.random.default_rng(11)
    table = rows_of_all_kinds(65, rng)[[0, 2, 3, 4, 5, 7, 9, 11, 17, 18] * 8]
    many = [any_settings(65, rng, "probs", masked=False) for _ in table]
    many[::7] = [s._replace(temperature=0.0) for s in many[::7]]
    return failures(laws, table, many, order)


@pytest.mark.parametrize("order", ORDERS_BY_HAND)
def test_definition_passes(order):
    laws = by_definition(Sampler)
    assert not plain_failures(laws, order)
    assert not [x for kind in MAKE for x in failures_by_hand(laws, order, kind)]


@pytest.mark.parametrize(
    ("name", "order"),
    [(name, order) for name in MUTANTS for order in mutants.MUTANTS[name].orders],
)
def test_wrong_definition_fails(name, order):
    laws = by_definition(mutants.MUTANTS[name])
    assert plain_failures(laws, order)
    assert failures_by_hand(laws, order, "logits")


# --- Any row


@st.composite
def rows_with_ties(draw, rows=8, size=6):
    score = st.sampled_from([-np.inf, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0])
    table = draw(
        st.lists(st.lists(score, min_size=size, max_size=size), min_size=rows, max_size=rows)
    )
    number = st.floats(0, 1, width=32, allow_subnormal=False)
    row = st.builds(
        Settings,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.0, 2.0]),
        top_k=st.integers(0, size + 1),
        top_p=number.filter(lambda p: p > 0) | st.just(1.0),
        min_p=number | st.just(0.0),
        mask=st.none(),
        bias=st.none(),
    )
    many = draw(st.lists(row, min_size=rows, max_size=rows))
    return np.array(table, np.float32), many


@hypothesis_settings(deadline=None, max_examples=60, derandomize=True)
@given(data=rows_with_ties())
def test_any_row(data):
    table, many = data
    assert not failures(library, table, many, "sequential")


@jax.jit
def lowest_kept(law):
    """The cut-off of each row."""
    flat = flat_law(law)
    return jax.lax.map(lambda row: flat.prepare(row).cutoff, jnp.arange(law.shape[0]))


@pytest.mark.parametrize("size", [7, SPLIT + 5])
def test_top_k_of_any_floats(size):
    """Numbers of any sign and size, as random bits have them, and the k-th of them."""
    rng = np.random.default_rng(12)
    for _ in range(4):
        bits = rng.integers(0, 2**32, (32, size), np.uint32, endpoint=False)
        table = bits.view(np.float32)
        table = np.where(np.isfinite(table) & (np.abs(table) > 1e-37), table, np.float32(0))
        table[::4] = np.abs(table[::4])
        k = rng.integers(1, size + 1, 32)
        cut = np.asarray(lowest_kept(sx.law_from_logits(table, top_k=k)))[:, None]
        kth = np.sort(table)[np.arange(32), size - k][:, None]
        np.testing.assert_array_equal(table >= cut, table >= kth)


# --- What is off


NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
USED = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.01}


@pytest.mark.parametrize("kind", MAKE)
def test_neutral_is_as_none(kind):
    """Each feature alone; and one that others look at, beside them."""
    rng = np.random.default_rng(13)
    size = 130
    table = rows_of_all_kinds(size, rng)[:6]
    if kind == "probs":
        table = oracle.normalized(np.exp(table - table.max(-1, keepdims=True)))
    neutral = {name: jnp.full(6, value) for name, value in NEUTRAL.items()}
    neutral |= {"mask": jnp.ones((6, size), bool), "bias": jnp.zeros((6, size))}
    used = {name: jnp.full(6, value) for name, value in USED.items()}

    def law(**settings):
        return np.asarray(expand(MAKE[kind](table, **settings)))

    def assert_same(one, other):
        np.testing.assert_array_equal(one > 0, other > 0)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=0)

    plain = law()
    for name in neutral if kind == "logits" else ("temperature", "min_p"):
        alone = law(**{name: neutral[name]})
        assert_same(alone, plain)
        if name in used:
            assert (law(**{name: used[name]}) != alone).any()
        if name == "top_k" and kind == "logits":
            without = law(**{key: value for key, value in used.items() if key != name})
            assert_same(law(**{**used, name: neutral[name]}), without)


# --- Without cut-offs


def rows_with_odd_beginnings(size, rng):
    """Rows whose first tokens say nothing about the rest: low, high, without mass, out of range."""
    plain = 3 * rng.standard_normal((10, size))
    start = np.arange(size) < 512
    shifts = [-20, -60, -120, -1e4, 20, 200, 1e4, -np.inf, np.finfo(np.float32).min, 0]
    return np.where(start, plain + np.array(shifts)[:, None], plain).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("logits", ()),
        ("logits", ("temperature",)),
        ("logits", ("temperature", "mask", "bias")),
        ("probs", ("temperature", "mask")),
    ],
)
def test_laws_without_cutoffs(kind, settings):
    """Their largest score is not always looked for."""
    for seed in range(6):
        rng = np.random.default_rng([14, seed])
        rows = [rows_of_all_kinds(1500, rng), rows_with_odd_beginnings(1500, rng)]
        table = np.concatenate(rows)
        if kind == "probs":
            table = np.exp(table.astype(np.float64) - table.max(-1, keepdims=True))
            table = table.astype(np.float32)
        many = [any_settings(1500, rng, kind)._asdict() for _ in table]
        many = [Settings(**{name: given[name] for name in settings}) for given in many]
        given = {name: value for name, value in columns(many).items() if name in settings}
        law = MAKE[kind](jnp.asarray(table), **jax.tree.map(jnp.asarray, given))
        probs = np.asarray(expand(law))
        assert not failures(lambda *_, probs=probs: probs, table, many, "sequential", kind)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_rows_may_differ_in_the_order_of_cut_offs(make):
    table = np.random.default_rng(0).random((6, 50)).astype(np.float32)
    is_joint = np.array([False, True, True, False, True, False])
    settings = {"temperature": 0.3, "top_k": 20, "top_p": 0.8}
    mixed = expand(make(table, order=is_joint, **settings))
    orders = [expand(make(table, order=order, **settings)) for order in ("sequential", "joint")]
    assert not np.array_equal(*orders)
    np.testing.assert_array_equal(mixed, np.where(is_joint[:, None], orders[1], orders[0]))
    with pytest.raises(TypeError, match="order"):
        make(table, order=np.zeros(6))
    with pytest.raises(ValueError, match="an array of bool"):
        make(table, order="mixed")
