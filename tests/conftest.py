"""Strict JAX for every test: no silent promotion, and two CPU devices to shard over."""

import os

# Read once, when jax starts: set before anything imports it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
).strip()

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="module")
def _free_programs():
    """Drop compiled programs after each file: a process can map so many, and then XLA crashes."""
    yield
    jax.clear_caches()
