"""Token verification: keep draft tokens from left to right until the first test fails.

Leviathan, Kalman, Matias (arXiv:2211.17192), algorithm 1; Chen et al. (arXiv:2302.01318),
algorithm 2. Lossless. Reads two entries a draft token, and one pair of V-sized rows a batch row.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.flat_laws import DraftLaw, TargetLaw
from speculax.laws import Law
from speculax.types import Verdict
from speculax.verify.inputs import Arguments, as_arguments, read_arguments
from speculax.verify.step import (
    Plan,
    Step,
    StepLaw,
    count_accepted,
    draw_verdict,
    read_draft,
)


def verify_token(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> Verdict:
    """Decide how many draft tokens are kept, and draw the one token that follows them.

    Draft token i passes when `accept_uniforms[b, i] * draft(token) < target(token)`. Tests run in
    order and the first failure ends the step. The next token is the smallest id whose cumulative
    probability exceeds `sample_uniforms[b]`, under max(target - draft, 0) normalised where a test
    failed (the correction token), under the last target row where none did (the bonus token).

    Lossless: the emitted tokens follow the target's law exactly, whatever the draft's laws, as
    long as each draft token was sampled from its law and the uniforms are independent. Works under
    `jit` with every argument traced, `vmap`, `scan`, `while_loop` and `shard_map`; on a mesh with
    explicit axes, inside `jax.sharding.auto_axes`. Time is that of reading two rows of V a batch
    row; from logits, of reading the rows up to the first failure too, unless they are normalised.

    Args:
        draft_tokens: int (B, G), token i of row b, proposed by the drafter. An id outside [0, V)
            fails.
        draft_probs: floating (B, G, V) or `Law`, the law each token was sampled from; None for
            deterministic drafters (each law is a point mass on its token).
        target_probs: floating (B, G+1, V) or `Law`, the target's law at the same position; row G is
            the law after the last draft token. Arithmetic is float32, and where XLA flushes
            subnormal numbers, as on CPU, probabilities below 1.2e-38 count as zero.
        accept_uniforms: floating (B, G) in [0, 1), noise of the acceptance tests.
        sample_uniforms: floating (B,) in [0, 1), noise of the token drawn afterwards.
        draft_lengths: int (B,), how many draft tokens each row has (0 allowed); None means G. What
            lies beyond is never read.

    Returns:
        `{"num_accepted": int32 (B,), "tokens": int32 (B, G+1)}`: the accepted draft tokens, the
        drawn token, then -1. The drawn token is -1 too where the target row it would come from has
        NaN, infinity or no mass.

    Raises:
        ValueError: If shapes disagree.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> verdict = verify_token(
        ...     draft_tokens=jnp.array([[3, 2]]),
        ...     draft_probs=jnp.array([[[0.2, 0.59, 0.04, 0.17], [0.12, 0.43, 0.42, 0.03]]]),
        ...     target_probs=jnp.array(
        ...         [[[0.04, 0.44, 0.24, 0.28], [0.27, 0.36, 0.23, 0.14], [0.19, 0.34, 0.07, 0.4]]]
        ...     ),
        ...     accept_uniforms=jnp.array([[0.27, 0.79]]),
        ...     sample_uniforms=jnp.array([0.92]),
        ... )
        >>> verdict["num_accepted"].tolist(), verdict["tokens"].tolist()
        ([1], [[3, 3, -1]])
    """
    return _verify_token(
        as_arguments(
            draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
        )
    )


@jax.jit
def _verify_token(arguments: Arguments) -> Verdict:
    return token_verdict(*read_arguments(arguments))


def token_verdict(step: Step, target: StepLaw[TargetLaw], draft: StepLaw[DraftLaw]) -> Verdict:
    """Read what is needed, plan, and draw."""
    target, draft, p, q = read_draft(step, target, draft, _advance)
    return draw_verdict(step, plan_token(step, p, q), target, draft)


def plan_token(step: Step, p: jax.Array, q: jax.Array) -> Plan:
    """Test the draft tokens of a batch; p is the target's probability of each, q the draft's."""
    num_accepted = count_accepted(step.is_token & _passes(step.accept_uniforms, p, q))
    i = jnp.arange(step.tokens.shape[1], dtype=jnp.int32)[None]
    failed_on_token = jnp.any(step.is_token & (i == num_accepted[:, None]), axis=1)
    return Plan(num_accepted, subtract_draft=failed_on_token)


def _passes(uniform: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
    return uniform * q < p


def _advance(
    state: jax.Array, uniform: jax.Array, p: jax.Array, q: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return state, _passes(uniform, p, q)
