"""Flat laws: rows (R, V) that are read piece by piece and never written out as a whole.

What the settings of a law make of a row is said by a few numbers, chiefly the lowest score that is
kept and the sum of the weights that are; a `Normalizer` holds them. They are found row by row, and
only for rows that are needed. Of a flat law one can ask

- `normalizer(row)`: what must be known of a row to read probabilities; None if nothing must be;
- `prepare(row)`: the same for draws, for which weights of any scale will do; and `sum_blocks(row)`:
  the same with the block sums of the row's weights;
- `at(rows, tokens, normalizers)`: the probabilities of single tokens;
- `read(row, start, size, normalizer)`: a piece of one row, float32 (size,);
- `subtract_from(weights, row, start, normalizer)`: a piece of weights, less the law;
- `scores(row, start, size)`: a piece of numbers whose largest is the likeliest token.

Weights are not negative (negative entries count as zero); NaN stays NaN, so that whoever sums a row
sees that it cannot be used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from speculax.argmax import block_maxima, choose_largest, largest_of
from speculax.batching import either, map_rows, number_rows, vary_with
from speculax.blocks import BLOCK_SIZE
from speculax.cutoff import find_cutoff
from speculax.inverse_cdf import block_sums
from speculax.tables import cut, cut_raw, gather, pick
from speculax.types import NO_TOKEN

# With the largest weight 1 where it is not, exponents go up to 18: rounding them costs no precision
# that logits of this size have.
LARGEST_TOTAL = 1e8

Order = Literal["sequential", "joint"]


class Setting(NamedTuple):
    """What values of a setting mean something.

    Attributes:
        holds: Whether values do, for NumPy and JAX arrays; NaN never does.
        words: The same in words.
    """

    holds: Callable[[Any], Any]
    words: str


SETTINGS = {
    "temperature": Setting(lambda x: (x >= 0) & (x < jnp.inf), "finite and at least 0"),
    "top_k": Setting(lambda x: x >= 0, "at least 0; 0 keeps all tokens"),
    "top_p": Setting(lambda x: (x > 0) & (x <= 1), "above 0 and at most 1; 1 keeps all tokens"),
    "min_p": Setting(lambda x: (x >= 0) & (x <= 1), "at least 0 and at most 1; 0 keeps all tokens"),
}


class Normalizer(NamedTuple):
    """What must be known of a row to read its probabilities.

    Attributes:
        largest: float32, the largest score, or one near enough to keep exponentials in range.
        total: float32, the sum of the weights that are kept, that of `largest` being 1 (for
            probabilities without a temperature, the score itself); NaN if the row or its settings
            cannot be used.
        likeliest: int32, the lowest id of the largest score; None without temperatures.
        cutoff: float32, the lowest score that is kept; None without cut-offs.
    """

    largest: jax.Array
    total: jax.Array
    likeliest: jax.Array | None = None
    cutoff: jax.Array | None = None


class Probabilities(NamedTuple):
    """Flat laws given as probabilities, without settings.

    Attributes:
        rows: floating (R, V).
    """

    rows: jax.Array

    @property
    def num_rows(self) -> int:
        """The number of rows, R."""
        return self.rows.shape[0]

    @property
    def size(self) -> int:
        """The number of tokens, V."""
        return self.rows.shape[1]

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return 0.0

    def normalizer(self, row: jax.Array) -> None:
        """Nothing: rows are read as they are."""

    prepare = normalizer

    def sum_blocks(self, row: jax.Array) -> tuple[None, jax.Array]:
        """Nothing, and the block sums of the row's weights."""
        return None, block_sums(self.scores(row, 0, self.size))

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return jnp.maximum(gather(self.rows, rows, tokens), 0.0)

    def read(self, row: jax.Array, start: jax.Array | int, size: int, normalizer: Any) -> jax.Array:
        """Weights of tokens `start` to `start + size` of one row."""
        return self.scores(row, start, size)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        return weights - self.scores(row, start, weights.shape[0])

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """The same as weights."""
        return jnp.maximum(cut(self.rows, row, start, size), 0.0)


