"""Coupled verification: keep drafts while they are the target's own draws with shared noise.

Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative decoding"
(arXiv:2408.07978). A drafter that draws with the same noise (`coupled_draw`) agrees with the target
almost as often as the token rule accepts, and the text is a function of the seed alone, whatever
the drafter and the draft length. Lossless.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.arrays import as_array
from speculax.coupling import as_keys, coupled_token
from speculax.flat_laws import FlatLaw
from speculax.laws import Law, as_law, flat_law_with_settings
from speculax.types import Verdict
from speculax.verify.inputs import Arguments, as_arguments, read_arguments
from speculax.verify.step import Step, StepLaw, follow_target


def verify_coupled(
    draft_tokens: ArrayLike,
    target: ArrayLike | Law,
    seeds: ArrayLike,
    positions: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> Verdict:
    """Keep draft tokens while `coupled_draw` gives the same from the target; then add its token.

    The emitted tokens are those that `coupled_draw` would give one after another without drafts.
    They follow the target's law over independent seeds. Works under `jit` with every argument
    traced, `vmap`, `scan`, `while_loop` and `shard_map`. Time is that of a `coupled_draw` for each
    emitted token; no normaliser is computed, and no law of the draft.

    Args:
        draft_tokens: int (B, G), token i of row b, proposed by the drafter. An id outside [0, V)
            fails.
        target: floating (B, G+1, V) or `Law`, the target's law at the same position; row G is the
            law after the last draft token.
        seeds: int (B,) or (), of at most 32 bits: the seed of each request.
        positions: int (B,) or (), where in its sequence the first draft token stands.
        draft_lengths: int (B,), how many draft tokens each row has (0 allowed); None means G. What
            lies beyond is never read.

    Returns:
        `{"num_accepted": int32 (B,), "tokens": int32 (B, G+1)}`: the accepted draft tokens, the
        target's own token after them, then -1. That token is -1 too where its row has NaN, infinity
        or no mass.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If ids, seeds or positions are not integers, or probabilities not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> import speculax as sx
        >>> target = jnp.array([[[0.4, 0.3, 0.3], [0.3, 0.4, 0.3]]])
        >>> own = sx.coupled_draw(target, seeds=3, positions=jnp.array([[8, 9]]))
        >>> verdict = verify_coupled(own[:, :1], target, seeds=3, positions=8)
        >>> bool((verdict["tokens"] == own).all())
        True
    """
    draft_tokens = as_array("draft_tokens", draft_tokens)
    shape = draft_tokens.shape
    unused = jnp.zeros(shape, jnp.float32), jnp.zeros(shape[:1], jnp.float32)
    arguments = as_arguments(draft_tokens, None, target, *unused, draft_lengths, "target")
    batch = arguments.draft_tokens.shape[0]
    seeds, positions = (
        as_keys(name, values, (batch,))
        for name, values in (("seeds", seeds), ("positions", positions))
    )
    return _verify_coupled(arguments, seeds, positions)


@jax.jit
def _verify_coupled(arguments: Arguments, seeds: jax.Array, positions: jax.Array) -> Verdict:
    step, target, _ = read_arguments(arguments)
    law = flat_law_with_settings(as_law("target", arguments.target_probs))
    return coupled_verdict(step, StepLaw(law, target.rows), seeds, positions)


def coupled_verdict(
    step: Step, target: StepLaw[FlatLaw], seeds: jax.Array, positions: jax.Array
) -> Verdict:
    """Compare the draft tokens with coupled draws from the target."""

    def draw(b: jax.Array, i: jax.Array) -> jax.Array:
        position = positions[b] + i.astype(jnp.uint32)
        return coupled_token(target.law, target.pick(b, i)[0], seeds[b], position)

    return follow_target(step, target, draw)
