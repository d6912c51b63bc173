"""Tokens from laws: by uniforms that the caller supplies, or by a key."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax import blocks
from speculax.batching import map_rows
from speculax.inverse_cdf import block_sums, choose_block, choose_token, clip_uniform, is_usable
from speculax.laws import Law, TargetLaw, as_law, flat_law
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
    and the like. Time is that of reading each row: once for probabilities, twice for logits, more
    often with cut-offs.

    Args:
        law: A `Law` of leading shape (...), or probabilities floating (..., V).
        uniforms: floating (...) in [0, 1), one a row. Others are clipped; NaN counts as 0.
        key: A key of `jax.random` in place of uniforms; or keys (...), one a row, and then a row's
            token does not depend on the rest of the batch.

    Returns:
        int32 (...), the tokens; -1 where a row has NaN, infinity, no mass, or bad settings.

    Raises:
        TypeError: If not just one of `uniforms` and `key` is given.
        ValueError: If shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> sample(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.0, 0.9]]), jnp.array([0.5, 0.5])).tolist()
        [1, 2]
    """
    law = as_law(law)
    lead = law.shape[:-1]
    if uniforms is not None and key is None:
        uniforms = array = jnp.asarray(uniforms)
        if array.shape != lead:
            raise ValueError(
                f"uniforms must have shape {lead}, one for each row of the law, got {array.shape}."
            )
    elif key is not None and uniforms is None:
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        key = key if is_typed else jax.random.wrap_key_data(key)
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
    flat, lead = flat_law(law), law.shape[:-1]
    if uniforms is not None:
        block_uniforms, token_uniforms = uniforms.reshape(-1), None
    else:
        assert key is not None
        pairs = _pairs_of_uniforms(key, lead).reshape(-1, 2)
        block_uniforms, token_uniforms = pairs[:, 0], pairs[:, 1]
    tokens = draw_rows(flat, block_uniforms, token_uniforms).reshape(lead)
    if law.ids is None or law.ids_rows is None:
        return tokens
    return jnp.where(tokens >= 0, law.ids[law.ids_rows, tokens], NO_TOKEN)


def draw_rows(
    law: TargetLaw, block_uniforms: jax.Array, token_uniforms: jax.Array | None
) -> jax.Array:
    """One token for each row of a flat law, int32 (R,)."""
    rows = jnp.arange(block_uniforms.shape[0], dtype=jnp.int32)
    sums = map_rows(partial(sum_row, law), rows.shape[0])
    return jax.vmap(partial(choose_from, law))(rows, sums, block_uniforms, token_uniforms)


def draw_row(law: TargetLaw, row: jax.Array, uniform: jax.Array) -> jax.Array:
    """One token of one row of a flat law, int32 ()."""
    return choose_from(law, row, sum_row(law, row), uniform, None)


def sum_row(law: TargetLaw, row: jax.Array) -> tuple[Any, jax.Array]:
    """What must be known of a row to draw from it, and its block sums."""
    return law.measure(row, block_sums)


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
        row_sums: From `sum_row`.
        block_uniform: floating (), chooses the block, and the token in it too if there is no other.
        token_uniform: floating (), chooses the token inside the block.
    """
    prepared, sums = row_sums
    block, before, threshold = choose_block(sums, _as_uniform(block_uniform))
    start, width, is_inside = blocks.locate(block, law.size)
    weights = jnp.where(is_inside, law.read(row, start, width, prepared), 0.0)
    if token_uniform is None:
        inside = choose_token(weights, before, threshold)
    else:
        inside = choose_block(weights, token_uniform)[0]
    return jnp.where(is_usable(sums), start + inside, NO_TOKEN)


def _as_uniform(uniform: jax.Array) -> jax.Array:
    clipped = clip_uniform(uniform)
    return jnp.where(jnp.isnan(clipped), 0.0, clipped)


def _pairs_of_uniforms(key: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """float32 (*lead, 2), multiples of 2**-24 in [0, 1)."""
    if key.shape == lead:
        draw = lambda key: jax.random.bits(key, (2,), jnp.uint32)
        for _ in lead:
            draw = jax.vmap(draw)
        bits = draw(key)
    else:
        bits = jax.random.bits(key, (*lead, 2), jnp.uint32)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
