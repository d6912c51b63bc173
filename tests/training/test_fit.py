"""The training loop: it learns, resumes as if nothing had happened, and says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speculax.training import Schedule, fit

WANTED = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)
START = {"matrix": jnp.zeros((2, 2)), "offset": jnp.zeros(2)}


@pytest.fixture(autouse=True)
def _usual_promotion():
    """Optax is not written for the strict promotion of this test suite."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def loss(params, batch):
    inputs, outputs = batch
    return jnp.mean((inputs @ params["matrix"] + params["offset"] - outputs) ** 2)


def batch_of(i):
    inputs = np.random.default_rng(i).normal(size=(8, 2)).astype(np.float32)
    return inputs, inputs @ WANTED + np.float32([1, 2])


def schedule(num_steps, **kwargs):
    return Schedule(num_steps, **{"learning_rate": 0.1, "warmup_steps": 5, "average": 0.9} | kwargs)


def equal(one, other):
    return all(np.array_equal(one[name], other[name]) for name in START)


def test_it_learns():
    result = fit(loss, START, batch_of, schedule(300, weight_decay=0.0))
    np.testing.assert_allclose(result.params["matrix"], WANTED, atol=0.05)
    np.testing.assert_allclose(result.params["offset"], [1, 2], atol=0.05)
    assert result.losses.shape == (300,)
    assert result.losses[-1] < 0.01 < result.losses[0]
    assert not equal(result.params, result.last_params)  # an average is not the last
    assert not np.asarray(START["matrix"]).any()  # what was given is left alone


def test_a_run_that_is_resumed_ends_like_one_that_was_not(tmp_path):
    whole = fit(loss, START, batch_of, schedule(30))

    def breaks_off(i):
        if i == 22:
            raise KeyboardInterrupt
        return batch_of(i)

    with pytest.raises(KeyboardInterrupt):
        fit(loss, START, breaks_off, schedule(30), directory=tmp_path, save_every=10)
    seen = []

    def record(i):
        seen.append(i)
        return batch_of(i)

    resumed = fit(loss, START, record, schedule(30), directory=tmp_path, save_every=10)
    assert seen == list(range(20, 30))
    assert equal(resumed.params, whole.params)
    assert equal(resumed.last_params, whole.last_params)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint.safetensors",
        "losses.json",
        "losses.png",
    }
    again = fit(loss, START, breaks_off, schedule(30), directory=tmp_path)  # nothing is left to do
    assert equal(again.params, whole.params)


def test_narrow_parameters_have_a_wide_average_and_resume_too(tmp_path):
    start = jax.tree.map(lambda x: x.astype(jnp.bfloat16), START)

    def narrow(params, batch):
        return loss(params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), batch))

    def breaks_off(i):
        if i == 22:
            raise KeyboardInterrupt
        return jax.tree.map(jnp.asarray, batch_of(i))

    def batches(i):
        return jax.tree.map(jnp.asarray, batch_of(i))

    whole = fit(narrow, start, batches, schedule(30))
    assert whole.params["matrix"].dtype == jnp.bfloat16
    with pytest.raises(KeyboardInterrupt):
        fit(narrow, start, breaks_off, schedule(30), directory=tmp_path, save_every=10)
    resumed = fit(narrow, start, batches, schedule(30), directory=tmp_path)
    assert equal(resumed.params, whole.params)
    assert equal(resumed.last_params, whole.last_params)


def test_batches_that_are_accumulated_are_like_one_large_one():
    def large(i):
        pairs = [batch_of(2 * i), batch_of(2 * i + 1)]
        return tuple(np.concatenate(parts) for parts in zip(*pairs, strict=True))

    one = fit(loss, START, large, schedule(20))
    other = fit(loss, START, batch_of, schedule(20, accumulate=2))
    for name in START:
        np.testing.assert_allclose(one.params[name], other.params[name], rtol=1e-4)
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    fit(loss, START, batch_of, schedule(2), directory=tmp_path)
    other = {"matrix": jnp.zeros((3, 2)), "offset": jnp.zeros(2)}
    with pytest.raises(ValueError, match="must have the parameters that are to be trained"):
        fit(loss, other, batch_of, schedule(2), directory=tmp_path)
    renamed = {"a": START["matrix"], "b": START["offset"]}
    with pytest.raises(ValueError, match="must have the parameters that are to be trained"):
        fit(loss, renamed, batch_of, schedule(2), directory=tmp_path)
    with pytest.raises(ValueError, match="must be of the schedule asked for"):
        fit(loss, START, batch_of, schedule(3), directory=tmp_path)
    with pytest.raises(ValueError, match=r"of the about asked for, 'seed 1', it is of ''"):
        fit(loss, START, batch_of, schedule(2), directory=tmp_path, about="seed 1")


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    fit(loss, START, batch_of, schedule(2), directory=tmp_path)
    for damaged in (b"", b"junk", path.read_bytes()[:200]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"the checkpoint .*checkpoint.safetensors is damaged"):
            fit(loss, START, batch_of, schedule(2), directory=tmp_path)


def test_numbers_below_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="accumulate must be at least 1, got 0"):
        schedule(2, accumulate=0)
    with pytest.raises(ValueError, match="save_every must be at least 1, got 0"):
        fit(loss, START, batch_of, schedule(2), directory=tmp_path, save_every=0)


def test_a_loss_that_is_not_finite_is_named():
    with pytest.raises(FloatingPointError, match="the loss of update 3 is nan"):
        fit(
            loss,
            START,
            lambda i: batch_of(i) if i < 3 else (np.full((8, 2), np.nan),) * 2,
            schedule(9),
        )
