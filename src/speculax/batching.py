"""Work on each row of a batch at its own place."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp


def map_rows(function: Callable[[jax.Array], Any], rows: jax.Array) -> Any:
    """Stack the function of each of `rows`, from `number_rows`.

    On CPU row after row, so that what one row needs stays in cache; elsewhere all at once, without
    a loop. The function gets the row's number and cuts what it needs from arrays it closes over:
    mapping over the arrays themselves would copy every row, needed or not.
    """
    return jax.lax.platform_dependent(
        rows, cpu=lambda rows: jax.lax.map(function, rows), default=jax.vmap(function)
    )


def either(condition: jax.Array, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """What `yes` gives if the condition holds, else what `no` gives.

    On CPU only that one is run. Elsewhere both are and one is selected: there rows go side by side
    (`map_rows`), and a `cond` would repeat for each of them all that its branches read.
    """
    return jax.lax.platform_dependent(
        condition,
        cpu=lambda condition: jax.lax.cond(condition, yes, no),
        default=lambda condition: jax.tree.map(partial(jnp.where, condition), yes(), no()),
    )


def number_rows(num_rows: int, sources: Any) -> jax.Array:
    """The numbers of rows that are read from `sources`, int32 (R,)."""
    return vary_with(jnp.arange(num_rows, dtype=jnp.int32), sources)


def write_rows(rows: jax.Array, pieces: jax.Array, starts: jax.Array, axis: int = 0) -> jax.Array:
    """Write `pieces` into `rows`, each row from its own start along one axis of the row.

    Args:
        rows: (B, ...).
        pieces: (B, ...), shorter along `axis`. There must be room: a start that is too late is
            moved back without a word.
        starts: int32 (B,).
        axis: The axis of a single row.
    """

    def write(row: jax.Array, piece: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(row, piece, start, axis)

    return jax.vmap(write)(rows, pieces, starts)


def vary_with(values: Any, sources: Any) -> Any:
    """The same values, but under `shard_map` they vary as the sources do. Costs nothing compiled.

    What a loop carries must from the start vary as much as it will after a turn.
    """
    firsts = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(sources) if leaf.size]
    anchor = reduce(jnp.logical_and, [first == first for first in firsts], jnp.bool_(True))
    return jax.tree.map(lambda value: jnp.where(anchor, value, value), values)
