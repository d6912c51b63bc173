"""Greedy verification: keep the draft tokens that are the target's likeliest, one after another.

The limit of every lossless rule at temperature 0 (Leviathan, Kalman, Matias, arXiv:2211.17192,
section 2.2; Stern, Shazeer, Uszkoreit, arXiv:1811.03115). Lossless with respect to greedy decoding.
Reads the target rows up to the first that disagrees once, and no draft law.
"""

import jax
from jax.typing import ArrayLike

from speculax.flat_laws import TargetLaw, argmax_row
from speculax.laws import Law
from speculax.types import Verdict
from speculax.verify.inputs import Arguments, as_arguments, read_arguments
from speculax.verify.step import Step, StepLaw, follow_target


def verify_greedy(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> Verdict:
    """Keep draft tokens while each is the target's likeliest; then add the likeliest token.

    The lowest id wins ties. Lossless with respect to greedy decoding: the tokens are those that
    decoding without drafts would give. Works under `jit`, `vmap`, `scan`, `while_loop` and
    `shard_map`. Time is that of reading the target rows once.

    Args:
        draft_tokens: int (B, G), token i of row b, proposed by the drafter. An id outside [0, V)
            fails.
        draft_probs: floating (B, G, V), `Law` or None; not used.
        target_probs: floating (B, G+1, V) or `Law`, the target's law at the same position; row G is
            the law after the last draft token. Rows need not sum to one, but of an array negative
            entries count as zero: pass logits as a law.
        accept_uniforms: floating (B, G); not used.
        sample_uniforms: floating (B,); not used.
        draft_lengths: int (B,), how many draft tokens each row has (0 allowed); None means G. What
            lies beyond is never read.

    Returns:
        `{"num_accepted": int32 (B,), "tokens": int32 (B, G+1)}`: the accepted draft tokens, the
        target's likeliest token after them, then -1. That token is -1 too where its row has NaN,
        infinity or no mass; such a row accepts nothing.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    return _verify_greedy(
        as_arguments(
            draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
        )
    )


@jax.jit
def _verify_greedy(arguments: Arguments) -> Verdict:
    step, target, _ = read_arguments(arguments)
    return greedy_verdict(step, target)


def greedy_verdict(step: Step, target: StepLaw[TargetLaw]) -> Verdict:
    """Compare the draft tokens with the likeliest ones; a row is read only if it is got to."""
    return follow_target(step, target, lambda b, i: argmax_row(target.law, target.pick(b, i)[0]))
