"""Draws that are a function of seed and position: the shared noise of coupled sampling.

The Gumbel-max trick with noise keyed by seed, absolute position and token (Daliri, Musco, Suresh,
arXiv:2408.07978): two laws that are alike, drawn from with the same noise, mostly give the same
token, and neither needs to know of the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.argmax import choose_largest, computed_maxima
from speculax.arrays import check_kind
from speculax.batching import map_rows, number_rows
from speculax.flat_laws import FlatLaw, Shared
from speculax.gumbel import gumbel
from speculax.laws import Law, as_law, flat_ids, flat_law_with_settings, tokens_of
from speculax.tables import pick
from speculax.types import NO_TOKEN

LARGEST_NOISE = 1e38  # with any logit added it is still a number


def coupled_draw(law: Law | ArrayLike, seeds: ArrayLike, positions: ArrayLike) -> jax.Array:
    """Draw one token from each row, as a function of the row's law, seed and position alone.

    The token is that of the largest logit + temperature * Gumbel noise, the noise keyed by seed,
    position and token; at temperature 0 the likeliest token. Over independent seeds or different
    positions, tokens follow the law; but the sum is rounded as the logit is: at temperatures
    below 1e-4 of the logits' size tokens that tie are not drawn evenly. Nothing is normalised. Time
    is that of making V numbers of noise a row; memory that of a piece of a row on CPU, of two rows
    with cut-offs, and of a few (..., V) elsewhere.

    Args:
        law: A `Law` of leading shape (...), or probabilities floating (..., V); not logits, which
            `law_from_logits` makes a law of.
        seeds: int (...) or (), of at most 32 bits.
        positions: int (...) or (), where in its sequence the token will stand.

    Returns:
        int32 (...), the tokens; -1 where a row has NaN, infinity, no mass, or bad settings.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If seeds or positions are not integers.

    Examples:
        >>> import jax.numpy as jnp
        >>> law = jnp.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
        >>> first = coupled_draw(law, seeds=7, positions=jnp.array([10, 11]))
        >>> again = coupled_draw(law[1:], seeds=7, positions=jnp.array([11]))
        >>> bool(again[0] == first[1])
        True
    """
    law = as_law("law", law)
    lead = law.shape[:-1]
    return _coupled_draw(law, as_keys("seeds", seeds, lead), as_keys("positions", positions, lead))


@jax.jit
def _coupled_draw(law: Law, seeds: jax.Array, positions: jax.Array) -> jax.Array:
    flat, ids = flat_law_with_settings(law), flat_ids(law)
    seeds, positions = seeds.reshape(-1), positions.reshape(-1)

    def draw(row: jax.Array) -> jax.Array:
        return coupled_token(flat, row, seeds[row], positions[row], ids)

    rows = number_rows(flat.num_rows, (flat, ids, seeds, positions))
    return tokens_of(law, map_rows(draw, rows).reshape(law.shape[:-1]))


def coupled_token(
    law: FlatLaw,
    row: jax.Array,
    seed: jax.Array,
    position: jax.Array,
    ids: Shared | None = None,
) -> jax.Array:
    """The token of one row, int32 (); seed and position are uint32 (), ids those of entries."""
    cutoff = law.prepare(row).cutoff if law.has_cutoffs else None

    def perturb(start: jax.Array | int, size: int) -> jax.Array:
        scores = law.scores(row, start, size)
        if ids is None:
            tokens = start + jnp.arange(size, dtype=jnp.int32)
        else:
            tokens = ids.read(row, start, size)
        noise = gumbel(seed, position, tokens)
        logits = law.log_scores(scores)
        if law.temperature is None:
            logits += noise
        else:
            # The limits keep product and sum apart, which fused would round otherwise.
            temperature = pick(law.temperature, row)
            noise = jnp.clip(temperature * noise, -LARGEST_NOISE, LARGEST_NOISE)
            logits = jnp.where(temperature > 0, logits + noise, scores)
        return logits if cutoff is None else jnp.where(scores >= cutoff, logits, -jnp.inf)

    token, largest = choose_largest(computed_maxima(perturb, law.size), perturb, law.size)
    return jnp.where(jnp.isfinite(largest), token, NO_TOKEN)


def as_keys(name: str, values: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """Seeds or positions as uint32 of a shape, given as such or as one number."""
    array = values if isinstance(values, jax.Array) else np.asarray(values)
    check_kind(name, array, jnp.integer)
    if array.shape not in ((), shape):
        raise ValueError(
            f"{name} must be one number or have shape {shape}, got {array.shape}; pass one for "
            "each row."
        )
    if isinstance(array, np.ndarray):
        wrong = [x for x in array.flat if not -(2**31) <= int(x) < 2**32]
        if wrong:
            raise ValueError(f"{name} must have at most 32 bits, got {wrong[0]}; hash it first.")
        array = array.astype(np.uint32)
    return jnp.broadcast_to(jnp.asarray(array).astype(jnp.uint32), shape)
