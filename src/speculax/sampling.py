"""Tokens from laws: by uniforms that the caller supplies, or by a key."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax import blocks
from speculax.arrays import as_array, check_kind
from speculax.batching import map_rows, number_rows
from speculax.flat_laws import TargetLaw
from speculax.inverse_cdf import choose_block, choose_token, draw_uniform, is_usable
from speculax.laws import Law, as_law, flat_law, tokens_of
from speculax.types import NO_TOKEN


def sample(
    law: Law | ArrayLike, uniforms: ArrayLike | None = None, *, key: jax.Array | None = None
) -> jax.Array:
    """Draw one token from each row.

    With uniforms, the token is the smallest id whose cumulative probability exceeds the uniform.
    The resolution is that of the uniforms: those of `jax.random.uniform` are multiples of 2**-23,
    so tokens with less mass than that are drawn too often or never. With a key, one number chooses
    among blocks of 512 tokens and another inside the block, which reaches rare tokens evenly.

    Never draws a token without mass, or one that the law's settings leave out. Works under `jit`
    and the like. Time is that of reading each row: once for probabilities, once or twice for
    logits, more often with cut-offs.

    Args:
        law: A `Law` of leading shape (...), or probabilities floating (..., V); not logits, which
            `law_from_logits` makes a law of.
        uniforms: floating (...) in [0, 1), one a row. Others are clipped; NaN counts as 0.
        key: A key of `jax.random` in place of uniforms; or keys (...), one a row, and then a row's
            token does not depend on the rest of the batch.

    Returns:
        int32 (...), the tokens; -1 where a row has NaN, infinity, no mass, or bad settings.

    Raises:
        TypeError: If not just one of `uniforms` and `key` is given.
        ValueError: If shapes disagree.

    Examples:
        >>> import jax.numpy as jnp
        >>> sample(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.0, 0.9]]), jnp.array([0.5, 0.5])).tolist()
        [1, 2]
    """
    law = as_law("law", law)
    lead = law.shape[:-1]
    if uniforms is not None and key is None:
        uniforms = as_array("uniforms", uniforms)
        check_kind("uniforms", uniforms, jnp.floating)
        if uniforms.shape != lead:
            raise ValueError(
                f"uniforms must have shape {lead}, one for each row of the law, got "
                f"{uniforms.shape}."
            )
    elif key is not None and uniforms is None:
        key = _as_key(key)
        if key.shape not in ((), lead):
            raise ValueError(
                f"key must be one key or have shape {lead}, one for each row of the law, got "
                f"{key.shape}."
            )
    else:
        raise TypeError("sample needs either uniforms or key, and not both; pass one of them.")
    return _sample(law, uniforms, key)


@jax.jit
def _sample(law: Law, uniforms: jax.Array | None, key: jax.Array | None) -> jax.Array:
    lead = law.shape[:-1]
    if uniforms is not None:
        block_uniforms, token_uniforms = uniforms.reshape(-1), None
    else:
        assert key is not None
        pairs = _pairs_of_uniforms(key, lead)
        block_uniforms, token_uniforms = pairs[:, 0], pairs[:, 1]
    entries = draw_rows(flat_law(law), block_uniforms, token_uniforms)
    return tokens_of(law, entries.reshape(lead))


def draw_rows(
    law: TargetLaw, block_uniforms: jax.Array, token_uniforms: jax.Array | None
) -> jax.Array:
    """One token for each row of a flat law, int32 (R,)."""
    rows = number_rows(block_uniforms.shape[0], law)
    sums = map_rows(law.sum_blocks, rows)
    return jax.vmap(partial(choose_from, law))(rows, sums, block_uniforms, token_uniforms)


def draw_row(law: TargetLaw, row: jax.Array, uniform: jax.Array) -> jax.Array:
    """One token of one row of a flat law, int32 ()."""
    return choose_from(law, row, law.sum_blocks(row), uniform, None)


def choose_from(
    law: TargetLaw,
    row: jax.Array,
    row_sums: tuple[Any, jax.Array],
    block_uniform: jax.Array,
    token_uniform: jax.Array | None,
) -> jax.Array:
    """The token of a row whose sums are known, int32 ().

    Args:
        law: The law.
        row: int32 (), which row of it.
        row_sums: From `law.sum_blocks`.
        block_uniform: floating (), chooses the block, and the token in it too if there is no other.
        token_uniform: floating (), chooses the token inside the block.
    """
    prepared, sums = row_sums
    block, before, threshold = choose_block(sums, draw_uniform(block_uniform))
    start, width, is_inside = blocks.locate(block, law.size)
    weights = jnp.where(is_inside, law.read(row, start, width, prepared), 0.0)
    if token_uniform is None:
        inside = choose_token(weights, before, threshold)
    else:
        inside = choose_block(weights, token_uniform)[0]  # as if tokens were blocks
    return jnp.where(is_usable(sums), start + inside, NO_TOKEN)


def _as_key(key: jax.Array) -> jax.Array:
    """A typed key, of a typed or an old one."""
    key = jnp.asarray(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    check_kind("key", key, jnp.unsignedinteger)
    return jax.random.wrap_key_data(key)


def _pairs_of_uniforms(key: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """Two for each row, float32 (R, 2), multiples of 2**-24 in [0, 1)."""
    if key.shape == lead:
        bits = jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(key.reshape(-1))
    else:
        bits = jax.random.bits(key, (math.prod(lead), 2), jnp.uint32)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
