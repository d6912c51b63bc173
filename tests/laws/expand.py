"""Laws written out whole, which the library itself never does."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from speculax.laws import flat_law


@partial(jax.jit, static_argnames="side_by_side")
def expand(law, side_by_side=False):
    """All the probabilities of a law, float32 (..., V), row after row or all rows at once."""
    flat = flat_law(law)
    rows = jnp.arange(math.prod(law.shape[:-1]), dtype=jnp.int32)

    def read(row):
        return flat.read(row, 0, law.size, flat.normalizer(row))

    probs = jax.vmap(read)(rows) if side_by_side else jax.lax.map(read, rows)
    return probs.reshape(law.shape)
