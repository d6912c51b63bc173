"""Strict JAX for every test: no silent promotion, and two CPU devices to shard over."""

import itertools
import os
from pathlib import Path

# Read once, when jax starts: set before anything imports it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
).strip()

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


MOST_MAPS = 30_000  # of the 65,530 that Linux allows a process


@pytest.fixture(autouse=True, scope="module")
def _free_programs():
    """Drop compiled programs after each file: a process can map so many, and then XLA crashes."""
    yield
    jax.clear_caches()


_tests = itertools.count(1)
_maps = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def _few_programs():
    """And in the middle of a file that has very many."""
    yield
    if next(_tests) % 5 == 0 and _maps.exists() and _maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
