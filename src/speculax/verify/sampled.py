"""Sampled verification: draw the target's own tokens, and keep drafts while they are the same.

The check by exact match of serving engines (as in TensorRT-LLM's strict mode), for drafters that
cannot say what law their tokens came from: any will do, as long as it does not know the uniforms.
Lossless. Keeps fewer tokens than token verification where the draft's law is known; for point
masses, as many.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.flat_laws import TargetLaw
from speculax.laws import Law
from speculax.sampling import draw_row
from speculax.types import NO_TOKEN, Verdict
from speculax.verify.inputs import Arguments, as_arguments, read_arguments
from speculax.verify.step import Step, StepLaw, follow_target


def verify_sampled(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> Verdict:
    """Draw the target's own token at each position, and stop where it is not the draft token.

    `accept_uniforms[b, i]` draws the token at position i, `sample_uniforms[b]` the one after the
    whole draft. The first token drawn that differs from its draft token is emitted in its place;
    if none does, so is the one after the draft.

    Lossless: each emitted token is drawn from the target's law, whatever the drafts. Uniforms keyed
    by absolute position are allowed, unlike for other rules: the text is then a function of them,
    with drafts or without. Works under `jit` with every argument traced, `vmap`, `scan`,
    `while_loop` and `shard_map`. Time is that of reading the target rows up to the last one drawn
    from; no normaliser is computed.

    Args:
        draft_tokens: int (B, G), token i of row b, proposed by the drafter. An id outside [0, V)
            fails.
        draft_probs: floating (B, G, V), `Law` or None; not used.
        target_probs: floating (B, G+1, V) or `Law`, the target's law at the same position; row G is
            the law after the last draft token.
        accept_uniforms: floating (B, G) in [0, 1); NaN fails, and draws as 0.
        sample_uniforms: floating (B,) in [0, 1).
        draft_lengths: int (B,), how many draft tokens each row has (0 allowed); None means G. What
            lies beyond is never read, and `sample_uniforms` draws the token after them.

    Returns:
        `{"num_accepted": int32 (B,), "tokens": int32 (B, G+1)}`: the accepted draft tokens, the
        target's own token after them, then -1. That token is -1 too where its row has NaN, infinity
        or no mass.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> target = jnp.array([[[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]])
        >>> verdict = verify_sampled(
        ...     jnp.array([[1]]), None, target, jnp.array([[0.7]]), jnp.array([0.3])
        ... )
        >>> verdict["num_accepted"].tolist(), verdict["tokens"].tolist()
        ([1], [[1, 1]])
    """
    return _verify_sampled(
        as_arguments(
            draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
        )
    )


@jax.jit
def _verify_sampled(arguments: Arguments) -> Verdict:
    step, target, _ = read_arguments(arguments)
    return sampled_verdict(step, target)


def sampled_verdict(step: Step, target: StepLaw[TargetLaw]) -> Verdict:
    """Draw the target's own tokens, only as many as are needed."""
    fails = jnp.isnan(step.accept_uniforms)
    step = step._replace(tokens=jnp.where(fails, NO_TOKEN, step.tokens))

    def draw(b: jax.Array, i: jax.Array) -> jax.Array:
        uniforms = jnp.append(step.accept_uniforms[b], 0.0)
        uniform = jnp.where(i < step.lengths[b], uniforms[i], step.sample_uniforms[b])
        return draw_row(target.law, target.pick(b, i)[0], uniform)

    return follow_target(step, target, draw)
