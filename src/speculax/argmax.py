"""The lowest id of the largest value of a row, at memory speed, which XLA's own is not on CPU."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speculax.inverse_cdf import BLOCK_SIZE


def argmax_row(
    read: Callable[[jax.Array | int, int], jax.Array], size: int
) -> tuple[jax.Array, jax.Array]:
    """The lowest id of the largest value, int32 (), and that value, float32 ().

    Args:
        read: `read(start, size)` is a piece of the row, float32 (size,).
        size: How long the row is.

    Returns:
        The id, meaningless if the value is NaN, and the value: NaN if the row holds one.
    """
    row = read(0, size)
    full = (size - 1) // BLOCK_SIZE * BLOCK_SIZE
    maxima = jnp.append(jnp.max(row[:full].reshape(-1, BLOCK_SIZE), axis=-1), jnp.max(row[full:]))
    largest = jnp.max(maxima)
    first = jnp.argmax(maxima == largest).astype(jnp.int32) * BLOCK_SIZE
    width = min(BLOCK_SIZE, size)
    start = jnp.minimum(first, size - width)
    inside = jnp.argmax((read(start, width) == largest) & (start + _ids(width) >= first))
    return start + inside.astype(jnp.int32), largest


def _ids(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)
