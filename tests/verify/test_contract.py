"""The contract: examples, shapes, transformations, and errors raised while tracing."""

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import speculax as sx
from speculax.conformance.verifier import oracle
from speculax.conformance.verifier.edges import SETTINGS

LOSSY = list(SETTINGS)
VERIFIERS = {
    "token": (sx.verify_token, oracle.token_row),
    "greedy": (sx.verify_greedy, oracle.greedy_row),
    "block": (sx.verify_block, oracle.block_row),
    "sampled": (sx.verify_sampled, oracle.sampled_row),
    "typical": (sx.verify_lossy_typical, oracle.lossy(oracle.typical, **SETTINGS["typical"])),
    "thresholds": (
        sx.verify_lossy_thresholds,
        oracle.lossy(oracle.thresholds, **SETTINGS["thresholds"]),
    ),
    "top_k": (sx.verify_lossy_top_k, oracle.lossy(oracle.top_k, **SETTINGS["top_k"])),
    "synthetic": (
        sx.verify_lossy_synthetic,
        oracle.lossy(oracle.synthetic, **SETTINGS["synthetic"]),
    ),
}
VERIFIERS = {
    name: (partial(function, **SETTINGS.get(name, {})), oracle.batched(row), row)
    for name, (function, row) in VERIFIERS.items()
}
LOSSLESS = [name for name in VERIFIERS if name not in LOSSY]
JITTED = {name: jax.jit(function) for name, (function, *_) in VERIFIERS.items()}

EXAMPLES = [
    (
        [[3, 2]],
        [[[0.2, 0.59, 0.04, 0.17], [0.12, 0.43, 0.42, 0.03]]],
        [[[0.04, 0.44, 0.24, 0.28], [0.27, 0.36, 0.23, 0.14], [0.19, 0.34, 0.07, 0.4]]],
        [[0.27, 0.79]],
        [0.92],
        [1],
        [[3, 3, -1]],
    ),
    (
        [[1, 0, 2], [2, 1, 1]],
        [
            [[0.38, 0.31, 0.2, 0.11], [0.16, 0.01, 0.55, 0.28], [0.26, 0.33, 0.06, 0.35]],
            [[0.01, 0.13, 0.49, 0.37], [0.26, 0.12, 0.37, 0.25], [0.05, 0.25, 0.67, 0.03]],
        ],
        [
            [
                [0.3, 0.4, 0.05, 0.25],
                [0.63, 0.1, 0.2, 0.07],
                [0.16, 0.05, 0.46, 0.33],
                [0.14, 0.55, 0.18, 0.13],
            ],
            [
                [0.11, 0.71, 0.08, 0.1],
                [0.21, 0.45, 0.01, 0.33],
                [0.07, 0.02, 0.49, 0.42],
                [0.22, 0.25, 0.28, 0.25],
            ],
        ],
        [[0.83, 0.99, 0.77], [0.6, 0.08, 0.03]],
        [0.59, 0.73],
        [3, 0],
        [[1, 0, 2, 1], [1, -1, -1, -1]],
    ),
    (
        [[2]],
        [[[0.01, 0.25, 0.49, 0.01, 0.24]]],
        [[[0.24, 0.31, 0.06, 0.05, 0.34], [0.04, 0.17, 0.1, 0.14, 0.55]]],
        [[0.66]],
        [0.38],
        [0],
        [[0, -1]],
    ),
]
TYPES = [np.int32, np.float32, np.float32, np.float32, np.float32]
FORMS = {
    "lists": lambda a, dtype: a,
    "numpy": np.asarray,  # 64-bit for the most part
    "numpy32": lambda a, dtype: np.asarray(a, dtype),
    "jax": jnp.asarray,
}


