"""Most of the time goes into compiling toys, so compile them with little effort."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _little_effort(request):
    """Unless a test module says `FULL_EFFORT = True`."""
    jax.config.update(
        "jax_disable_most_optimizations", not getattr(request.module, "FULL_EFFORT", False)
    )
    yield
    jax.config.update("jax_disable_most_optimizations", False)
