"""One uniform and a row of weights make one token: the inverse of the cumulative distribution.

The token is the smallest id whose cumulative weight exceeds `uniform * total`. A running sum over
a whole vocabulary is slow and, in float32, not even monotone: it rises at tokens of zero weight.
So the draw is three steps, `block_sums -> choose_block -> choose_token`: sum the row in blocks,
find the block in the short cumulative sum of blocks, find the token inside that one block. Only
blocks and tokens that have weight can be chosen.

This is the only place where a uniform becomes a token.
"""

import jax
import jax.numpy as jnp

from speculax import blocks

LARGEST_UNIFORM = 1.0 - 2.0**-24


def block_sums(weights: jax.Array) -> jax.Array:
    """The sum of each block of a row of weights float32 (V,).

    On CPU the sums are a product with ones. XLA then writes the row once, where it stays in cache,
    and sums it with vector instructions; a reduction it would fuse with the arithmetic that makes
    the row, and vectorise neither. Elsewhere fusing is just right: the row is never written.
    """
    full, last = blocks.split(weights)
    sums = jax.lax.platform_dependent(
        full,
        cpu=lambda full: jnp.dot(full, jnp.ones(full.shape[1], full.dtype), precision="highest"),
        default=lambda full: jnp.sum(full, axis=1),
    )
    return jnp.append(sums, jnp.sum(last))


def choose_block(sums: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the block that the uniform falls in.

    Args:
        sums: float32 (K,), from `block_sums`.
        uniform: float32 () in [0, 1 - 2**-24].

    Returns:
        The block, the weight before it, and the cumulative weight that is to be exceeded. The last
        two are not subtracted: fused with the product or not, that would round in two ways, and one
        row could get different tokens in different batches.
    """
    cumulative = cumulate(sums)
    threshold = uniform * cumulative[-1]
    block = _first_with_weight(cumulative > threshold, sums)
    return block, cumulative[block] - sums[block], threshold


def choose_token(weights: jax.Array, before: jax.Array, threshold: jax.Array) -> jax.Array:
    """The index in a block of weights float32 (C,) where the threshold is exceeded."""
    return _first_with_weight(before + cumulate(weights) > threshold, weights)


def is_usable(sums: jax.Array) -> jax.Array:
    """Which rows of block sums (..., K) can be drawn from."""
    total = jnp.sum(sums, axis=-1)
    return jnp.isfinite(total) & (total > 0)


def clip_uniform(uniform: jax.Array) -> jax.Array:
    """Uniforms as float32 in [0, 1 - 2**-24]; NaN stays NaN."""
    return jnp.clip(uniform.astype(jnp.float32), 0.0, LARGEST_UNIFORM)


def draw_uniform(uniform: jax.Array) -> jax.Array:
    """Uniforms to draw with, as float32 in [0, 1 - 2**-24]; NaN draws as 0."""
    clipped = clip_uniform(uniform)
    return jnp.where(jnp.isnan(clipped), 0.0, clipped)


def cumulate(weights: jax.Array) -> jax.Array:
    """The cumulative sum, added up in one order on all platforms and in all versions of JAX."""
    return jax.lax.associative_scan(jnp.add, weights)


def _first_with_weight(reached: jax.Array, weights: jax.Array) -> jax.Array:
    """The first index that is reached and has weight; if rounding left none, the last with any."""
    size, has_weight = weights.shape[0], weights > 0
    index = jnp.arange(size, dtype=jnp.int32)
    first = jnp.min(jnp.where(reached & has_weight, index, size))
    last = jnp.max(jnp.where(has_weight, index, 0))
    return jnp.where(first < size, first, last)