def random_arguments(seed, batch=4, drafts=3, vocab=5, lead=()):
    """Ordinary arguments; with ids sampled from the draft, and not one uniform near a threshold."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(vocab, 0.7), (*lead, batch, drafts + 1)).astype(np.float32)
    draft = rng.dirichlet(np.full(vocab, 0.7), (*lead, batch, drafts)).astype(np.float32)
    draft = (draft + target[..., :drafts, :]) / 2
    below = draft.cumsum(-1) < rng.random((*lead, batch, drafts, 1))
    ids = np.minimum(below.sum(-1), vocab - 1).astype(np.int32)
    accept = rng.random((*lead, batch, drafts), np.float32)
    return ids, draft, target, accept, rng.random((*lead, batch), np.float32)


def assert_same(got, want):
    assert list(got) == ["num_accepted", "tokens"]
    for key in want:
        np.testing.assert_array_equal(np.asarray(got[key]), np.asarray(want[key]))


# --- Examples and the form of the result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_checked_examples(example, form):
    *arguments, num_accepted, tokens = example
    arguments = [FORMS[form](a, dtype) for a, dtype in zip(arguments, TYPES, strict=True)]
    assert_same(sx.verify_token(*arguments), {"num_accepted": num_accepted, "tokens": tokens})


@pytest.mark.parametrize("example", EXAMPLES)
def test_checked_examples_agree_with_the_exact_oracle(example):
    *arguments, num_accepted, tokens = example
    assert_same(oracle.token_rule(*arguments), {"num_accepted": num_accepted, "tokens": tokens})


@pytest.mark.parametrize("wrap", ["eager", "jit"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_result_is_a_plain_dict_of_two_int32_arrays(name, wrap):
    out = (VERIFIERS[name][0] if wrap == "eager" else JITTED[name])(*random_arguments(0))
    assert type(out) is dict
    assert list(out) == ["num_accepted", "tokens"]
    assert all(isinstance(x, jax.Array) for x in out.values())
    assert out["num_accepted"].shape == (4,)
    assert out["tokens"].shape == (4, 4)
    assert {x.dtype for x in out.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize("name", VERIFIERS)
def test_arguments_by_name(name):
    ids, draft, target, accept, sample = arguments = random_arguments(0)
    out = VERIFIERS[name][0](
        draft_tokens=ids,
        draft_probs=draft,
        target_probs=target,
        accept_uniforms=accept,
        sample_uniforms=sample,
        draft_lengths=None,
    )
    assert_same(out, JITTED[name](*arguments))
    with pytest.raises(TypeError):
        VERIFIERS[name][0](*arguments, np.full(4, 3))  # draft_lengths is for keywords only


SHAPES = [(1, 0, 4), (3, 2, 1), (2, 1, 512), (2, 2, 513), (3, 1, 1000), (1, 3, 4097), (2, 17, 2)]


@pytest.mark.parametrize(
    ("name", "batch", "drafts", "vocab"),
    [(name, *shape) for name in ("token", "greedy") for shape in SHAPES]
    + [("block", *SHAPES[1])]
    + [(name, *shape) for name in ("block", "sampled") for shape in SHAPES[3::3]]
    + [("top_k", *SHAPES[3])],
)
def test_any_size(name, batch, drafts, vocab):
    arguments = random_arguments(batch + drafts + vocab, batch, drafts, vocab)
    want = oracle.batched(VERIFIERS[name][2], number=float)(*arguments)
    assert_same(JITTED[name](*arguments), want)


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_drafts_and_no_draft_law(name):
    ids, _, target, accept, sample = random_arguments(9, batch=2, drafts=0)
    want = VERIFIERS[name][1](ids, None, target, accept, sample)
    for lengths in (None, np.array([0, 5], np.int32))[name in LOSSY :]:
        assert_same(JITTED[name](ids, None, target, accept, sample, draft_lengths=lengths), want)


# --- Transformations


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, "point mass") for name in VERIFIERS] + [(name, "dense") for name in LOSSLESS],
)
def test_everything_traced(name, law):
    """All arguments traced, lengths too, against the exact oracle."""
    lengths = np.array([3, 2, 0, 1], np.int32)
    for seed in range(12):
        ids, draft, target, accept, sample = random_arguments(seed)
        arguments = ids, draft if law == "dense" else None, target, accept, sample
        want = VERIFIERS[name][1](*arguments, draft_lengths=lengths)
        assert_same(JITTED[name](*arguments, draft_lengths=lengths), want)


def each(name, arguments):
    """The results of K calls, one at a time."""
    results = [JITTED[name](*(a[k] for a in arguments)) for k in range(len(arguments[0]))]
    return {key: np.stack([r[key] for r in results]) for key in results[0]}


@pytest.mark.parametrize("name", LOSSLESS)
def test_vmap(name):
    arguments = random_arguments(1, lead=(6,))
    assert_same(jax.jit(jax.vmap(VERIFIERS[name][0]))(*arguments), each(name, arguments))
    lengths = np.tile(np.array([3, 1, 0, 2], np.int32), (6, 1))
    with_lengths = jax.vmap(lambda *a: VERIFIERS[name][0](*a[:-1], draft_lengths=a[-1]))
    out = jax.jit(with_lengths)(*arguments, lengths)
    for k in range(6):
        want = VERIFIERS[name][1](*(a[k] for a in arguments), draft_lengths=lengths[k])
        assert_same({key: out[key][k] for key in out}, want)


@pytest.mark.parametrize("name", LOSSLESS)
def test_vmap_over_uniforms_alone(name):
    """The laws are not batched: many draws from one pair of rows."""
    ids, draft, target, accept, sample = random_arguments(2)
    many = np.random.default_rng(3).random((6, *accept.shape), np.float32)
    axes = (None, None, None, 0, None)
    out = jax.jit(jax.vmap(VERIFIERS[name][0], axes))(ids, draft, target, many, sample)
    repeated = [np.stack([a] * 6) for a in (ids, draft, target)]
    assert_same(out, each(name, [*repeated, many, np.stack([sample] * 6)]))


@pytest.mark.parametrize("name", LOSSLESS)
def test_scan(name):
    arguments = random_arguments(4, lead=(6,))

    @jax.jit
    def run(arguments):
        def body(total, a):
            out = VERIFIERS[name][0](*a)
            return total + out["num_accepted"], out

        return jax.lax.scan(body, jnp.zeros(4, jnp.int32), arguments)

    total, out = run(arguments)
    want = each(name, arguments)
    assert_same(out, want)
    np.testing.assert_array_equal(total, want["num_accepted"].sum(axis=0))


@pytest.mark.parametrize("name", LOSSLESS)
def test_while_loop(name):
    """A loop that runs until every row has 7 tokens, as a decoder would."""
    arguments = random_arguments(5, lead=(6,))

    @jax.jit
    def run(arguments):
        def body(state):
            step, emitted, _ = state
            out = VERIFIERS[name][0](*(a[step] for a in arguments))
            return step + 1, emitted + out["num_accepted"] + 1, out["tokens"]

        start = jnp.int32(0), jnp.zeros(4, jnp.int32), jnp.zeros((4, 4), jnp.int32)
        return jax.lax.while_loop(lambda s: (s[1] < 7).any() & (s[0] < 6), body, start)

    step, emitted, last = run(jax.tree.map(jnp.asarray, arguments))
    want = each(name, arguments)
    totals = (want["num_accepted"] + 1).cumsum(axis=0)
    steps = next((k + 1 for k in range(6) if (totals[k] >= 7).all()), 6)
    assert int(step) == steps > 1
    np.testing.assert_array_equal(emitted, totals[steps - 1])
    np.testing.assert_array_equal(last, want["tokens"][steps - 1])


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("name", LOSSLESS)
def test_shard_map(name, jit):
    """The batch axis over two devices."""
    arguments = random_arguments(6)
    lengths = np.array([3, 1, 0, 2], np.int32)
    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    spec = PartitionSpec("rows")

    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def sharded(*a):
        return VERIFIERS[name][0](*a[:-1], draft_lengths=a[-1])

    out = (jax.jit(sharded) if jit else sharded)(*arguments, lengths)
    assert len(out["tokens"].sharding.device_set) == 2
    assert_same(out, VERIFIERS[name][1](*arguments, draft_lengths=lengths))


@pytest.mark.parametrize("name", VERIFIERS)
def test_all_transformations_at_once(name):
    """vmap in scan in while_loop in shard_map in jit."""
    arguments = random_arguments(5, lead=(2, 3, 2))
    mesh, spec = (
        Mesh(np.array(jax.devices()[:2]), ("rows",)),
        PartitionSpec(None, None, None, "rows"),
    )

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def run(*arguments):
        def turn(carry):
            k, out = carry
            verify = lambda _, a: (None, jax.vmap(VERIFIERS[name][0])(*a))
            _, new = jax.lax.scan(verify, None, tuple(a[k] for a in arguments))
            return k + 1, jax.tree.map(lambda all, one: all.at[k].set(one), out, new)

        ids, uniforms = arguments[0], arguments[4]
        out = {
            "num_accepted": jnp.zeros_like(ids[..., 0]),
            "tokens": jnp.zeros_like(jnp.concatenate([ids, ids[..., :1]], axis=-1)),
        }
        return jax.lax.while_loop(lambda carry: carry[0] < len(uniforms), turn, (0, out))[1]

    out = run(*arguments)
    assert len(out["tokens"].sharding.device_set) == 2
    for place in np.ndindex(2, 3, 2):
        want = VERIFIERS[name][1](*(a[place] for a in arguments))
        assert_same({key: out[key][place] for key in out}, want)


@pytest.mark.parametrize("name", LOSSLESS)
def test_sharded_batch_under_jit(name):
    """Arrays that already lie on two devices, batch split between them."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("rows"))
    arguments = random_arguments(7)
    out = JITTED[name](*(jax.device_put(a, sharding) for a in arguments))
    assert_same(out, VERIFIERS[name][1](*arguments))


