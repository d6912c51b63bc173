"""Making laws: shapes, types, errors, and what becomes of rows whose settings mean nothing."""

import re
from contextlib import nullcontext

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.sampler import oracle
from speculax.conformance.sampler.oracle import Settings

from .expand import expand

MAKE = {"logits": sx.law_from_logits, "probs": sx.law_from_probs}
BATCH, ROWS, SIZE = 3, 2, 7  # a batch of three, two rows each


def logits(seed=0, lead=(BATCH, ROWS), size=SIZE):
    return (2 * np.random.default_rng(seed).standard_normal((*lead, size))).astype(np.float32)


def probabilities(seed=0, lead=(BATCH, ROWS), size=SIZE):
    return oracle.normalized(np.exp(logits(seed, lead, size)))


TABLES = {"logits": logits, "probs": probabilities}


def expected(table, setting, is_logits=True, order="sequential"):
    """The same from the oracle; `setting(b, i)` gives the settings of a row."""
    want = np.empty(table.shape)
    for place in np.ndindex(table.shape[:-1]):
        law = oracle.row_law(table[place], setting(*place), order, is_logits)
        want[place] = np.nan if law is None else law.after
    return want


# --- Shapes: a setting has some of the leading axes, from the left

SETTING_VALUES = {
    "temperature": [0.5, 0.0, 1.7, 0.9, 1.0, 2.5],
    "top_k": [0, 2, 3, 9, 1, 4],
    "top_p": [1.0, 0.7, 0.45, 0.95, 0.2, 0.6],
    "min_p": [0.0, 0.3, 0.05, 1.0, 0.5, 0.15],
}


def spread(values, shape, lead=(BATCH, ROWS)):
    """A setting of a shape, and the same one value a row."""
    given = np.resize(np.array(values), shape)
    whole = np.broadcast_to(given.reshape(given.shape + (1,) * (len(lead) - given.ndim)), lead)
    return given, whole


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("logits", [(), (BATCH,), (BATCH, ROWS), (BATCH,)]),
        ("logits", [(BATCH,), (BATCH, ROWS), (), ()]),
        ("probs", [(BATCH, ROWS), (), (BATCH,), (BATCH, ROWS)]),
    ],
)
def test_settings_by_number_row_or_position(kind, shapes):
    table = TABLES[kind]()
    spreads = [
        spread(SETTING_VALUES[x][1:], y) for x, y in zip(SETTING_VALUES, shapes, strict=True)
    ]
    given = {name: values for name, (values, _) in zip(SETTING_VALUES, spreads, strict=True)}
    want = expected(table, lambda *at: Settings(*(all[at] for _, all in spreads)), kind == "logits")
    for settings in (given, jax.tree.map(jnp.asarray, given)):
        got = expand(MAKE[kind](table, **settings))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("logits", (SIZE,)),
        ("logits", (BATCH, SIZE)),
        ("logits", (BATCH, ROWS, SIZE)),
        ("probs", (BATCH, SIZE)),
    ],
)
def test_masks_and_biases_by_vocabulary_row_or_position(kind, shape):
    rng = np.random.default_rng(1)
    mask, bias = rng.random(shape) < 0.6, rng.standard_normal(shape).astype(np.float32)
    mask[..., 2] = True
    table = TABLES[kind]()
    whole = [
        np.broadcast_to(x.reshape(shape[:-1] + (1,) * (3 - len(shape)) + shape[-1:]), table.shape)
        for x in (mask, bias)
    ]
    want = expected(
        table, lambda *at: Settings(mask=whole[0][at], bias=whole[1][at]), kind == "logits"
    )
    law = MAKE[kind](table, mask=mask, bias=bias)
    np.testing.assert_allclose(expand(law), want, rtol=1e-5, atol=1e-30)
    # Repeated in memory neither is.
    assert law.mask.size == mask.size
    assert law.bias.size == bias.size


