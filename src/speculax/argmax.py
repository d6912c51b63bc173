"""The lowest id of the largest value of a row, at memory speed, which XLA's own is not on CPU.

In two steps, as in `speculax.inverse_cdf`: `block_maxima` goes over a row, `choose_largest` looks
into the one block that matters.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speculax import blocks


def block_maxima(row: jax.Array) -> jax.Array:
    """The largest value of each block of a row float32 (V,); NaN in a block with a NaN."""
    full, last = blocks.split(row)
    return jnp.append(jnp.max(full, axis=1), jnp.max(last))


def choose_largest(
    maxima: jax.Array, read: Callable[[jax.Array, int], jax.Array], size: int
) -> tuple[jax.Array, jax.Array]:
    """The lowest id of the largest value, int32 (), and that value, float32 ().

    Args:
        maxima: `block_maxima` of the row.
        read: `read(start, width)` is a piece of the row, float32 (width,).
        size: How long the row is.

    Returns:
        The id, meaningless if the value is NaN, and the value: NaN if the row holds one.
    """
    largest = jnp.max(maxima)
    block = jnp.argmax(maxima == largest).astype(jnp.int32)
    start, width, is_inside = blocks.locate(block, size)
    # A piece that was computed, and is again, may differ in its last bit: it is not compared.
    inside = jnp.argmax(jnp.where(is_inside, read(start, width), -jnp.inf))
    return start + inside.astype(jnp.int32), largest
