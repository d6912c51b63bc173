"""The lowest id of the largest value of a row, at memory speed, which XLA's own is not on CPU.

In two steps, as in `speculax.inverse_cdf`: `block_maxima` goes over a row, `argmax_row` looks into
the one block that matters.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speculax.inverse_cdf import BLOCK_SIZE


def block_maxima(row: jax.Array) -> jax.Array:
    """The largest value of each block of `BLOCK_SIZE`; NaN in a block with a NaN."""
    full = (row.shape[0] - 1) // BLOCK_SIZE * BLOCK_SIZE
    blocks = row[:full].reshape(-1, BLOCK_SIZE)
    return jnp.append(jnp.max(blocks, axis=1), jnp.max(row[full:]))


def argmax_row(
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
    first = jnp.argmax(maxima == largest).astype(jnp.int32) * BLOCK_SIZE
    width = min(BLOCK_SIZE, size)
    start = jnp.minimum(first, size - width)
    is_inside = start + jnp.arange(width, dtype=jnp.int32) >= first
    at = jnp.argmax(is_inside & (read(start, width) == largest))
    return start + at.astype(jnp.int32), largest
