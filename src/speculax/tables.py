"""Tables of rows (R, V) in any floating type, read in float32: single entries, pieces of rows."""

import jax
import jax.numpy as jnp


def gather(table: jax.Array, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    """Entries of `table` (R, V) as float32; an id outside the vocabulary reads the nearest."""
    dtype, tokens = table.dtype, jnp.clip(tokens, 0, table.shape[1] - 1)
    table, rows, tokens = _keep_in_place(table, rows, tokens)
    return _as_float32(_as_bits(table)[rows, tokens], dtype)


def cut(table: jax.Array, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    """A piece of one row of `table` (R, V) as float32 (size,)."""
    dtype = table.dtype
    table, row, start = _keep_in_place(table, row, jnp.int32(start))
    return _as_float32(cut_raw(_as_bits(table), row, start, size), dtype)


def pick(values: jax.Array, rows: jax.Array) -> jax.Array:
    """Entries of `values` (R,).

    A single one by a slice: an index would not pass through `cond` under `shard_map` and `vmap`.
    """
    if jnp.ndim(rows) > 0:
        return values[rows]
    return jax.lax.dynamic_slice(values, (rows,), (1,)).reshape(())


def cut_raw(table: jax.Array, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    """A piece of one row of `table` (R, V) in the table's own type."""
    return jax.lax.dynamic_slice(table, (row, jnp.int32(start)), (1, size))[0]


def _keep_in_place(table: jax.Array, *places: jax.Array) -> tuple[jax.Array, ...]:
    """Keep XLA from moving the change to bits, of the whole table, out of a loop over places."""
    if table.dtype.itemsize >= 4:
        return table, *places
    return jax.lax.optimization_barrier((table, *places))


def _as_bits(table: jax.Array) -> jax.Array:
    """Narrow floats as integers of the same width.

    XLA's CPU code has no narrow floats: to cut a piece of the table it would convert it all.
    """
    bits = {8: jnp.uint8, 16: jnp.uint16}.get(jnp.finfo(table.dtype).bits)
    return table if bits is None else jax.lax.bitcast_convert_type(table, bits)


def _as_float32(piece: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if piece.dtype != dtype:
        piece = jax.lax.bitcast_convert_type(piece, dtype)
    return piece.astype(jnp.float32)
