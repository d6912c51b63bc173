"""Laws written out whole, which the library itself never does."""

import math

import jax
import jax.numpy as jnp

from speculax.laws import flat_law


@jax.jit
def expand(law):
    """All the probabilities of a law, float32 (..., V)."""
    flat = flat_law(law)
    rows = jnp.arange(math.prod(law.shape[:-1]), dtype=jnp.int32)

    def read(row):
        return flat.read(row, 0, law.size, flat.normalizer(row))

    return jax.lax.map(read, rows).reshape(law.shape)
