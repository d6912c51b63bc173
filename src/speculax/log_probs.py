"""Log-probabilities of tokens under a law, before and after its cut-offs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.arrays import as_array, as_int32, check_kind
from speculax.batching import map_rows, number_rows
from speculax.blocks import BLOCK_SIZE
from speculax.flat_laws import Normalizer, find_entries
from speculax.inverse_cdf import block_sums
from speculax.laws import Law, as_law, flat_ids, flat_law_with_settings


class LogProbs(NamedTuple):
    """Log-probabilities of tokens, and how much the cut-offs keep.

    Attributes:
        before: float32 (...), under the law without its cut-offs, natural logarithms; mask, bias
            and temperature count.
        after: float32 (...), under the law; -inf for tokens that it leaves out.
        kept_mass: float32 (...), the mass of the tokens kept by the cut-offs, before them.
    """

    before: jax.Array
    after: jax.Array
    kept_mass: jax.Array


def log_probs(law: Law | ArrayLike, tokens: ArrayLike) -> LogProbs:
    """Log-probabilities of given tokens under laws. Time is that of reading each row a few times.

    Args:
        law: A `Law` of leading shape (...), or probabilities floating (..., V); not logits, which
            `law_from_logits` makes a law of.
        tokens: int (...), one a row. An id without an entry in the law has log-probability -inf.

    Returns:
        `LogProbs`: before the cut-offs, after them, and the mass they keep. At temperature 0 the
        law is a point mass before and after. NaN where a row has NaN, infinity, no mass, or bad
        settings.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If tokens are not integers.

    Examples:
        >>> import jax.numpy as jnp
        >>> import speculax as sx
        >>> law = sx.law_from_probs(jnp.array([[0.5, 0.25, 0.25]]), top_p=0.5)
        >>> [round(x.item(), 3) for x in sx.log_probs(law, jnp.array([0]))]
        [-0.693, 0.0, 0.5]
    """
    law, tokens = as_law("law", law), as_array("tokens", tokens)
    check_kind("tokens", tokens, jnp.integer)
    if tokens.shape != law.shape[:-1]:
        raise ValueError(
            f"tokens must have shape {law.shape[:-1]}, one for each row of the law, got "
            f"{tokens.shape}."
        )
    return _log_probs(law, tokens)


def top_log_probs(law: Law, num_top: int) -> tuple[jax.Array, jax.Array]:
    """The likeliest tokens of laws of logits without settings, and their log-probabilities.

    Only the blocks with the largest maxima are sorted, as many as there are tokens to find.

    Args:
        law: Of leading shape (...).
        num_top: N, at most V.

    Returns:
        int32 (..., N), the likeliest first, of ties the lowest id; and float32 (..., N), natural
        logarithms, NaN where a row has NaN, infinity or no mass.
    """
    lead = law.shape[:-1]
    if num_top == 0:
        return jnp.zeros((*lead, 0), jnp.int32), jnp.zeros((*lead, 0), jnp.float32)
    table = law.table.reshape(-1, law.size)

    def read(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = table[row].astype(jnp.float32)
        missing = -law.size % BLOCK_SIZE
        blocks = jnp.pad(scores, (0, missing), constant_values=-jnp.inf).reshape(-1, BLOCK_SIZE)
        maxima = jnp.max(blocks, axis=1)
        chosen = jnp.sort(jax.lax.top_k(maxima, min(num_top, len(maxima)))[1])
        found, places = jax.lax.top_k(blocks[chosen].reshape(-1), num_top)
        tokens = chosen[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        largest = jnp.max(maxima)
        total = jnp.sum(block_sums(jnp.exp(scores - largest)))
        return tokens.astype(jnp.int32), found - largest - jnp.log(total)

    tokens, logs = map_rows(read, number_rows(table.shape[0], table))
    return tokens.reshape(*lead, num_top), logs.reshape(*lead, num_top)


@jax.jit
def _log_probs(law: Law, tokens: jax.Array) -> LogProbs:
    flat, lead = flat_law_with_settings(law), tokens.shape
    tokens = as_int32(tokens.reshape(-1))
    rows = number_rows(tokens.shape[0], flat)
    ids = flat_ids(law)
    if ids is not None:
        tokens = find_entries(ids, rows, tokens)

    def total(row: jax.Array, normalizer: Normalizer) -> jax.Array:
        return jnp.sum(block_sums(flat.read(row, 0, flat.size, normalizer)))

    def read_row(row: jax.Array) -> tuple[Normalizer, jax.Array, jax.Array]:
        prepared = flat.prepare(row)
        whole = total(row, prepared._replace(cutoff=None))
        return prepared, whole, whole if prepared.cutoff is None else total(row, prepared)

    prepared, whole, kept = map_rows(read_row, rows)
    scores = flat.scores_at(rows, tokens)
    logs = flat.log_weigh(scores, tokens, rows, prepared)
    is_token = (tokens >= 0) & (tokens < flat.size)
    is_kept = is_token if prepared.cutoff is None else is_token & (scores >= prepared.cutoff)
    results = LogProbs(
        before=jnp.where(is_token, logs, -jnp.inf) - jnp.log(whole * prepared.total),
        after=jnp.where(is_kept, logs, -jnp.inf) - jnp.log(kept * prepared.total),
        kept_mass=kept / whole,
    )
    return jax.tree.map(lambda x: x.reshape(lead), results)