def test_settings_of_requests_that_have_several_rows():
    """`rows` says which entry of the settings a row uses."""
    rng = np.random.default_rng(2)
    rows = np.array([2, 0, 0, 1, 2, 2])
    table = logits(3, (6,))
    mask, bias = rng.random((3, SIZE)) < 0.7, rng.standard_normal((3, SIZE)).astype(np.float32)
    mask[:, 0] = True
    temperature, top_k = np.array([0.5, 0.0, 2.0], np.float32), np.array([3, 0, 5])
    law = sx.law_from_logits(
        table, temperature=temperature, top_k=top_k, top_p=0.9, mask=mask, bias=bias, rows=rows
    )
    want = expected(
        table,
        lambda r: Settings(
            temperature[rows[r]], top_k[rows[r]], 0.9, 0.0, mask[rows[r]], bias[rows[r]]
        ),
    )
    np.testing.assert_allclose(expand(law), want, rtol=1e-5, atol=1e-30)
    assert law.mask.shape == law.bias.shape == (3, SIZE)
    shared = sx.law_from_logits(table, mask=mask[0], rows=rows)
    want = expected(table, lambda r: Settings(mask=mask[0]))
    np.testing.assert_allclose(expand(shared), want, rtol=1e-5, atol=1e-30)


def test_one_row_alone():
    law = sx.law_from_logits(logits(4, ()), temperature=0.5, mask=np.arange(SIZE) != 1)
    assert law.shape == (SIZE,)
    want = oracle.row_law(logits(4, ()), Settings(0.5, mask=np.arange(SIZE) != 1)).after
    np.testing.assert_allclose(expand(law), want, rtol=1e-5)
    assert sx.sample(law, 0.3).shape == ()


def test_lists_and_numbers_will_do():
    law = sx.law_from_probs([[0.5, 0.25, 0.25]], temperature=1, top_k=[2], top_p=1, min_p=0)
    np.testing.assert_allclose(expand(law), [[0.5, 0.25, 0.25]], rtol=1e-6)


