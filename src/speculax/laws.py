"""Rows of categorical laws that are read piece by piece and never written out as a whole.

A `Law` is made by `law_from_probs` or `law_from_logits`. Which tokens a row keeps comes down to one
number, the lowest score that is kept, and what its weights are divided by to another; a
`Normalizer` holds them. They are found row by row, and only for rows that are needed.

Inside the library laws are flat: a set of rows (R, V). Of a flat law one can ask

- `normalizer(row)`: what must be known of a row to read probabilities; None if nothing must be;
- `prepare(row)`: the same for draws, for which weights of any scale will do; and `measure(row,
  sum_up)`: the same with what `sum_up` makes of the row's weights;
- `at(rows, tokens, normalizers)`: the probabilities of single tokens;
- `read(row, start, size, normalizer)`: a piece of one row, float32 (size,);
- `subtract_from(weights, row, start, normalizer)`: a piece of weights, less the law;
- `scores(row, start, size)`: a piece of numbers whose largest is the likeliest token.

Weights are not negative (negative entries count as zero); NaN stays NaN, so that whoever sums a row
sees that it cannot be used.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.argmax import block_maxima, choose_largest
from speculax.batching import map_rows
from speculax.blocks import BLOCK_SIZE
from speculax.cutoff import find_cutoff
from speculax.inverse_cdf import block_sums
from speculax.tables import cut, cut_raw, gather

LARGE = 1e8  # up to here rounding a difference of logits matters no more than in the logits

Order = Literal["sequential", "joint"]


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

    def measure(self, row: jax.Array, sum_up: Callable[[jax.Array], jax.Array]) -> Any:
        """Nothing, and what `sum_up` makes of the weights of the row."""
        return None, sum_up(self.scores(row, 0, self.size))

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
        return (self.tokens[rows] == tokens).astype(jnp.float32)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        ids = _ids(start, weights.shape[0])
        return weights - (ids == self.tokens[row]).astype(jnp.float32)


@partial(
    jax.tree_util.register_dataclass,
    meta_fields=["is_logits", "order"],
    data_fields=[
        *("table", "mask", "mask_rows", "bias", "bias_rows", "ids", "ids_rows"),
        *("temperature", "top_k", "top_p", "min_p", "normalizers"),
    ],
)
@dataclass(frozen=True, kw_only=True)
class Law:
    """Categorical laws, not yet computed: see `law_from_logits` and `law_from_probs`.

    A pytree, to be passed through `jit` and the like. Attributes are for reading; `...` are the
    leading axes, and what is None is off.

    Attributes:
        table: floating (..., V), the logits or probabilities.
        mask: bool (N, V), which tokens are allowed; row `mask_rows` int32 (...) of it holds.
        mask_rows: See `mask`.
        bias: floating (N, V), added to logits, or factors of probabilities; like `mask`.
        bias_rows: See `bias`.
        ids: int32 (N, V), which token each entry of the table stands for; like `mask`.
        ids_rows: See `ids`.
        temperature: float32 (...).
        top_k: int32 (...); 0 is off.
        top_p: float32 (...); 1 is off.
        min_p: float32 (...); 0 is off.
        normalizers: `Normalizer` of arrays (...), if they were computed.
        is_logits: Whether the table holds logits.
        order: How the cut-offs work together, "sequential" or "joint".
    """

    table: jax.Array
    is_logits: bool
    order: Order = "sequential"
    mask: jax.Array | None = None
    mask_rows: jax.Array | None = None
    bias: jax.Array | None = None
    bias_rows: jax.Array | None = None
    ids: jax.Array | None = None
    ids_rows: jax.Array | None = None
    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    normalizers: Normalizer | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes and the number of entries, (..., V)."""
        return self.table.shape

    @property
    def size(self) -> int:
        """The number of entries, V."""
        return self.table.shape[-1]

    @property
    def no_mass_score(self) -> float:
        """The score of a token without mass."""
        return -float("inf") if self.is_logits else 0.0

    @property
    def has_cutoffs(self) -> bool:
        """Whether rows may have top-k, top-p or min-p."""
        return any(setting is not None for setting in (self.top_k, self.top_p, self.min_p))

    def normalize(self) -> "Law":
        """The same laws with the normalisers of all rows computed; reads each row twice or more.

        For a drafter, which reads its rows anyway when it samples from them: a verifier that is
        given normalised laws need not read them again.
        """
        return _normalize(self)

    def flatten(self) -> "Law":
        """The same laws, their leading axes made one."""
        lead = self.table.ndim - 1
        shared = ("mask", "bias", "ids")
        leaves = {field.name: getattr(self, field.name) for field in fields(self)}
        flat = {
            name: jax.tree.map(lambda x: x.reshape(-1, *x.shape[lead:]), leaf)
            for name, leaf in leaves.items()
            if name not in (*shared, "is_logits", "order")
        }
        return replace(self, **flat)

    # What follows is for flat laws.

    def scores(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """Scores float32 of entries `start` to `start + size` of one row, masked and biased."""

        def piece(table: jax.Array, rows: jax.Array | None) -> jax.Array:
            at = row if rows is None else rows[row]
            return (cut_raw if table.dtype == bool else cut)(table, at, start, size)

        mask = None if self.mask is None else piece(self.mask, self.mask_rows)
        bias = None if self.bias is None else piece(self.bias, self.bias_rows)
        return self._score(piece(self.table, None), mask, bias)

    def tokens(self, row: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
        """The tokens that a piece of entries stands for, int32 (size,)."""
        if self.ids is None or self.ids_rows is None:
            return _ids(start, size)
        return cut_raw(self.ids, self.ids_rows[row], start, size)

    def normalizer(self, row: jax.Array) -> Normalizer:
        """Read a row as often as its settings need, and once more for the sum of its weights."""
        if self.normalizers is not None:
            return jax.tree.map(lambda x: x[row], self.normalizers)
        prepared, sums = self.measure(row, block_sums)
        return prepared._replace(total=jnp.sum(sums) / prepared.total)

    def measure(self, row: jax.Array, sum_up: Callable[[jax.Array], jax.Array]) -> Any:
        """What `prepare` gives, and what `sum_up` makes of the weights of the row."""

        def in_full() -> tuple[Normalizer, jax.Array]:
            prepared = self.prepare(row)
            return prepared, sum_up(self.read(row, 0, self.size, prepared))

        def at_a_guess() -> tuple[Normalizer, jax.Array]:
            # The largest score is there to keep exponentials in range, and another will mostly do.
            guess = jnp.max(self.scores(row, 0, min(BLOCK_SIZE, self.size)))
            likeliest = None if self.temperature is None else jnp.int32(0)
            prepared = Normalizer(guess, jnp.float32(1.0), likeliest)
            sums = sum_up(self.read(row, 0, self.size, prepared))
            total = jnp.sum(sums)
            is_good = self.is_valid(row) & (total > 0) & (total < LARGE)
            if self.temperature is not None:
                is_good &= self.temperature[row] > 0
            return jax.lax.cond(is_good, lambda: (prepared, sums), in_full)

        if self.has_cutoffs or self.normalizers is not None:
            return in_full()
        # A guess saves a pass over the row; but where rows go side by side, both would be made.
        return jax.lax.platform_dependent(cpu=at_a_guess, default=in_full)

    def prepare(self, row: jax.Array) -> Normalizer:
        """The normaliser with a total of 1, or NaN."""
        if self.normalizers is not None:
            return self.normalizer(row)
        scores = self.scores(row, 0, self.size)
        maxima = block_maxima(scores)
        if self.temperature is None:
            likeliest, largest = None, jnp.max(maxima)
        else:
            likeliest, largest = choose_largest(maxima, partial(self.scores, row), self.size)
        is_good = self.is_valid(row) & jnp.isfinite(largest)
        cutoff = self._cutoff(row, scores, largest, is_good)
        return Normalizer(largest, jnp.where(is_good, 1.0, jnp.nan), likeliest, cutoff)

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        return self._weigh(self.scores_at(rows, tokens), tokens, rows, normalizers)

    def scores_at(self, rows: jax.Array, tokens: jax.Array) -> jax.Array:
        """Scores float32 of `tokens`, each in its row."""
        mask = bias = None
        if self.mask is not None and self.mask_rows is not None:
            mask = self.mask[self.mask_rows[rows], jnp.clip(tokens, 0, self.size - 1)]
        if self.bias is not None and self.bias_rows is not None:
            bias = gather(self.bias, self.bias_rows[rows], tokens)
        return self._score(gather(self.table, rows, tokens), mask, bias)

    def read(self, row: jax.Array, start: jax.Array | int, size: int, normalizer: Any) -> jax.Array:
        """Probabilities of entries `start` to `start + size` of one row."""
        scores = self.scores(row, start, size)
        return self._weigh(scores, _ids(start, size), row, normalizer)

    def subtract_from(
        self, weights: jax.Array, row: jax.Array, start: jax.Array | int, normalizer: Any
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        return weights - self.read(row, start, weights.shape[0], normalizer)

    def log_scores(self, scores: jax.Array) -> jax.Array:
        """Scores as logits."""
        return scores if self.is_logits else jnp.log(scores)

    def is_valid(self, row: jax.Array) -> jax.Array:
        """Whether the settings of a row mean anything."""
        valid = jnp.bool_(True)
        if self.temperature is not None:
            valid &= (self.temperature[row] >= 0) & jnp.isfinite(self.temperature[row])
        if self.top_k is not None:
            valid &= self.top_k[row] >= 0
        if self.top_p is not None:
            valid &= (self.top_p[row] > 0) & (self.top_p[row] <= 1)
        if self.min_p is not None:
            valid &= (self.min_p[row] >= 0) & (self.min_p[row] <= 1)
        return valid

    def _score(
        self, entries: jax.Array, mask: jax.Array | None, bias: jax.Array | None
    ) -> jax.Array:
        if not self.is_logits:
            entries = jnp.maximum(entries, 0.0)
        if bias is not None:
            entries = entries + bias if self.is_logits else jnp.maximum(entries * bias, 0.0)
        return entries if mask is None else jnp.where(mask, entries, self.no_mass_score)

    def _cutoff(
        self, row: jax.Array, scores: jax.Array, largest: jax.Array, is_good: jax.Array
    ) -> jax.Array | None:
        """The lowest score that a row keeps."""
        if not self.has_cutoffs:
            return None
        temperature = None if self.temperature is None else self.temperature[row]
        # A greedy row has no use for cut-offs, and one that cannot be used has none.
        is_cut = is_good if temperature is None else is_good & (temperature > 0)
        weigh = partial(self._temper, largest=largest, temperature=temperature)
        nowhere = cutoff = jnp.float32(self.no_mass_score)
        if self.top_k is not None:
            count = self.top_k[row]
            is_used = is_cut & (count > 0)
            goal = count.astype(jnp.float32)
            cutoff = jax.lax.cond(
                is_used,
                lambda: find_cutoff(scores, self._has_mass, goal, is_used),
                lambda: nowhere,
            )
        if self.top_p is not None:
            share, kept_from = self.top_p[row], nowhere if self.order == "joint" else cutoff
            is_used = is_cut & (share < 1)

            def find() -> jax.Array:
                kept = jnp.where(scores >= kept_from, weigh(scores), 0.0)
                return find_cutoff(scores, weigh, share * jnp.sum(kept), is_used)

            cutoff = jnp.maximum(cutoff, jax.lax.cond(is_used, find, lambda: nowhere))
        if self.min_p is not None:
            lowest = self._at_ratio(self.min_p[row], largest, temperature)
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

    def log_weigh(
        self, scores: jax.Array, tokens: jax.Array, rows: jax.Array, normalizers: Normalizer
    ) -> jax.Array:
        """Logarithms of the weights that `_weigh` divides by the total, cut-offs apart."""
        logs, largest = self.log_scores(scores), normalizers.largest
        if self.temperature is None:
            logs = logs - largest if self.is_logits else logs
        else:
            temperature = self.temperature[rows]
            logs = (logs - self.log_scores(largest)) / temperature
            greedy = jnp.where(tokens == normalizers.likeliest, 0.0, -jnp.inf)
            logs = jnp.where(temperature > 0, logs, greedy)
        return logs

    def _at_ratio(
        self, ratio: jax.Array, largest: jax.Array, temperature: jax.Array | None
    ) -> jax.Array:
        """The score whose weight has this ratio to that of the largest."""
        exponent = jnp.float32(1.0) if temperature is None else temperature
        if self.is_logits:
            return largest + exponent * jnp.log(ratio)
        return largest * (ratio if temperature is None else ratio**exponent)

    def _weigh(
        self, scores: jax.Array, tokens: jax.Array, row: jax.Array, normalizer: Any
    ) -> jax.Array:
        """Probabilities of tokens that have these scores."""
        temperature = None if self.temperature is None else self.temperature[row]
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
        ids: int32 (N, S), which token each entry stands for, at most once; -1 for none.
        ids_rows: int32 (R,), the row of `ids` that each row of the law has.
    """

    law: Law | Probabilities
    ids: jax.Array
    ids_rows: jax.Array

    def normalizer(self, row: jax.Array) -> Normalizer | None:
        """That of the law over the entries."""
        return self.law.normalizer(row)

    def at(self, rows: jax.Array, tokens: jax.Array, normalizers: Any) -> jax.Array:
        """Probabilities float32 of `tokens`, each in its row."""
        entries = find_entries(self.ids, self.ids_rows[rows], tokens)
        probs = self.law.at(rows, entries, normalizers)
        return jnp.where(entries < self.ids.shape[1], probs, 0.0)

    def subtract_from(
        self,
        weights: jax.Array,
        row: jax.Array,
        start: jax.Array | int,
        normalizer: Any,
    ) -> jax.Array:
        """`weights`, a piece that begins at token `start`, less this law."""
        size, width = self.ids.shape[1], weights.shape[0]
        probs = self.law.read(row, 0, size, normalizer)
        places = cut_raw(self.ids, self.ids_rows[row], 0, size) - start
        places = jnp.where((places >= 0) & (places < width), places, width)
        return weights.at[places].add(-probs, mode="drop")


class Joined(NamedTuple):
    """The rows of one flat target law, then those of another with the same kinds of settings.

    Attributes:
        first: The law of rows 0 to N - 1.
        second: The law of the others.
    """

    first: Probabilities | Law
    second: Probabilities | Law

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

    def prepare(self, row: jax.Array) -> Any:
        """That of the row."""
        return self._read(row, lambda law, row: law.prepare(row))

    def measure(self, row: jax.Array, sum_up: Callable[[jax.Array], jax.Array]) -> Any:
        """That of the row."""
        return self._read(row, lambda law, row: law.measure(row, sum_up))

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
        return jax.tree.leaves(self.first)[0].shape[0]

    def _read(self, row: jax.Array, read: Callable[[Probabilities | Law, jax.Array], Any]) -> Any:
        return jax.lax.cond(
            row < self._split,
            lambda row: read(self.first, row),
            lambda row: read(self.second, row - self._split),
            row,
        )


def find_entries(ids: jax.Array, rows: jax.Array, tokens: jax.Array) -> jax.Array:
    """Where each of `tokens` stands in its row of `ids` (N, S); S if nowhere."""
    size = ids.shape[1]
    is_entry = (ids[rows] == tokens[..., None]) & (tokens >= 0)[..., None]
    return jnp.min(jnp.where(is_entry, jnp.arange(size, dtype=jnp.int32), size), axis=-1)


TargetLaw = Probabilities | Law | Joined
DraftLaw = Probabilities | Law | Entries | PointMass


def as_law(law: Law | ArrayLike) -> Law:
    """A law as it is, and probabilities (..., V) as a law.

    Raises:
        TypeError: If the probabilities are not floating.
        ValueError: If they have no entries.
    """
    if isinstance(law, Law):
        return law
    probs = jnp.asarray(law)
    if not jnp.issubdtype(probs.dtype, jnp.floating):
        raise TypeError(
            f"law must be a Law or floating-point probabilities, got {probs.dtype} of shape "
            f"{probs.shape}; make one with law_from_logits or law_from_probs."
        )
    if probs.ndim == 0 or probs.shape[-1] == 0:
        raise ValueError(
            f"law must have shape (..., V) with V at least 1, got {probs.shape}; pass one "
            "probability for each token."
        )
    return Law(table=probs, is_logits=False)


def argmax_row(law: TargetLaw, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The likeliest token of a row, the lowest id of a tie; and whether the row has any mass."""
    maxima = block_maxima(law.scores(row, 0, law.size))
    token, score = choose_largest(maxima, partial(law.scores, row), law.size)
    return token, jnp.isfinite(score) & (score > law.no_mass_score)


def flat_law(law: Law) -> Probabilities | Law:
    """The flat law of a `Law`, without its `ids`."""
    settings = (law.mask, law.bias, law.temperature, law.top_k, law.top_p, law.min_p)
    if not law.is_logits and all(setting is None for setting in settings):
        return Probabilities(law.table.reshape(-1, law.size))
    return replace(law.flatten(), ids=None, ids_rows=None)


def flat_draft_law(law: Law) -> Probabilities | Law | Entries:
    """The flat law of a `Law`."""
    if law.ids is None or law.ids_rows is None:
        return flat_law(law)
    return Entries(flat_law(law), law.ids, law.ids_rows.reshape(-1))


@jax.jit
def _normalize(law: Law) -> Law:
    flat = flat_law(law)
    if isinstance(flat, Probabilities):
        return law
    lead = law.shape[:-1]
    normalizers = map_rows(flat.normalizer, flat.table.shape[0])
    return replace(law, normalizers=jax.tree.map(lambda x: x.reshape(lead), normalizers))


def _ids(start: jax.Array | int, size: int) -> jax.Array:
    return start + jnp.arange(size, dtype=jnp.int32)
