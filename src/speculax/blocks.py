"""A row of a vocabulary as blocks: what is found in two steps, first the block, then inside it.

The last block is never empty and may be shorter than the others.
"""

import jax
import jax.numpy as jnp

BLOCK_SIZE = 512


def split(row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A row (V,) as its full blocks (K, `BLOCK_SIZE`) and the last one, which is not among them."""
    full = (row.shape[0] - 1) // BLOCK_SIZE * BLOCK_SIZE
    return row[:full].reshape(-1, BLOCK_SIZE), row[full:]


def locate(block: jax.Array, size: int) -> tuple[jax.Array, int, jax.Array]:
    """Where to read a block of a row of `size` entries.

    Returns:
        The start and the width of a piece that lies within the row and holds the block, and which
        of its entries, bool (width,), belong to the block.
    """
    width = min(BLOCK_SIZE, size)
    first = block * BLOCK_SIZE
    start = jnp.minimum(first, size - width)
    return start, width, start + jnp.arange(width, dtype=jnp.int32) >= first
