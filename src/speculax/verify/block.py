"""Block verification: judge the draft as a whole, and keep the longest prefix that holds.

Sun et al., "Block verification accelerates speculative decoding" (arXiv:2403.10444), algorithm 2.
Lossless, and no lossless rule for single drafts keeps more tokens on average. Where the draft's
laws are point masses it is token verification.

With P_0 = 1 and P_i = min(1, P_{i-1} * target(x_i) / draft(x_i)), prefix i is held with probability
h_i = R / (R + 1 - P_i), where R is the mass of the residual max(P_i * target - draft, 0) after it,
and the whole draft with P_G. As h_i is at most P_i, most prefixes are refused without a look at
their rows, and those with P_i = 1 held.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.batching import map_rows, number_rows, vary_with
from speculax.flat_laws import DraftLaw, TargetLaw
from speculax.inverse_cdf import block_sums
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
    sum_weights,
)


def verify_block(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> Verdict:
    """Keep the longest prefix of the draft that passes its test, and draw the token after it.

    Tests run from the whole draft down, and the first that passes decides: a prefix may be kept
    although a shorter one would fail. The next token comes from max(P_i * target - draft, 0)
    normalised, see the module, or from the last target row if the whole draft is kept.

    Lossless: the emitted tokens follow the target's law exactly, as long as each draft token was
    sampled from its law and the uniforms are independent. They must be fresh in every step: a test
    may have looked at the uniform of a position that the step then leaves to the next one.
    Keeps at least as many tokens on average as `verify_token`. Works under `jit` with every
    argument traced, `vmap`, `scan`, `while_loop` and `shard_map`. Time is that of reading one to
    two pairs of rows of V a batch row.

    Args:
        draft_tokens: int (B, G), token i of row b, proposed by the drafter. At an id outside [0, V)
            the draft ends.
        draft_probs: floating (B, G, V) or `Law`, the law each token was sampled from; None for
            deterministic drafters.
        target_probs: floating (B, G+1, V) or `Law`, the target's law at the same position; row G is
            the law after the last draft token.
        accept_uniforms: floating (B, G) in [0, 1); i is for the prefix that ends with token i.
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
        Token verification refuses the first token at 0.9; block verification keeps it, because the
        second is likelier than drafted.

        >>> import jax.numpy as jnp
        >>> draft = jnp.array([[[0.5, 0.5], [0.5, 0.5]]])
        >>> target = jnp.array([[[0.4, 0.6], [0.2, 0.8], [0.3, 0.7]]])
        >>> verdict = verify_block(
        ...     jnp.array([[0, 1]]), draft, target, jnp.array([[0.9, 0.9]]), jnp.array([0.5])
        ... )
        >>> verdict["num_accepted"].tolist(), verdict["tokens"].tolist()
        ([2], [[0, 1, 1]])
    """
    return _verify_block(
        as_arguments(
            draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
        )
    )


@jax.jit
def _verify_block(arguments: Arguments) -> Verdict:
    return block_verdict(*read_arguments(arguments))


def block_verdict(step: Step, target: StepLaw[TargetLaw], draft: StepLaw[DraftLaw]) -> Verdict:
    """Read what is needed, plan, and draw."""
    target, draft, p, q = read_draft(step, target, draft, _advance)
    plan, sums = plan_block(step, target, draft, p, q)
    return draw_verdict(step, plan, target, draft, sums)


def plan_block(
    step: Step,
    target: StepLaw[TargetLaw],
    draft: StepLaw[DraftLaw],
    p: jax.Array,
    q: jax.Array,
) -> tuple[Plan, jax.Array]:
    """Test the prefixes of each draft; also the block sums of what is to be drawn from.

    p is the target's probability of each draft token, q the draft's; they may be NaN after a prefix
    that cannot be held.
    """
    batch, length = step.tokens.shape
    # Where a draft token cannot be judged, the draft ends.
    end = count_accepted(step.is_token & ~jnp.isnan(p) & ~jnp.isnan(q))
    held = _prefix_probabilities(p, q)
    i = jnp.arange(length + 1, dtype=jnp.int32)[None]
    uniforms = jnp.pad(step.accept_uniforms, ((0, 0), (1, 0)), constant_values=0.0)
    is_candidate = (i <= end[:, None]) & ((i == 0) | (uniforms < held))

    def judge_row(b: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates, etas, weights, last = is_candidate[b], uniforms[b], held[b], end[b]

        def next_below(stop: jax.Array) -> jax.Array:
            return jnp.max(jnp.where(candidates & (i[0] < stop), i[0], 0))

        def judge(carry: tuple) -> tuple:
            i, _, _ = carry
            weight, eta = weights[i], etas[i]
            rows = target.pick(b, i), draft.pick(b, i)
            sums = sum_weights(target.law, draft.law, *rows, i < last, weight)
            mass = jnp.sum(sums)
            passed = eta * (mass + (1.0 - weight)) < mass
            # A residual that cannot be summed refuses nothing; the draw will do without it.
            holds = (i == last) | (weight == 1.0) | passed | ~jnp.isfinite(mass)
            return jnp.where(holds, i, next_below(i)), holds, sums

        blank = jnp.zeros_like(block_sums(jnp.zeros(target.law.size, jnp.float32)))
        start = next_below(jnp.int32(length + 1)), jnp.bool_(False), blank
        start = vary_with(start, (step, target, draft))
        i_held, _, sums = jax.lax.while_loop(lambda carry: ~carry[1], judge, start)
        return i_held, sums

    num_accepted, sums = map_rows(judge_row, number_rows(batch, (step, target, draft)))
    weight = jnp.take_along_axis(held, num_accepted[:, None], axis=1)[:, 0]
    return Plan(num_accepted, num_accepted < end, weight), sums


def _prefix_probabilities(p: jax.Array, q: jax.Array) -> jax.Array:
    """P_0 to P_G of each row, float32 (B, G+1)."""

    def extend(held: jax.Array, ratio: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        held = _extend(held, *ratio)
        return held, held

    first = vary_with(jnp.ones(p.shape[0], jnp.float32), (p, q))
    rest = jax.lax.scan(extend, first, (p.T, q.T))[1]
    return jnp.concatenate([first[:, None], rest.T], axis=1)


def _extend(held: jax.Array, p: jax.Array, q: jax.Array) -> jax.Array:
    """P_i from P_{i-1}: min(1, P_{i-1} * p / q), without a division by 0."""
    reached = held * p
    return jnp.where(reached < q, reached / q, (reached > 0).astype(jnp.float32))


def _advance(
    state: jax.Array, uniform: jax.Array, p: jax.Array, q: jax.Array
) -> tuple[jax.Array, jax.Array]:
    state = _extend(state, p, q)
    return state, state > 0
