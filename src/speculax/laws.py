"""Categorical laws of a batch of rows, as users make them and pass them around."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.arrays import as_array, check_kind
from speculax.batching import map_rows, number_rows, vary_with
from speculax.flat_laws import (
    SETTINGS,
    Entries,
    FlatLaw,
    Normalizer,
    Order,
    Probabilities,
    Shared,
)
from speculax.types import NO_TOKEN


@partial(
    jax.tree_util.register_dataclass,
    meta_fields=["is_logits", "order"],
    data_fields=["table", "mask", "bias", "ids", *SETTINGS, "is_joint", "rows", "normalizers"],
)
@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """Categorical laws, not yet computed: see `law_from_logits` and `law_from_probs`.

    A pytree, to be passed through `jit` and the like. Attributes are for reading. The leading axes
    of the table are `...`; settings have some of them, from the left; what is None is off.

    Attributes:
        table: floating (..., V), the logits or probabilities.
        is_logits: Whether the table holds logits; static.
        order: How the cut-offs work together, "sequential" or "joint"; static.
        is_joint: bool, in place of `order` where rows differ in it.
        mask: bool, which tokens are allowed; its last axis has V entries.
        bias: floating, added to logits, or to the logarithms of probabilities; like `mask`.
        ids: int32, which token each entry of the table stands for; like `mask`.
        temperature: float32.
        top_k: int32; 0 is off.
        top_p: float32; 1 is off.
        min_p: float32; 0 is off.
        rows: int32 (...), which entry of the settings each row uses, if they are kept apart.
        normalizers: `Normalizer` of arrays (...), if they were computed.
    """

    table: jax.Array
    is_logits: bool
    order: Order = "sequential"
    mask: jax.Array | None = None
    bias: jax.Array | None = None
    ids: jax.Array | None = None
    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    is_joint: jax.Array | None = None
    rows: jax.Array | None = None
    normalizers: Normalizer | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading axes and the number of entries, (..., V)."""
        return self.table.shape

    @property
    def size(self) -> int:
        """The number of entries, V."""
        return self.table.shape[-1]

    def normalize(self) -> "Law":
        """The same laws with the normalisers of all rows computed; reads each row once or more.

        What is done with them gives the same as before, in less time: the more, the more often
        they are used. A drafter that samples from its laws and hands them to a verifier should
        normalise them first; a target's laws are worth it if most of its rows are needed.

        Examples:
            >>> import jax.numpy as jnp
            >>> import speculax as sx
            >>> law = sx.law_from_logits(jnp.zeros((2, 8)), top_k=3).normalize()
            >>> sx.sample(law, jnp.array([0.1, 0.9])).shape
            (2,)
        """
        return _normalize(self)


def expand(law: Law, vocab_size: int) -> jax.Array:
    """The probabilities of laws, written out: float32 (..., V), each row normalised.

    What cannot be used (NaN, infinity, no mass, bad settings) becomes a row of zeros. `vocab_size`
    is the target's V, for laws on some of its tokens.
    """
    num_rows = law.table.size // law.size
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    return expand_rows(law, rows, vocab_size).reshape(*law.shape[:-1], vocab_size)


def expand_rows(law: Law, rows: jax.Array, vocab_size: int) -> jax.Array:
    """The same of some rows int32 (R,), counted over all leading axes: float32 (R, V)."""
    flat, ids = flat_law_with_settings(law), flat_ids(law)

    def read(row: jax.Array) -> jax.Array:
        weights = flat.read(row, 0, flat.size, flat.normalizer(row))
        total = jnp.sum(weights)
        is_usable = jnp.isfinite(total) & (total > 0)
        probs = jnp.where(is_usable, weights / jnp.where(is_usable, total, 1.0), 0.0)
        if ids is None:
            return probs
        places = ids.read(row, 0, flat.size)
        places = jnp.where(places >= 0, places, vocab_size)
        return jnp.zeros((vocab_size,), jnp.float32).at[places].add(probs, mode="drop")

    return map_rows(read, vary_with(rows, (flat, ids)))


