"""Reading texts into a model's cache, a piece at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from speculax.types import LanguageModel

PIECE = 64


def read_missing(
    network: LanguageModel,
    params: Any,
    cache: Any,
    known: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    translate: Callable[[jax.Array], jax.Array] = lambda tokens: tokens,
) -> tuple[Any, jax.Array]:
    """Bring a cache up to the tokens it lacks, `PIECE` of them at a time.

    Args:
        network: The model.
        params: Its parameters.
        cache: Its cache, with the first `known` tokens of each row; it has S slots.
        known: int32 (B,), how many.
        tokens: int32 (B, S), S at least `PIECE`.
        lengths: int32 (B,), how many tokens of each row are wanted in it.
        translate: Makes the tokens (B, `PIECE`) that the model reads of those.

    Returns:
        The cache, not cut to the lengths, and the hidden states (B, D) at the last token read
        that is wanted; zeros where none was.
    """
    offsets = jnp.arange(PIECE, dtype=jnp.int32)[None]
    batch = tokens.shape[0]

    def read(carry: tuple) -> tuple:
        cache, known, last = carry
        # A row that lacks less than a piece reads some tokens again, to end where it should.
        start = jnp.minimum(known, jnp.maximum(lengths - PIECE, 0))
        positions = start[:, None] + offsets
        piece = jnp.take_along_axis(tokens, positions, axis=1)
        hidden, cache = network.score(
            params, translate(piece), positions, network.keep(cache, start)
        )
        end = start + PIECE
        is_last = (known < lengths) & (end >= lengths)
        found = pick_position(hidden, jnp.clip(lengths - 1 - start, 0, PIECE - 1))
        last = jax.vmap(jnp.where)(is_last, found, last)
        return cache, jnp.minimum(jnp.maximum(known, end), lengths), last

    hidden = jax.eval_shape(
        lambda: network.score(params, tokens[:, :PIECE], offsets.repeat(batch, 0), cache)[0]
    )
    last = jnp.zeros((batch, *hidden.shape[2:]), hidden.dtype)
    cache, _, last = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1] < lengths), read, (cache, known, last)
    )
    return cache, last


def pick_position(values: jax.Array, positions: jax.Array) -> jax.Array:
    """The entry of each row of `values` (B, T, ...) at its own position (B,)."""
    return jax.vmap(lambda row, i: row[i])(values, positions)
