"""The lowest id of the largest value of a row, at memory speed, which XLA's own is not on CPU.

In two steps, as in `speculax.inverse_cdf`: `block_maxima` goes over a row, `choose_largest` looks
into the one block that matters.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from speculax import blocks
from speculax.batching import number_rows
from speculax.blocks import BLOCK_SIZE

PIECE_SIZE = 16 * BLOCK_SIZE


def block_maxima(row: jax.Array) -> jax.Array:
    """The largest value of each block of a row float32 (V,); NaN in a block with a NaN."""
    full, last = blocks.split(row)
    return jnp.append(largest_of(full), largest_of(last))


def computed_maxima(read: Callable[[jax.Array | int, int], jax.Array], size: int) -> jax.Array:
    """`block_maxima` of a row that is computed as it is read, and dear to compute.

    On CPU in pieces that stay in cache, whatever is computed on the way; elsewhere as a whole.
    """
    num_pieces = (size - 1) // PIECE_SIZE
    rest = num_pieces * PIECE_SIZE

    def in_pieces() -> jax.Array:
        starts = number_rows(num_pieces, read(0, 1)) * PIECE_SIZE
        maxima = jax.lax.map(
            lambda start: largest_of(read(start, PIECE_SIZE).reshape(-1, BLOCK_SIZE)), starts
        )
        return jnp.append(maxima, block_maxima(read(rest, size - rest)))

    def as_a_whole() -> jax.Array:
        return block_maxima(read(0, size))

    if num_pieces == 0:
        return as_a_whole()
    return jax.lax.platform_dependent(cpu=in_pieces, default=as_a_whole)


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
    largest = largest_of(maxima)
    block = jnp.argmax(maxima == largest).astype(jnp.int32)
    start, width, is_inside = blocks.locate(block, size)
    # A piece that was computed, and is again, may differ in its last bit: it is not compared.
    inside = jnp.argmax(jnp.where(is_inside, read(start, width), -jnp.inf))
    return start + inside.astype(jnp.int32), largest


def largest_of(values: jax.Array) -> jax.Array:
    """The largest value along the last axis; NaN where there is one.

    `jnp.max` of 4,096 floats or more loses NaN on CPU, in XLA of JAX 0.10 at least.
    """

    def larger(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where((a >= b) | jnp.isnan(a), a, b)

    return jax.lax.reduce(values, np.float32(-np.inf), larger, (values.ndim - 1,))