@pytest.mark.parametrize("name", LOSSLESS)
def test_explicit_mesh_axes(name):
    """What `jax.make_mesh` gives: the function says itself how its result lies."""
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    spec = PartitionSpec("rows")
    arguments = random_arguments(8)
    with jax.set_mesh(mesh):
        given = [jax.device_put(a, jax.sharding.NamedSharding(mesh, spec)) for a in arguments]
        out = jax.jit(jax.sharding.auto_axes(VERIFIERS[name][0], out_sharding=spec))(*given)
    assert len(out["tokens"].sharding.device_set) == 2
    assert_same(out, VERIFIERS[name][1](*arguments))


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_retrace_for_new_values(name):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def once(*arguments, draft_lengths):
        return VERIFIERS[name][0](*arguments, draft_lengths=draft_lengths)

    seen = set()
    for seed in range(4):
        lengths = np.roll(np.array([3, 1, 0, 2], np.int32), seed)
        out = once(*random_arguments(seed), draft_lengths=lengths)
        seen.add(np.asarray(out["tokens"]).tobytes())
    assert len(seen) == 4


@pytest.mark.parametrize("name", VERIFIERS)
def test_arguments_are_left_alone(name):
    arguments = random_arguments(8)
    before = [a.copy() for a in arguments]
    VERIFIERS[name][0](*arguments)
    on_device = [jnp.asarray(a) for a in arguments]
    JITTED[name](*on_device)
    for a, b, c in zip(arguments, before, on_device, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(c, b)  # nothing was donated


# --- Errors

NAMES = ["draft_tokens", "draft_probs", "target_probs", "accept_uniforms", "sample_uniforms"]
GOOD_SHAPES = {
    "draft_tokens": (2, 3),
    "draft_probs": (2, 3, 5),
    "target_probs": (2, 4, 5),
    "accept_uniforms": (2, 3),
    "sample_uniforms": (2,),
    "draft_lengths": (2,),
}
SYMBOLS = {
    "draft_tokens": "(B, G)",
    "draft_probs": "(B, G, V)",
    "target_probs": "(B, G+1, V)",
    "accept_uniforms": "(B, G)",
    "sample_uniforms": "(B,)",
    "draft_lengths": "(B,)",
}
BAD_SHAPES = [
    ("draft_tokens", (3,)),
    ("draft_tokens", (2, 3, 1)),
    ("draft_tokens", (2, 2)),
    ("draft_tokens", (1, 3)),
    ("draft_probs", (2, 5)),
    ("draft_probs", (2, 4, 5)),
    ("draft_probs", (2, 3, 6)),
    ("draft_probs", (1, 3, 5)),
    ("target_probs", (4, 5)),
    ("target_probs", (1, 2, 4, 5)),
    ("target_probs", ()),
    ("accept_uniforms", (2,)),
    ("accept_uniforms", (2, 4)),
    ("accept_uniforms", (2, 1)),
    ("accept_uniforms", (3, 3)),
    ("sample_uniforms", ()),
    ("sample_uniforms", (2, 1)),
    ("sample_uniforms", (1,)),
    ("sample_uniforms", (3,)),
    ("draft_lengths", ()),
    ("draft_lengths", (3,)),
    ("draft_lengths", (2, 1)),
    ("draft_lengths", (1,)),
]
DTYPES = {
    name: jnp.int32 if name in ("draft_tokens", "draft_lengths") else jnp.float32
    for name in GOOD_SHAPES
}


def trace(verifier, shapes=None, dtypes=None):
    """Trace the verifier on arguments that have shapes and types only."""
    shapes, dtypes = GOOD_SHAPES | (shapes or {}), DTYPES | (dtypes or {})
    types = {name: jax.ShapeDtypeStruct(shapes[name], dtypes[name]) for name in shapes}
    return jax.eval_shape(lambda a: verifier(**a), types)


@pytest.mark.parametrize("name", VERIFIERS)
def test_good_shapes_trace(name):
    out = trace(VERIFIERS[name][0])
    assert {key: x.shape for key, x in out.items()} == {"num_accepted": (2,), "tokens": (2, 4)}


@pytest.mark.parametrize(("argument", "shape"), BAD_SHAPES)
@pytest.mark.parametrize("name", VERIFIERS)
def test_wrong_shape(name, argument, shape):
    """The message names the argument, the shape expected of it and the shape that was given."""
    with pytest.raises(ValueError, match=argument) as error:
        trace(VERIFIERS[name][0], {argument: shape})
    message = str(error.value)
    assert re.search(re.escape(f"got {shape}"), message), message
    assert SYMBOLS[argument] in message
    if argument != "target_probs":
        assert str(GOOD_SHAPES[argument]) in message


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 5), (2, 4, 6), (3, 4, 5)])
@pytest.mark.parametrize("name", VERIFIERS)
def test_target_rows_that_disagree(name, shape):
    """Which of two arguments is wrong nobody can know: the message shows both."""
    with pytest.raises(ValueError, match="target_probs") as error:
        trace(VERIFIERS[name][0], {"target_probs": shape})
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(0, 4, 5), (2, 0, 5), (2, 4, 0)])
@pytest.mark.parametrize("name", VERIFIERS)
def test_empty_target(name, shape):
    with pytest.raises(ValueError, match="target_probs") as error:
        trace(VERIFIERS[name][0], {"target_probs": shape})
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("argument", list(GOOD_SHAPES))
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32", "bool", "complex64"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_wrong_dtype(name, dtype, argument):
    ids = argument in ("draft_tokens", "draft_lengths")
    if jnp.issubdtype(dtype, jnp.integer if ids else jnp.floating):
        trace(VERIFIERS[name][0], dtypes={argument: dtype})
        return
    with pytest.raises((TypeError, ValueError), match=argument) as error:
        trace(VERIFIERS[name][0], dtypes={argument: dtype})
    assert dtype in str(error.value)
    assert str(GOOD_SHAPES[argument]) in str(error.value)


@pytest.mark.parametrize("name", VERIFIERS)
def test_errors_are_the_same_outside_jit(name):
    arguments = dict(zip(NAMES, random_arguments(0), strict=True))
    with pytest.raises(ValueError, match=r"accept_uniforms.*\(4, 3\).*\(4, 2\)"):
        VERIFIERS[name][0](**arguments | {"accept_uniforms": np.zeros((4, 2), np.float32)})
    with pytest.raises(TypeError, match="target_probs"):
        VERIFIERS[name][0](**arguments | {"target_probs": np.ones((4, 4, 5), np.int32)})
    with pytest.raises(TypeError, match="draft_tokens"):
        VERIFIERS[name][0](**arguments | {"draft_tokens": [[0.0, 1.0, 2.0]] * 4})


@pytest.mark.parametrize(
    "argument", ["draft_tokens", "target_probs", "accept_uniforms", "sample_uniforms"]
)
@pytest.mark.parametrize("name", VERIFIERS)
def test_missing_argument(name, argument):
    """Only the draft law and the lengths may be None."""
    arguments = dict(zip(NAMES, random_arguments(0), strict=True))
    with pytest.raises((TypeError, ValueError)):
        VERIFIERS[name][0](**arguments | {argument: None})
