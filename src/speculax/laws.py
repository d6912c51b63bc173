"""Rows of categorical laws that are read piece by piece and never written out as a whole.

Laws are a flat set of `rows` (R, V). There are three kinds:

- a *target* law answers `at(rows, tokens)`, the probabilities of single tokens, and `read(row,
  start, size)`, a piece of one row as weights;
- a *scored* law answers `scores(row, start, size)`, a piece of one row as numbers whose largest is
  the likeliest token;
- a *draft* law answers `at` and `subtract_from(weights, row, start)`.

Pieces are float32 (size,). Weights are not negative (negative entries count as zero); NaN stays
NaN, so that whoever sums a row sees that it cannot be used.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from speculax.argmax import block_maxima, choose_largest
from speculax.batching import map_rows
from speculax.inverse_cdf import block_sums


class Probabilities(NamedTuple):
    """Laws given as probabilities; as target or as draft.

    Attributes:
        rows: floating (R, V).
    """

    rows: jax.Array

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return 0.0

    def at(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return jnp.maximum(_gather(self.rows, rows, tokens), 0.0)

    def read(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Weights of tokens `start` to `start + size` of one row."""
        return jnp.maximum(_cut(self.rows, row, start, size), 0.0)

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """The same as weights."""
        return self.read(row, start, size)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        return weights - self.read(row, start, weights.shape[0])


class PointMass(NamedTuple):
    """Draft laws of deterministic drafters: all mass on the draft token.

    Attributes:
        tokens: int32 (R,); an id outside the vocabulary carries no mass.
    """

    tokens: jax.Array

    def at(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return (self.tokens[rows] == tokens).astype(jnp.float32)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        ids = _ids(start, weights.shape[0])
        return weights - (ids == self.tokens[row]).astype(jnp.float32)


class Logits(NamedTuple):
    """Target laws given as logits, for rules that ask only which token is likeliest.

    Attributes:
        rows: floating (R, V); -inf marks a token without mass.
    """

    rows: jax.Array

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return -float("inf")

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Logits float32 of tokens `start` to `start + size` of one row."""
        return _cut(self.rows, row, start, size)


class Softmax(NamedTuple):
    """Target laws given as logits and a temperature a row; the softmax is never written.

    Made by `softmax`.

    Attributes:
        rows: floating (R, V), the logits; -inf marks a token without mass.
        temperature: float32 (R,); at 0 the law is a point mass on `likeliest`.
        largest: float32 (R,), the largest logit.
        likeliest: int32 (R,), the lowest id of the largest logit.
        total: float32 (R,), the sum of the weights exp((logit - largest) / temperature).
    """

    rows: jax.Array
    temperature: jax.Array
    largest: jax.Array
    likeliest: jax.Array
    total: jax.Array

    def at(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return self._normalized(_gather(self.rows, rows, tokens), tokens, rows)

    def read(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Probabilities of tokens `start` to `start + size` of one row."""
        return self._normalized(_cut(self.rows, row, start, size), _ids(start, size), row)

    def _normalized(self, logits: jax.Array, ids: jax.Array, rows: jax.Array) -> jax.Array:
        largest, likeliest = self.largest[rows], self.likeliest[rows]
        weights = _softmax_weights(logits, ids, largest, likeliest, self.temperature[rows])
        return weights / self.total[rows]


TargetLaw = Probabilities | Softmax
DraftLaw = Probabilities | PointMass
ScoredLaw = Probabilities | Logits


def softmax(logits: jax.Array, temperature: jax.Array) -> Softmax:
    """The laws of `logits` (R, V) at `temperature` float32 (R,); reads each row twice."""
    likeliest, largest = argmax_rows(Logits(logits))

    def total(row: jax.Array) -> jax.Array:
        weights = _softmax_weights(
            _cut(logits, row, 0, logits.shape[1]),
            _ids(0, logits.shape[1]),
            largest[row],
            likeliest[row],
            temperature[row],
        )
        return jnp.sum(block_sums(weights))

    totals = map_rows(total, logits.shape[0])
    return Softmax(logits, temperature, largest, likeliest, totals)


def argmax_rows(law: ScoredLaw) -> tuple[jax.Array, jax.Array]:
    """The likeliest token of every row, int32 (R,), the lowest id of a tie; and its score."""
    size = law.rows.shape[1]
    maxima = map_rows(lambda row: block_maxima(law.scores(row, 0, size)), law.rows.shape[0])
    rows = jnp.arange(law.rows.shape[0], dtype=jnp.int32)
    return jax.vmap(lambda row: choose_largest(maxima[row], partial(law.scores, row), size))(rows)


def _softmax_weights(
    logits: jax.Array,
    ids: jax.Array,
    largest: jax.Array,
    likeliest: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    """Softmax weights, the largest of them 1; NaN where the largest logit is not finite."""
    sampled = jnp.exp((logits - largest) / temperature)
    greedy = (ids == likeliest).astype(jnp.float32)
    weights = jnp.where(temperature > 0, sampled, greedy)
    return jnp.where(jnp.isfinite(largest), weights, jnp.nan)


def _gather(table: jax.Array, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    """Entries of `table` (R, V) as float32; an id outside the vocabulary reads the nearest."""
    tokens = jnp.clip(tokens, 0, table.shape[1] - 1)
    return _as_float32(_as_bits(table)[rows, tokens], table.dtype)


def _cut(table: jax.Array, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    """A piece of one row of `table` (R, V) as float32 (size,)."""
    dtype = table.dtype
    if dtype.itemsize < 4:
        # Else XLA moves the change to bits, of the whole table, out of the loop over rows.
        table, row = jax.lax.optimization_barrier((table, row))
    piece = jax.lax.dynamic_slice(_as_bits(table), (row, jnp.int32(start)), (1, size))[0]
    return _as_float32(piece, dtype)


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


def _ids(start: jax.Array | int, size: int) -> jax.Array:
    return start + jnp.arange(size, dtype=jnp.int32)