def as_law(name: str, law: Law | ArrayLike) -> Law:
    """A law as it is, and probabilities (..., V) as a law.

    Raises:
        TypeError: If the probabilities are not floating.
        ValueError: If there are no rows or no entries.
    """
    if not isinstance(law, Law):
        probs = as_array(name, law)
        check_kind(name, probs, jnp.floating)
        law = Law(table=probs, is_logits=False)
    if len(law.shape) == 0 or 0 in law.shape:
        raise ValueError(
            f"{name} must have shape (..., V) with rows and V at least 1, got {law.shape}; pass "
            "one entry for each token."
        )
    return law


def flat_law(law: Law) -> Probabilities | FlatLaw:
    """The flat law of a `Law`, its ids apart."""
    settings = (law.mask, law.bias, law.temperature, law.top_k, law.top_p, law.min_p)
    if not law.is_logits and all(setting is None for setting in settings):
        return Probabilities(law.table.reshape(-1, law.size))
    return flat_law_with_settings(law)


def flat_law_with_settings(law: Law) -> FlatLaw:
    """The flat law of a `Law`, its ids apart, with or without settings."""
    lead = law.shape[:-1]

    def spread(setting: jax.Array | None) -> jax.Array | None:
        """One setting a row."""
        if setting is None:
            return None
        if law.rows is not None and setting.ndim > 0:
            return setting[law.rows.reshape(-1)]
        return _repeat(setting, lead).reshape(-1)

    def flatten(x: jax.Array) -> jax.Array:
        return x.reshape(-1)

    shared = {"mask": _share(law.mask, law), "bias": _share(law.bias, law)}
    settings = {name: spread(getattr(law, name)) for name in SETTINGS}
    settings["has_settings"] = _has_settings(law)
    table = law.table.reshape(-1, law.size)
    return FlatLaw(
        table=table,
        is_logits=law.is_logits,
        order=law.order,
        is_joint=vary_with(spread(law.is_joint), table),
        normalizers=jax.tree.map(flatten, law.normalizers),
        **vary_with(shared | settings, table),
    )


def flat_draft_law(law: Law) -> Probabilities | FlatLaw | Entries:
    """The flat law of a `Law`."""
    ids = flat_ids(law)
    return flat_law(law) if ids is None else Entries(flat_law(law), ids)


def flat_ids(law: Law) -> Shared | None:
    """Which token each entry of the flat law stands for; None if its own number."""
    return vary_with(_share(law.ids, law), law.table)


def tokens_of(law: Law, entries: jax.Array) -> jax.Array:
    """The tokens that entries (...) of the rows of a law stand for; `NO_TOKEN` stays."""
    ids = flat_ids(law)
    if ids is None:
        return entries
    rows = jnp.arange(entries.size, dtype=jnp.int32).reshape(entries.shape)
    return jnp.where(entries >= 0, ids.at(rows, entries), NO_TOKEN)


def _has_settings(law: Law) -> jax.Array | None:
    """Whether there are the settings that each row names."""
    if law.rows is None:
        return None
    kept = [getattr(law, name) for name in SETTINGS]
    kept += [array[..., 0] for array in (law.mask, law.bias) if array is not None]
    numbers = [array.shape[0] for array in kept if array is not None and array.ndim > 0]
    rows = law.rows.reshape(-1)
    return (rows >= 0) & (rows < numbers[0]) if numbers else None


def _share(setting: jax.Array | None, law: Law) -> Shared | None:
    if setting is None:
        return None
    prefix, lead = setting.shape[:-1], law.shape[:-1]
    table = setting.reshape(-1, setting.shape[-1])
    if law.rows is not None and prefix:
        return Shared(table, law.rows.reshape(-1))
    numbers = jnp.arange(table.shape[0], dtype=jnp.int32).reshape(prefix)
    return Shared(table, _repeat(numbers, lead).reshape(-1))


def _repeat(array: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """Repeat an array along the leading axes it lacks."""
    return jnp.broadcast_to(array.reshape(array.shape + (1,) * (len(lead) - array.ndim)), lead)


@jax.jit
def _normalize(law: Law) -> Law:
    flat, lead = flat_law(law), law.shape[:-1]
    if isinstance(flat, Probabilities):
        return law
    normalizers = map_rows(flat.normalizer, number_rows(flat.num_rows, flat))
    return replace(law, normalizers=jax.tree.map(lambda x: x.reshape(lead), normalizers))