# --- Types


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("logits", "bfloat16"),
        ("logits", "float16"),
        ("logits", "float8_e4m3fn"),
        ("logits", "float64"),
        ("probs", "bfloat16"),
    ],
)
def test_types_of_tables(kind, dtype):
    """Narrow tables stay narrow; arithmetic is that of float32."""
    wide = dtype == "float64"
    with jax.enable_x64(True) if wide else nullcontext():
        table = jnp.asarray(TABLES[kind]()).astype(dtype)
        law = MAKE[kind](table, temperature=0.8, top_k=np.int64(5), top_p=0.95)
        assert law.table.dtype == table.dtype
        got = expand(law)
    table = np.asarray(table).astype(np.float32)
    want = expected(table, lambda *at: Settings(0.8, 5, 0.95), kind == "logits")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-30)
    assert got.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_types_of_top_k(dtype):
    for top_k in (np.array([2, 7, 0], dtype), jnp.asarray(np.array([2, 7, 0], dtype))):
        law = sx.law_from_logits(logits(), top_k=top_k)
        want = expected(logits(), lambda b, i: Settings(top_k=[2, 7, 0][b]))
        np.testing.assert_allclose(expand(law), want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("large", [2**31, 2**40])
def test_top_k_beyond_32_bits_keeps_all(large):
    law = sx.law_from_logits(logits(), top_k=large)
    want = expected(logits(), lambda *at: Settings())
    np.testing.assert_allclose(expand(law), want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32"])
def test_types_of_other_settings(dtype):
    ones = jnp.ones(BATCH, dtype)
    law = sx.law_from_logits(logits(), temperature=ones, top_p=ones, min_p=ones)
    want = expected(logits(), lambda *at: Settings(min_p=1.0))
    np.testing.assert_allclose(expand(law), want, rtol=1e-5, atol=1e-30)
    bias = jnp.arange(SIZE, dtype=jnp.float32).astype("bfloat16")
    want = expected(logits(), lambda *at: Settings(bias=np.arange(SIZE)))
    np.testing.assert_allclose(
        expand(sx.law_from_logits(logits(), bias=bias)), want, rtol=1e-5, atol=1e-30
    )


# --- Errors

BAD_VALUES = {
    "temperature": [-0.5, np.nan, np.inf, -np.inf, -1, 1e39],
    "top_k": [-1, -(2**40)],
    "top_p": [0, -0.1, 1.01, 2, np.nan, np.inf, 1e-50],
    "min_p": [-0.1, 1.5, np.nan, -np.inf],
}
BAD = [(name, value) for name, values in BAD_VALUES.items() for value in values]


@pytest.mark.parametrize(("name", "value"), BAD)
@pytest.mark.parametrize("kind", MAKE)
def test_bad_settings_on_the_host(kind, name, value):
    """Numbers and arrays on the host are judged at once; the message names setting and value."""
    table = TABLES[kind]()
    good = SETTING_VALUES[name][0]
    for given in (value, np.array([good, value, good]), [good, good, value]):
        with pytest.raises(ValueError, match=name) as error:
            MAKE[kind](table, **{name: given})
        named = float(re.search(r"got (\S+)\.$", str(error.value)).group(1))
        assert named == value or np.isnan([named, value]).all()


@pytest.mark.parametrize("kind", MAKE)
def test_wrong_shapes(kind):
    table = TABLES[kind]()
    wrong = [
        ({"temperature": np.ones(2)}, "temperature", "(2,)"),
        ({"top_k": np.ones((BATCH, 1), int)}, "top_k", "(3, 1)"),
        ({"top_p": np.ones((BATCH, ROWS, SIZE))}, "top_p", "(3, 2, 7)"),
        ({"min_p": np.ones((ROWS, BATCH))}, "min_p", "(2, 3)"),
        ({"mask": np.ones(SIZE + 1, bool)}, "mask", "(8,)"),
        ({"mask": np.array(True)}, "mask", "()"),
        ({"mask": np.ones((ROWS, SIZE), bool)}, "mask", "(2,)"),
        ({"bias": np.ones((BATCH, 1), np.float32)}, "bias", "(3, 1)"),
        ({"bias": np.ones((1, SIZE), np.float32)}, "bias", "(1,)"),
        ({"ids": np.arange(SIZE - 1)}, "ids", "(6,)"),
        ({"rows": np.arange(BATCH)}, "rows", "(3,)"),
        ({"rows": np.zeros((BATCH, ROWS), int), "top_k": np.ones((2, 2), int)}, "top_k", "(2, 2)"),
    ]
    for given, name, shape in wrong:
        with pytest.raises(ValueError, match=name) as error:
            MAKE[kind](table, **given)
        assert shape in str(error.value), error.value
    for values in (np.float32(1), np.ones((2, 0), np.float32)):
        with pytest.raises(ValueError, match=kind) as error:
            MAKE[kind](values)
        assert str(values.shape) in str(error.value)
    with pytest.raises(ValueError, match=r"order.*together"):
        MAKE[kind](table, order="together")


@pytest.mark.parametrize("kind", MAKE)
def test_rows_that_name_no_settings(kind):
    table = TABLES[kind]()[:, 0]  # (BATCH, SIZE)
    rows = np.zeros(BATCH, np.int32)
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=rf"rows must be numbers from 0 to 1.*{wrong}"):
            MAKE[kind](table, top_k=np.array([1, 2]), rows=np.where(rows == rows[0], wrong, 0))
    with pytest.raises(ValueError, match=r"same N requests.*temperature 2, top_k 3"):
        MAKE[kind](table, top_k=np.array([1, 2, 3]), temperature=np.ones(2), rows=rows)
    settings = {"top_k": jnp.array([1, 2]), "mask": np.ones((2, table.shape[-1]), bool)}
    for name, setting in settings.items():
        for number, is_known in ((-1, False), (0, True), (1, True), (2, False), (-(2**31), False)):
            law = MAKE[kind](table, rows=jnp.full(BATCH, number), **{name: setting})
            drawn = sx.sample(law, jnp.full(BATCH, 0.5))
            assert ((drawn >= 0) == is_known).all(), (name, number)


@pytest.mark.parametrize("kind", MAKE)
def test_wrong_types(kind):
    table = TABLES[kind]()
    wrong = {
        "temperature": np.ones(BATCH, bool),
        "top_k": np.float32(2),
        "top_p": True,
        "min_p": np.complex64(0.1),
        "mask": np.ones(SIZE, np.int32),
        "bias": np.ones(SIZE, np.int32),
        "ids": np.ones(SIZE, np.float32),
        "rows": np.zeros((BATCH, ROWS), np.float32),
    }
    for name, value in wrong.items():
        with pytest.raises(TypeError, match=name) as error:
            MAKE[kind](table, **{name: value})
        assert str(np.asarray(value).dtype) in str(error.value)
    with pytest.raises(TypeError, match=rf"{kind}.*int32.*{re.escape('(2, 3)')}"):
        MAKE[kind](np.ones((2, 3), np.int32))


@jax.jit
def read_everything(law, uniforms):
    """What a law gives, by each way in."""
    normal = law.normalize()
    drawn = (
        sx.sample(law, uniforms),
        sx.sample(normal, uniforms),
        sx.sample(law, key=jax.random.key(0)),
    )
    return drawn, expand(normal)


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_settings_on_device(name, value):
    """There they cannot raise: the row has no law, and the others are as if it were not there."""
    table = logits(5, (3,))
    given = {}
    for setting, values in SETTING_VALUES.items():
        given[setting] = np.array(values[1:4], np.int32 if setting == "top_k" else np.float32)
    good = [Settings(*(given[setting][r] for setting in SETTING_VALUES)) for r in range(3)]
    with np.errstate(over="ignore"):
        given[name][1] = max(value, -(2**31)) if name == "top_k" else np.float32(value)
    law = sx.law_from_logits(table, **jax.tree.map(jnp.asarray, given))
    uniforms = np.array([0.3, 0.5, 0.8], np.float32)
    drawn, probs = read_everything(law, uniforms)
    for r in (0, 2):
        want = oracle.row_law(table[r], good[r])
        np.testing.assert_allclose(probs[r], want.after, rtol=1e-5, atol=1e-30)
        assert drawn[0][r] == drawn[1][r] == oracle.draw(want.after, uniforms[r])
        assert want.may[drawn[2][r]]
    assert all(tokens[1] == -1 for tokens in drawn)
    assert np.isnan(probs[1]).all()


SOME = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1}


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("logits", {}), ("probs", {}), ("probs", SOME), ("probs", {"temperature": 0.0})],
)
def test_rows_that_cannot_be_used(kind, setting):
    """NaN, infinity and no mass, also where only a mask left them."""
    table = TABLES[kind](6, (7,)).astype(np.float32)
    nothing = -np.inf if kind == "logits" else 0.0
    table[1, 3] = np.nan
    table[2, 3] = np.inf
    table[3] = nothing
    table[5, 2] = np.nan
    mask = np.ones((7, SIZE), bool)
    mask[4] = False
    mask[5, 2] = False  # what is masked may be anything
    law = MAKE[kind](table, mask=mask, **setting)
    drawn, probs = read_everything(law, np.full(7, 0.5, np.float32))
    for tokens in drawn:
        np.testing.assert_array_equal(tokens == -1, [0, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(np.isnan(probs).all(-1), [0, 1, 1, 1, 1, 0, 0])
    assert not np.isnan(probs[np.array([0, 5, 6])]).any()


# --- Pytrees


def settings_of_all_kinds(seed=7):
    rng = np.random.default_rng(seed)
    mask = rng.random((BATCH, SIZE)) < 0.7
    mask[:, 3] = True
    return {
        "temperature": rng.choice([0.0, 0.6, 1.0, 1.8], BATCH).astype(np.float32),
        "top_k": rng.integers(0, SIZE, BATCH).astype(np.int32),
        "top_p": rng.uniform(0.3, 1, BATCH).astype(np.float32),
        "min_p": rng.uniform(0, 0.4, BATCH).astype(np.float32),
        "mask": mask,
        "bias": rng.standard_normal((BATCH, ROWS, SIZE)).astype(np.float32),
    }


def test_laws_go_in_and_out_of_jit():
    order = "joint"
    law = sx.law_from_logits(logits(), order=order, **settings_of_all_kinds())
    made_inside = jax.jit(lambda x, s: sx.law_from_logits(x, order=order, **s))(
        logits(), settings_of_all_kinds()
    )
    leaves, tree = jax.tree.flatten(law)
    rebuilt = jax.tree.unflatten(tree, leaves)
    want = expand(law)
    for other in (made_inside, rebuilt, jax.tree.map(lambda x: x, law)):
        assert other.order == order
        np.testing.assert_array_equal(expand(other), want)
    s = settings_of_all_kinds()
    by_oracle = expected(
        logits(),
        lambda b, i: Settings(
            *(s[name][b] for name in SETTING_VALUES), s["mask"][b], s["bias"][b, i]
        ),
        order=order,
    )
    np.testing.assert_allclose(want, by_oracle, rtol=1e-5, atol=1e-30)


def test_laws_in_scan():
    """A law is carried along, and laws are made from what is scanned over."""
    tables = logits(8, (4, BATCH, ROWS))
    given = settings_of_all_kinds()
    uniforms = np.random.default_rng(9).random((4, BATCH, ROWS), np.float32)

    @jax.jit
    def run(tables, uniforms):
        def body(law, inputs):
            table, uniform = inputs
            return sx.law_from_logits(table, **given), sx.sample(law, uniform)

        first = sx.law_from_logits(tables[0], **given)
        return jax.lax.scan(body, first, (tables, uniforms))

    last, drawn = run(tables, uniforms)
    laws = [sx.law_from_logits(table, **given) for table in tables]
    for k in range(4):
        np.testing.assert_array_equal(drawn[k], sx.sample(laws[max(k - 1, 0)], uniforms[k]))
    jax.tree.map(np.testing.assert_array_equal, last, laws[3])


def test_laws_under_vmap():
    tables = logits(10, (5, BATCH, ROWS))
    many = [settings_of_all_kinds(seed) for seed in range(5)]
    stacked = {name: np.stack([s[name] for s in many]) for name in many[0]}
    uniforms = np.random.default_rng(11).random((5, BATCH, ROWS), np.float32)

    def draw(table, uniform, given):
        return sx.sample(sx.law_from_logits(table, **given), uniform)

    drawn = jax.jit(jax.vmap(draw))(tables, uniforms, stacked)
    for k in range(5):
        np.testing.assert_array_equal(drawn[k], draw(tables[k], uniforms[k], many[k]))


def test_laws_themselves_under_vmap():
    """Leaves that have the batch axis are mapped over; a law is cut into laws of one row."""
    law = sx.law_from_logits(logits(12, (6,)), temperature=np.linspace(0, 2, 6), top_k=np.arange(6))
    uniforms = np.random.default_rng(13).random(6, np.float32)
    np.testing.assert_array_equal(jax.vmap(sx.sample)(law, uniforms), sx.sample(law, uniforms))


def test_no_retrace_for_new_values():
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(table, given, uniforms):
        return sx.sample(sx.law_from_logits(table, **given), uniforms)

    seen = set()
    for seed in range(4):
        uniforms = np.random.default_rng(seed).random((BATCH, ROWS), np.float32)
        seen.add(np.asarray(once(logits(seed), settings_of_all_kinds(seed), uniforms)).tobytes())
    assert len(seen) == 4


# --- Normalisers


def test_normalized_laws_are_the_same_laws():
    table = probabilities()
    table[1, 0, 3] = np.nan
    law = sx.law_from_probs(table, order="joint", **settings_of_all_kinds())
    normal = law.normalize()
    assert normal.shape == law.shape
    assert all(x.shape == (BATCH, ROWS) for x in jax.tree.leaves(normal.normalizers))
    np.testing.assert_allclose(expand(normal), expand(law), rtol=1e-6, atol=0)


def test_normalizing_what_needs_none():
    plain = sx.law_from_probs(probabilities())
    assert plain.normalize().normalizers is None


def test_a_bias_of_80_on_probabilities():
    """As on logits, though it is a factor exp(bias)."""
    probs = np.array([[0.5, 0.25, 0.25, 0]], np.float32)
    token = jnp.array([1])
    for bias in ([0, 80, 0, 80], [-80] * 4, [0, -80, 0, 0], [80, 0, -80, 0]):
        bias = np.array(bias, np.float32)
        got = sx.log_probs(sx.law_from_probs(probs, bias=bias), token)
        with np.errstate(divide="ignore"):
            want = sx.log_probs(sx.law_from_logits(np.log(probs), bias=bias), token)
        np.testing.assert_allclose(got.after, want.after, rtol=1e-5)
        assert np.isfinite(want.after).all()


def test_integers_beyond_32_bits_are_the_nearest():
    probs = np.array([[0.5, 0.25, 0.25]], np.float32)
    law = sx.law_from_probs(probs, top_k=np.uint32(2**32 - 1))
    assert sx.sample(law, jnp.array([0.9])).tolist() == [2]
    with jax.enable_x64(True):
        wide = jnp.int64(2**32 + 1)
        law = sx.law_from_probs(probs, top_k=wide)
        assert sx.sample(law, jnp.array([0.9])).tolist() == [2]
        assert np.isneginf(sx.log_probs(law, wide[None]).after).all()
        ids = jnp.array([[2**32 + 1, 5, -(2**40)]])
        assert sx.law_from_probs(probs, ids=ids).ids.tolist() == [[2**31 - 1, 5, -(2**31)]]


def test_a_subnormal_top_p_is_zero():
    with pytest.raises(ValueError, match="top_p must be above 0"):
        sx.law_from_probs(np.ones((1, 3)), top_p=1e-39)
