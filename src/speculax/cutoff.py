"""Top-k and top-p without sorting: the lowest score that is kept.

Both ask for the same thing: the highest score at which the tokens that score as much or more weigh
enough, k tokens of weight 1, or a share of the row's mass. It is found by bisection, a pass over
the scores a step; tokens of equal score are kept or dropped together. As likely tokens are few, the
64 highest scores are tried first.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from speculax.inverse_cdf import cumulate

NUM_HIGHEST = HIGHEST_BLOCK_SIZE = 64
# Halving values is quick where scores are spread evenly; halving bit patterns always ends.
VALUE_STEPS, WIDE = 16, 1e4

Weigh = Callable[[jax.Array], jax.Array]  # scores to weights; higher scores, higher weights


def find_cutoff(scores: jax.Array, weigh: Weigh, goal: jax.Array, is_used: jax.Array) -> jax.Array:
    """The highest score at which the scores as high or higher weigh `goal` or more.

    Args:
        scores: float32 (V,), without NaN.
        weigh: Gives each score its weight; only positive ones count.
        goal: float32 (), positive. If all scores weigh less, the lowest with weight comes out.
        is_used: bool (), whether the result matters: where rows go side by side, one that does not
            keeps none waiting.

    Returns:
        The cut-off, float32 (). Weights are summed in float32: masses that close to the goal can
        fall on either side.
    """
    highest = _highest(scores)
    enough = cumulate(weigh(highest)) >= goal
    return jax.lax.cond(
        enough[-1],
        lambda: highest[jnp.argmax(enough)],
        lambda: _bisect(scores, weigh, goal, is_used & ~enough[-1]),
    )


def _highest(scores: jax.Array) -> jax.Array:
    """The highest scores in falling order, float32 (at most `NUM_HIGHEST`,).

    They are in the blocks with the highest maxima: a score outside has as many others above it.
    """
    num_blocks = scores.shape[0] // HIGHEST_BLOCK_SIZE
    if num_blocks <= NUM_HIGHEST:
        return jax.lax.top_k(scores, min(NUM_HIGHEST, scores.shape[0]))[0]
    full = num_blocks * HIGHEST_BLOCK_SIZE
    blocks = scores[:full].reshape(num_blocks, HIGHEST_BLOCK_SIZE)
    chosen = jax.lax.top_k(jnp.max(blocks, axis=1), NUM_HIGHEST)[1]
    few = jax.vmap(
        lambda block: jax.lax.dynamic_slice(
            scores, (block * HIGHEST_BLOCK_SIZE,), (HIGHEST_BLOCK_SIZE,)
        )
    )(chosen)
    return jax.lax.top_k(jnp.append(few.reshape(-1), scores[full:]), NUM_HIGHEST)[0]


def _bisect(scores: jax.Array, weigh: Weigh, goal: jax.Array, is_used: jax.Array) -> jax.Array:
    """`find_cutoff` by passes over all the scores."""
    weights = weigh(scores)

    def mass_from(score: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(scores >= score, weights, 0.0))

    # Invariant: scores from `low` up weigh the goal or more, scores from `high` up weigh less.
    def is_open(carry: tuple[jax.Array, ...]) -> jax.Array:
        _, low, high, mass = carry
        # Without its lightest entry the set is too light: it cannot shrink.
        is_smallest = mass - weigh(low) < goal
        return is_used & (_order(low) + 1 < _order(high)) & ~is_smallest

    def halve(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        i, low, high, mass = carry
        middle = low + (high - low) * 0.5
        by_value = (i < VALUE_STEPS) & (high - low < WIDE) & (low < middle) & (middle < high)
        middle = jnp.where(by_value, middle, _between(low, high))
        found = mass_from(middle)
        enough = found >= goal
        return (
            i + 1,
            jnp.where(enough, middle, low),
            jnp.where(enough, high, middle),
            jnp.where(enough, found, mass),
        )

    lightest = jnp.min(jnp.where(weights > 0, scores, jnp.inf))
    above = _unorder(_order(jnp.max(scores)) + 1)
    start = (jnp.int32(0), lightest, above, jnp.sum(weights))
    return jax.lax.while_loop(is_open, halve, start)[1]


def _order(score: jax.Array) -> jax.Array:
    """Floats as int32 in the same order."""
    bits = jax.lax.bitcast_convert_type(score, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _unorder(order: jax.Array) -> jax.Array:
    bits = jnp.where(order < 0, order ^ 0x7FFFFFFF, order)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _between(low: jax.Array, high: jax.Array) -> jax.Array:
    """The float halfway between two, counting floats."""
    low, high = _order(low), _order(high)
    return _unorder((low & high) + ((low ^ high) >> 1))
