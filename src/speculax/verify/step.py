"""One verification step: what a rule is given, what it plans, and how a plan becomes a verdict.

A rule decides how many draft tokens to keep and what the next token is drawn from; the rest is
here, for all rules alike. Only the rows of the laws that a rule or its plan names are read.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from speculax import blocks
from speculax.batching import either, map_rows, number_rows, vary_with
from speculax.flat_laws import DraftLaw, Entries, TargetLaw
from speculax.inverse_cdf import block_sums, choose_block, choose_token, is_usable
from speculax.tables import pick
from speculax.types import NO_TOKEN, Verdict

L = TypeVar("L", bound=TargetLaw | DraftLaw, covariant=True)


class Step(NamedTuple):
    """The draft tokens and the noise of one step.

    Attributes:
        tokens: int32 (B, G), the draft tokens; `NO_TOKEN` where an id is outside the vocabulary.
        lengths: int32 (B,) in [0, G], how many of them there are.
        accept_uniforms: float32 (B, G) in [0, 1 - 2**-24]; NaN fails every test.
        sample_uniforms: float32 (B,) in [0, 1 - 2**-24].
    """

    tokens: jax.Array
    lengths: jax.Array
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array

    @property
    def is_token(self) -> jax.Array:
        """Bool (B, G), which draft tokens there are and can be judged."""
        i = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]
        return (self.tokens >= 0) & (i < self.lengths[:, None])


class StepLaw(NamedTuple, Generic[L]):
    """Laws as a step sees them: which row belongs to which position.

    Attributes:
        law: Flat laws.
        rows: int32 (B, N), the row of each position.
        normalizers: What the law's `normalizer` gave for each position; arrays (B, N).
    """

    law: L
    rows: jax.Array
    normalizers: Any = None

    def at(self, tokens: jax.Array) -> jax.Array:
        """The probabilities of `tokens` (B, G), for laws that are read without normalisers."""
        return self.law.at(self.rows[:, : tokens.shape[1]], tokens, None)

    def pick(self, b: jax.Array, i: jax.Array) -> tuple[jax.Array, Any]:
        """The row of position i of batch row b, the last if there are fewer; its normaliser."""
        i = jnp.minimum(i, self.rows.shape[1] - 1)
        return self.rows[b, i], jax.tree.map(lambda x: x[b, i], self.normalizers)


class Plan(NamedTuple):
    """What a rule decided, one entry a batch row.

    Attributes:
        num_accepted: int32 (B,), how many draft tokens are kept.
        subtract_draft: bool (B,), whether the next token is drawn from the residual
            max(weight * target - draft, 0) at that position, not from the target itself.
        target_weight: float32 (B,), the weight; None for 1.
    """

    num_accepted: jax.Array
    subtract_draft: jax.Array
    target_weight: jax.Array | None = None


def ids_below(vocab_size: int, ids: jax.Array) -> jax.Array:
    """Ids as int32; `NO_TOKEN` where one is outside the vocabulary."""
    ids = widen(ids)
    return jnp.where((ids >= 0) & (ids < vocab_size), ids, NO_TOKEN).astype(jnp.int32)


def widen(integers: jax.Array) -> jax.Array:
    """Integers of a type that can be compared with a vocabulary's or a draft's size."""
    return integers.astype(jnp.int32) if integers.dtype.itemsize < 4 else integers


def count_accepted(passed: jax.Array) -> jax.Array:
    """How many tests of each row passed before the first failure: bool (B, G) to int32 (B,)."""
    return jnp.sum(jnp.cumprod(passed.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def read_draft(
    step: Step,
    target: StepLaw[TargetLaw],
    draft: StepLaw[DraftLaw],
    advance: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
) -> tuple[StepLaw[TargetLaw], StepLaw[DraftLaw], jax.Array, jax.Array]:
    """The probabilities of the draft tokens, and the normalisers they need, from the left.

    Where rows must be normalised to be read, only those that the rule gets to are.

    Args:
        step: The step.
        target: The target's laws.
        draft: The draft's laws.
        advance: `advance(state, uniform, p, q) -> (state, goes_on)` says whether the rule needs the
            position after one of which p and q are the target's and the draft's probabilities of
            the draft token. The state is float32 (), 1 at first.

    Returns:
        The laws with normalisers, and p and q float32 (B, G). What was not needed is NaN.
    """
    batch, length = step.tokens.shape
    blank_target, blank_draft = (
        jax.tree.map(
            lambda x: jnp.full(x.shape, jnp.nan if x.dtype == jnp.float32 else 0, x.dtype),
            jax.eval_shape(law.law.normalizer, jnp.int32(0)),
        )
        for law in (target, draft)
    )
    if not jax.tree.leaves((blank_target, blank_draft)):
        return target, draft, target.at(step.tokens), draft.at(step.tokens)
    sources = step, target, draft
    no_draft = vary_with(blank_draft, sources)

    def run_row(b: jax.Array) -> Any:
        tokens, uniforms = step.tokens[b], step.accept_uniforms[b]
        num_tokens = count_accepted(step.is_token[b][None])[0]

        def is_needed(carry: tuple) -> jax.Array:
            return (carry[0] <= num_tokens) & carry[1]

        def read(carry: tuple) -> tuple:
            i, _, state, found = carry
            target_row, draft_row = target.pick(b, i)[0], draft.pick(b, i)[0]
            of_target = target.law.normalizer(target_row)
            needs_draft = i < num_tokens
            if of_target is not None:
                # It waits for the target's: what that needed in memory is then free for it.
                needs_draft &= of_target.total > 0
            of_draft = either(
                needs_draft,
                lambda: draft.law.normalizer(draft_row),
                lambda: no_draft,
            )
            goes_on, p, q = jnp.bool_(False), jnp.float32(jnp.nan), jnp.float32(jnp.nan)
            if length > 0:
                token = tokens[jnp.minimum(i, length - 1)]
                uniform = uniforms[jnp.minimum(i, length - 1)]
                p = target.law.at(target_row, token, of_target)
                q = draft.law.at(draft_row, token, of_draft)
                state, goes_on = advance(state, uniform, p, q)
            one = of_target, of_draft, p, q
            found = jax.tree.map(lambda all, one: all.at[i].set(one, mode="drop"), found, one)
            return i + 1, goes_on, state, found

        blank = blank_target, blank_draft, jnp.float32(jnp.nan), jnp.float32(jnp.nan)
        found = jax.tree.map(partial(jnp.full, (length + 1,)), blank)
        start = jnp.int32(0), jnp.bool_(True), jnp.float32(1.0), found
        return jax.lax.while_loop(is_needed, read, vary_with(start, sources))[3]

    targets, drafts, p, q = map_rows(run_row, number_rows(batch, sources))
    target, draft = target._replace(normalizers=targets), draft._replace(normalizers=drafts)
    return target, draft, p[:, :length], q[:, :length]


def sum_weights(
    target: TargetLaw,
    draft: DraftLaw,
    target_row: tuple[jax.Array, Any],
    draft_row: tuple[jax.Array, Any],
    subtract: jax.Array,
    weight: jax.Array | None,
) -> jax.Array:
    """The block sums of what a token is drawn from, given the rows and their normalisers."""
    return either(
        subtract,
        lambda: block_sums(_residual(target, draft, target_row, draft_row, 0, target.size, weight)),
        lambda: block_sums(target.read(target_row[0], 0, target.size, target_row[1])),
    )


def draw_verdict(
    step: Step,
    plan: Plan,
    target: StepLaw[TargetLaw],
    draft: StepLaw[DraftLaw],
    sums: jax.Array | None = None,
) -> Verdict:
    """Draw the next token of each row as planned. Reads at most one pair of rows a batch row.

    Where the residual has no usable mass, by rounding or by NaN in the draft's row, the token is
    drawn from the target; where that has none either, it is `NO_TOKEN`. `sums` are the block sums
    (B, K) of what is drawn from, if the rule knows them.
    """
    rows = number_rows(step.tokens.shape[0], (step, target, draft))
    # Looked up out here: an index inside a branch would not pass through `vmap` in `shard_map`.
    target_rows, draft_rows = (
        jax.vmap(law.pick)(rows, plan.num_accepted) for law in (target, draft)
    )

    def of_row(values: Any, b: jax.Array) -> Any:
        return jax.tree.map(lambda x: pick(x, b), values)

    def sum_rows(subtract: jax.Array) -> jax.Array:
        def sum_row(b: jax.Array) -> jax.Array:
            given = target_rows, draft_rows, subtract, plan.target_weight
            return sum_weights(target.law, draft.law, *of_row(given, b))

        return map_rows(sum_row, rows)

    if sums is None:
        sums = sum_rows(plan.subtract_draft)
    subtract = plan.subtract_draft & is_usable(sums)
    is_changed = jnp.any(subtract != plan.subtract_draft)
    final = jax.lax.cond(is_changed, lambda _: sum_rows(subtract), lambda sums: sums, sums)

    def choose(b: jax.Array) -> jax.Array:
        target_row, draft_row, weight = of_row((target_rows, draft_rows, plan.target_weight), b)
        block, before, threshold = choose_block(final[b], step.sample_uniforms[b])
        start, width, is_inside = blocks.locate(block, target.law.size)
        piece = jnp.where(
            subtract[b],
            _residual(target.law, draft.law, target_row, draft_row, start, width, weight),
            target.law.read(target_row[0], start, width, target_row[1]),
        )
        return start + choose_token(jnp.where(is_inside, piece, 0.0), before, threshold)

    # All at once where little is read: a draft law on some of the tokens is read as a whole.
    one_by_one = isinstance(draft.law, Entries)
    drawn = map_rows(choose, rows) if one_by_one else jax.vmap(choose)(rows)
    return make_verdict(
        step.tokens, plan.num_accepted, jnp.where(is_usable(final), drawn, NO_TOKEN)
    )


def follow_target(
    step: Step,
    target: StepLaw[TargetLaw],
    own_token: Callable[[jax.Array, jax.Array], jax.Array],
) -> Verdict:
    """Keep draft tokens while they are what the target would have said itself.

    Args:
        step: The step; its uniforms are the caller's business.
        target: The laws that `own_token` draws from.
        own_token: `own_token(b, i)`, the target's own token after i draft tokens of batch row b;
            `NO_TOKEN` if there is none.
    """

    def follow_row(b: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens = jnp.append(step.tokens[b], NO_TOKEN)
        num_tokens = step.lengths[b]

        def follow(carry: tuple) -> tuple:
            i, _, _ = carry
            token = own_token(b, i)
            equal = (i < num_tokens) & (tokens[i] == token) & (token >= 0)
            return i + equal.astype(jnp.int32), token, equal

        start = jnp.int32(0), jnp.int32(NO_TOKEN), jnp.bool_(True)
        start = vary_with(start, (step, target))
        return jax.lax.while_loop(lambda carry: carry[2], follow, start)[:2]

    num_accepted, drawn = map_rows(follow_row, number_rows(step.tokens.shape[0], (step, target)))
    return make_verdict(step.tokens, num_accepted, drawn)


def make_verdict(draft_tokens: jax.Array, num_accepted: jax.Array, drawn: jax.Array) -> Verdict:
    """Line up the accepted draft tokens, the drawn token (B,) and the padding."""
    tokens = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    i = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    stop = num_accepted[:, None]
    tokens = jnp.where(i < stop, tokens, jnp.where(i == stop, drawn[:, None], NO_TOKEN))
    return {"num_accepted": num_accepted, "tokens": tokens}


def _residual(
    target: TargetLaw,
    draft: DraftLaw,
    target_row: tuple[jax.Array, Any],
    draft_row: tuple[jax.Array, Any],
    start: jax.Array | int,
    width: int,
    weight: jax.Array | None,
) -> jax.Array:
    weights = target.read(target_row[0], start, width, target_row[1])
    if weight is not None:
        # The maximum keeps product and difference apart, which fused would round otherwise.
        weights = jnp.maximum(weights * weight, 0.0)
    return jnp.maximum(draft.subtract_from(weights, draft_row[0], start, draft_row[1]), 0.0)