class PointMass(NamedTuple):
    """Flat draft laws of deterministic drafters: all mass on the draft token.

    Attributes:
        tokens: int32 (R,); an id outside the vocabulary carries no mass.
    """

    tokens: jax.Array

    def normalizer(self, row: jax.Array) -> None:
        """Nothing: the mass is 1."""

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return (pick(self.tokens, rows) == tokens).astype(jnp.float32)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        ids = _ids(start, weights.shape[0])
        return weights - (ids == pick(self.tokens, row)).astype(jnp.float32)


class Shared(NamedTuple):
    """Settings of V entries that rows share.

    Attributes:
        table: (N, V).
        rows: int32 (R,), the row of the table that each row uses.
    """

    table: jax.Array
    rows: jax.Array

    def read(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """A piece of the settings of one row, floating ones as float32."""
        is_real = jnp.issubdtype(self.table.dtype, jnp.floating)
        return (cut if is_real else cut_raw)(self.table, pick(self.rows, row), start, size)

    def at(self, rows: jax.Array, entries: jax.Array) -> jax.Array:
        """Single settings, each of its row; an entry that is none reads the nearest."""
        entries = jnp.clip(entries, 0, self.table.shape[1] - 1)
        return self.table[pick(self.rows, rows), entries]


@partial(
    jax.tree_util.register_dataclass,
    meta_fields=["is_logits", "order"],
    data_fields=["table", "mask", "bias", *SETTINGS, "is_joint", "has_settings", "normalizers"],
)
@dataclass(frozen=True, kw_only=True, eq=False)
class FlatLaw:
    """Flat laws with settings; see `Law` for what they are.

    Attributes:
        table: floating (R, V).
        is_logits: Whether the table holds logits.
        order: How the cut-offs work together.
        mask: bool.
        bias: floating.
        temperature: float32 (R,).
        top_k: int32 (R,).
        top_p: float32 (R,).
        min_p: float32 (R,).
        is_joint: bool (R,), in place of `order`; None if all rows have that one.
        has_settings: bool (R,), whether the settings that a row names exist; None if all do.
        normalizers: `Normalizer` of arrays (R,).
    """

    table: jax.Array
    is_logits: bool
    order: Order
    mask: Shared | None
    bias: Shared | None
    temperature: jax.Array | None
    top_k: jax.Array | None
    top_p: jax.Array | None
    min_p: jax.Array | None
    is_joint: jax.Array | None
    has_settings: jax.Array | None
    normalizers: Normalizer | None

    @property
    def num_rows(self) -> int:
        """The number of rows, R."""
        return self.table.shape[0]

    @property
    def size(self) -> int:
        """The number of tokens, V."""
        return self.table.shape[1]

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return -float("inf") if self.is_logits else 0.0

    @property
    def has_cutoffs(self) -> bool:
        """Whether rows may have top-k, top-p or min-p."""
        return any(setting is not None for setting in (self.top_k, self.top_p, self.min_p))

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Scores float32 of tokens `start` to `start + size` of one row, masked and biased.

        NaN where the settings of the row mean nothing.
        """
        mask = None if self.mask is None else self.mask.read(row, start, size)
        bias = None if self.bias is None else self.bias.read(row, start, size)
        return self._score(cut(self.table, row, start, size), mask, bias, row)

    def scores_at(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        """Scores float32 of `tokens`, each in its row."""
        mask = None if self.mask is None else self.mask.at(rows, tokens)
        bias = None
        if self.bias is not None:
            bias = gather(self.bias.table, pick(self.bias.rows, rows), tokens)
        return self._score(gather(self.table, rows, tokens), mask, bias, rows)

    def log_scores(self, scores: jax.Array) -> jax.Array:
        """Scores as logits."""
        return scores if self.is_logits else jnp.log(scores)

    def normalizer(self, row: jax.Array) -> Normalizer:
        """Read a row as often as its settings need, and once more for the sum of its weights."""
        if self.normalizers is not None:
            return jax.tree.map(lambda x: pick(x, row), self.normalizers)
        prepared, sums = self.sum_blocks(row)
        return prepared._replace(total=jnp.sum(sums))

    def sum_blocks(self, row: jax.Array) -> tuple[Normalizer, jax.Array]:
        """What `prepare` gives, and the block sums of the row's weights."""

        def in_full() -> tuple[Normalizer, jax.Array]:
            prepared = self.prepare(row)
            return prepared, block_sums(self.read(row, 0, self.size, prepared))

        def at_a_guess() -> tuple[Normalizer, jax.Array]:
            # The largest score is there to keep exponentials in range, and another will mostly do.
            guess = jnp.max(self.scores(row, 0, min(BLOCK_SIZE, self.size)))
            likeliest = None if self.temperature is None else jnp.int32(0)
            prepared = vary_with(Normalizer(guess, jnp.float32(1.0), likeliest), guess)
            sums = block_sums(self.read(row, 0, self.size, prepared))
            total = jnp.sum(sums)
            is_good = (total > 0) & (total < LARGEST_TOTAL)
            if self.temperature is not None:
                is_good &= pick(self.temperature, row) > 0
            return jax.lax.cond(is_good, lambda: (prepared, sums), in_full)

        if self.has_cutoffs or self.normalizers is not None:
            return in_full()
        # A guess saves a pass over the row; but where rows go side by side, both would be made.
        return jax.lax.platform_dependent(cpu=at_a_guess, default=in_full)

    def prepare(self, row: jax.Array) -> Normalizer:
        """The normaliser, but its total, where it has to be computed, 1 or NaN."""
        if self.normalizers is not None:
            return self.normalizer(row)
        scores = self.scores(row, 0, self.size)
        maxima = block_maxima(scores)
        if self.temperature is None:
            likeliest, largest = None, largest_of(maxima)
        else:
            likeliest, largest = choose_largest(maxima, partial(self.scores, row), self.size)
        is_good = jnp.isfinite(largest) & (largest > self.no_mass_score)
        cutoff = self._cutoff(row, scores, largest, is_good)
        return Normalizer(
            largest, jnp.where(is_good, jnp.float32(1.0), jnp.float32(jnp.nan)), likeliest, cutoff
        )

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return self._weigh(self.scores_at(rows, tokens), tokens, rows, normalizers)

    def read(self, row: jax.Array, start: jax.Array | int, size: int, normalizer: Any) -> jax.Array:
        """Probabilities of tokens `start` to `start + size` of one row."""
        scores = self.scores(row, start, size)
        return self._weigh(scores, _ids(start, size), row, normalizer)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        return weights - self.read(row, start, weights.shape[0], normalizer)

    def log_weigh(
        self, scores: jax.Array, tokens: jax.Array, rows: jax.Array, normalizers: Normalizer
    ) -> jax.Array:
        """Logarithms of the weights of tokens, cut-offs apart; that of the largest score is 0."""
        logs = self.log_scores(scores)
        if self.temperature is None:
            return logs - normalizers.largest if self.is_logits else logs
        temperature = pick(self.temperature, rows)
        logs = (logs - self.log_scores(normalizers.largest)) / temperature
        greedy = jnp.where(tokens == normalizers.likeliest, 0.0, -jnp.inf)
        return jnp.where(temperature > 0, logs, greedy)

    def _score(
        self,
        entries: jax.Array,
        mask: jax.Array | None,
        bias: jax.Array | None,
        rows: jax.Array,
    ) -> jax.Array:
        if not self.is_logits:
            entries = jnp.maximum(entries, 0.0)
        if bias is not None:
            if self.is_logits:
                entries += bias
            else:  # Not logarithms, which would make ties of probabilities that nearly are.
                entries = jnp.maximum(entries * jnp.exp(bias), 0.0)
        if mask is not None:
            entries = jnp.where(mask, entries, self.no_mass_score)
        valid = [
            setting.holds(pick(values, rows))
            for name, setting in SETTINGS.items()
            if (values := getattr(self, name)) is not None
        ]
        if self.has_settings is not None:
            valid.append(pick(self.has_settings, rows))
        if valid:
            entries = jnp.where(reduce(jnp.logical_and, valid), entries, jnp.nan)
        return entries

    def _cutoff(
        self, row: jax.Array, scores: jax.Array, largest: jax.Array, is_good: jax.Array
    ) -> jax.Array | None:
        """The lowest score that a row keeps."""
        if not self.has_cutoffs:
            return None
        temperature = None if self.temperature is None else pick(self.temperature, row)
        # A greedy row has no use for cut-offs, and one that cannot be used has none.
        is_cut = is_good if temperature is None else is_good & (temperature > 0)
        weigh = partial(self._temper, largest=largest, temperature=temperature)
        nowhere = cutoff = vary_with(jnp.float32(self.no_mass_score), scores)
        if self.top_k is not None:
            count = pick(self.top_k, row)
            is_used = is_cut & (count > 0)
            goal = count.astype(jnp.float32)
            cutoff = jax.lax.cond(
                is_used,
                lambda: find_cutoff(scores, self._has_mass, goal, is_used),
                lambda: nowhere,
            )
        if self.top_p is not None:
            share, kept_from = pick(self.top_p, row), nowhere if self.order == "joint" else cutoff
            if self.is_joint is not None:
                kept_from = jnp.where(pick(self.is_joint, row), nowhere, cutoff)
            is_used = is_cut & (share < 1)

            def find() -> jax.Array:
                kept = jnp.where(scores >= kept_from, weigh(scores), 0.0)
                return find_cutoff(scores, weigh, share * jnp.sum(kept), is_used)

            cutoff = jnp.maximum(cutoff, jax.lax.cond(is_used, find, lambda: nowhere))
        if self.min_p is not None:
            lowest = self._at_ratio(pick(self.min_p, row), largest, temperature)
            cutoff = jnp.maximum(cutoff, jnp.where(is_cut, lowest, nowhere))
        return jnp.minimum(cutoff, largest)

    def _has_mass(self, scores: jax.Array) -> jax.Array:
        return (scores > self.no_mass_score).astype(jnp.float32)

    def _temper(
        self, scores: jax.Array, largest: jax.Array, temperature: jax.Array | None
    ) -> jax.Array:
        """Weights of scores, cut-offs apart; that of the largest is 1, or the score itself."""
        if temperature is None:
            return jnp.exp(scores - largest) if self.is_logits else scores
        distance = scores - largest if self.is_logits else jnp.log(scores / largest)
        return jnp.exp(distance / temperature)

    def _at_ratio(
        self, ratio: jax.Array, largest: jax.Array, temperature: jax.Array | None
    ) -> jax.Array:
        """The score whose weight has this ratio to that of the largest."""
        exponent = jnp.float32(1.0) if temperature is None else temperature
        if self.is_logits:
            return largest + exponent * jnp.log(ratio)
        return largest * (ratio if temperature is None else ratio**exponent)

    def _weigh(
        self, scores: jax.Array, tokens: jax.Array, row: jax.Array, normalizer: Normalizer
    ) -> jax.Array:
        """Probabilities of tokens that have these scores."""
        temperature = None if self.temperature is None else pick(self.temperature, row)
        weights = self._temper(scores, normalizer.largest, temperature)
        if normalizer.cutoff is not None:
            weights = jnp.where(scores >= normalizer.cutoff, weights, 0.0)
        if temperature is not None:
            greedy = (tokens == normalizer.likeliest).astype(jnp.float32)
            weights = jnp.where(temperature > 0, weights, greedy)
        return weights / normalizer.total


class Entries(NamedTuple):
    """Flat draft laws on some of the tokens: sparse ones, or ones over a smaller vocabulary.

    Attributes:
        law: Over the entries.
        ids: int32, which token each entry stands for, at most once; -1 for none.
    """

    law: FlatLaw | Probabilities
    ids: Shared

    def normalizer(self, row: jax.Array) -> Normalizer | None:
        """That of the law over the entries."""
        return self.law.normalizer(row)

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        entries = find_entries(self.ids, rows, tokens)
        probs = self.law.at(rows, entries, normalizers)
        return jnp.where(entries < self.law.size, probs, 0.0)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        size, width = self.law.size, weights.shape[0]
        probs = self.law.read(row, 0, size, normalizer)
        places = self.ids.read(row, 0, size) - start
        places = jnp.where((places >= 0) & (places < width), places, width)
        return weights.at[places].add(-probs, mode="drop")


def find_entries(ids: Shared, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    """Where each of `tokens` stands among the ids of its row; their number if nowhere."""
    size = ids.table.shape[1]
    flat_rows, flat_tokens = jnp.ravel(rows), jnp.ravel(tokens)

    def find(n: jax.Array) -> jax.Array:
        token = flat_tokens[n]
        is_entry = (ids.read(flat_rows[n], 0, size) == token) & (token >= 0)
        return jnp.min(jnp.where(is_entry, jnp.arange(size, dtype=jnp.int32), size))

    return map_rows(find, number_rows(flat_tokens.shape[0], (ids, rows, tokens))).reshape(
        jnp.shape(tokens)
    )


class Joined(NamedTuple):
    """The rows of one flat target law, then those of another with the same kinds of settings.

    Attributes:
        first: The law of rows 0 to N - 1.
        second: The law of the others.
    """

    first: Probabilities | FlatLaw
    second: Probabilities | FlatLaw

    @property
    def size(self) -> int:
        """The number of tokens, V."""
        return self.second.size

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return self.second.no_mass_score

    def normalizer(self, row: jax.Array) -> Any:
        """That of the row."""
        return self._read(row, lambda law, row: law.normalizer(row))

    def sum_blocks(self, row: jax.Array) -> Any:
        """That of the row."""
        return self._read(row, lambda law, row: law.sum_blocks(row))

    def prepare(self, row: jax.Array) -> Any:
        """That of the row."""
        return self._read(row, lambda law, row: law.prepare(row))

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        first = self.first.at(jnp.minimum(rows, self._split - 1), tokens, normalizers)
        second = self.second.at(jnp.maximum(rows - self._split, 0), tokens, normalizers)
        return jnp.where(rows < self._split, first, second)

    def read(self, row: jax.Array, start: jax.Array | int, size: int, normalizer: Any) -> jax.Array:
        """Probabilities of tokens `start` to `start + size` of one row."""
        return self._read(row, lambda law, row: law.read(row, start, size, normalizer))

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Scores of tokens `start` to `start + size` of one row."""
        return self._read(row, lambda law, row: law.scores(row, start, size))

    @property
    def _split(self) -> int:
        return self.first.num_rows

    def _read(
        self, row: jax.Array, read: Callable[[Probabilities | FlatLaw, jax.Array], Any]
    ) -> Any:
        return either(
            row < self._split,
            lambda: read(self.first, jnp.minimum(row, self._split - 1)),
            lambda: read(self.second, jnp.maximum(row - self._split, 0)),
        )


TargetLaw = Probabilities | FlatLaw | Joined
DraftLaw = Probabilities | FlatLaw | Entries | PointMass


def argmax_row(law: TargetLaw, row: jax.Array) -> jax.Array:
    """The likeliest token of a row, the lowest id of a tie; `NO_TOKEN` if it cannot be used."""
    maxima = block_maxima(law.scores(row, 0, law.size))
    token, score = choose_largest(maxima, partial(law.scores, row), law.size)
    return jnp.where(jnp.isfinite(score) & (score > law.no_mass_score), token, NO_TOKEN)


def _ids(start: jax.Array | int, size: int) -> jax.Array:
    return start + jnp.arange(size, dtype=jnp.int32)
