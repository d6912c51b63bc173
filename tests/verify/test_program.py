"""What the compiler makes of the verifiers: memory, callbacks, and programs for accelerators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx

VERIFIERS = {"token": sx.verify_token, "greedy": sx.verify_greedy}
BATCH, DRAFTS, VOCAB = 8, 4, 32_000
ROW = 4 * VOCAB  # bytes of one row in float32
CORES = 2
SMALL = 64 * 1024


def types(law=jnp.float32, dense=True, batch=BATCH, drafts=DRAFTS, vocab=VOCAB):
    return (
        jax.ShapeDtypeStruct((batch, drafts), jnp.int32),
        jax.ShapeDtypeStruct((batch, drafts, vocab), law) if dense else None,
        jax.ShapeDtypeStruct((batch, drafts + 1, vocab), law),
        jax.ShapeDtypeStruct((batch, drafts), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.float32),
    )


def compiled(function, **kwargs):
    return jax.jit(function).lower(*types(**kwargs)).compile()


def temporary_bytes(function, **kwargs):
    return compiled(function, **kwargs).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("law", [jnp.float32, jnp.bfloat16, jnp.float16], ids=lambda t: t.__name__)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "point-mass"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_memory(name, dense, law):
    """Two rows of float32 a core, never a batch of them; rows are not copied to be read."""
    assert temporary_bytes(VERIFIERS[name], law=law, dense=dense) <= 2 * ROW * CORES + SMALL


def test_memory_does_not_grow_with_the_draft_length():
    """The token rule reads one pair of rows, whatever G is."""
    short, long = (temporary_bytes(sx.verify_token, drafts=g) for g in (2, 16))
    assert long <= short + SMALL


def written_out(ids, draft, target, accept, sample):
    """What everybody writes first: the residuals of all positions, and a running sum of each."""
    residual = jnp.maximum(target[:, :-1] - draft, 0)
    cumulative = jnp.cumsum(jnp.concatenate([residual, target[:, -1:]], axis=1), axis=2)
    return jnp.argmax(cumulative > sample[:, None, None] * cumulative[:, :, -1:], axis=2)


def test_memory_limit_refuses_what_everybody_writes_first():
    assert temporary_bytes(written_out) > 2 * ROW * CORES + SMALL


# --- No host

HOST = ["callback", "infeed", "outfeed", "send(", "recv("]


def host_traffic(function, **kwargs):
    text = compiled(function, **kwargs).as_text().lower()
    return [word for word in HOST if word in text]


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_host_round_trip(name):
    assert not host_traffic(VERIFIERS[name])


def test_host_traffic_is_seen():
    def asks_the_host(ids, *rest):
        return jax.pure_callback(lambda x: x, ids, ids)

    assert host_traffic(asks_the_host) == ["callback"]


# --- Accelerators


def exported(function, platform, **kwargs):
    return jax.export.export(jax.jit(function), platforms=[platform])(*types(**kwargs))


@pytest.mark.parametrize("platform", ["tpu", "cuda", "rocm"])
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "point-mass"])
@pytest.mark.parametrize("name", VERIFIERS)
def test_accelerators_get_a_program_without_loops(name, dense, platform):
    program = exported(VERIFIERS[name], platform, dense=dense)
    assert program.platforms == (platform,)
    assert "stablehlo.while" not in program.mlir_module()


def test_loops_are_seen():
    def loops(ids, draft, *rest):
        return jax.lax.map(jnp.sum, draft)

    assert "stablehlo.while" in exported(loops, "tpu").mlir_module()


@pytest.mark.parametrize("name", VERIFIERS)
def test_one_program_for_several_platforms(name):
    """With a symbolic batch size too, as a server would keep it."""
    batch = jax.export.symbolic_shape("B")[0]
    program = jax.export.export(jax.jit(VERIFIERS[name]), platforms=["cpu", "tpu", "cuda"])(
        *types(drafts=1, vocab=600, batch=batch)
    )
    law = np.zeros((3, 2, 600), np.float32)
    law[:, :, 599] = 1
    uniforms = np.full((3, 1), 0.5, np.float32)
    out = program.call(np.full((3, 1), 599, np.int32), law[:, :1], law, uniforms, uniforms[:, 0])
    assert np.asarray(out["tokens"]).tolist() == [[599, 599]] * 3


@pytest.mark.parametrize("name", VERIFIERS)
def test_jaxpr_has_no_random_numbers_and_no_side_effects(name):
    jaxpr = jax.make_jaxpr(VERIFIERS[name])(*types())
    assert not jaxpr.effects
    assert "random" not in str(jaxpr)
