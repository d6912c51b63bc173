"""One verification step: what a rule is given, what it plans, and how a plan becomes a verdict.

A rule decides how many draft tokens to keep and what the next token is drawn from; `draw_verdict`
does the rest, for all rules alike. Only the rows of the laws that a plan names are read.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from speculax import blocks
from speculax.batching import map_rows
from speculax.inverse_cdf import block_sums, choose_block, choose_token
from speculax.laws import DraftLaw, PointMass, Probabilities, TargetLaw
from speculax.types import NO_TOKEN, Verdict


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
    def positions(self) -> jax.Array:
        """int32 (1, G), the places of the draft tokens."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]

    @property
    def rows(self) -> jax.Array:
        """int32 (B, 1), the numbers of the batch rows."""
        return jnp.arange(self.tokens.shape[0], dtype=jnp.int32)[:, None]

    def target_row(self, b: jax.Array, i: jax.Array) -> jax.Array:
        """The row of the flat target laws after i draft tokens of batch row b."""
        return b * (self.tokens.shape[1] + 1) + i

    def draft_row(self, b: jax.Array, i: jax.Array) -> jax.Array:
        """The row of the flat draft laws of draft token i of batch row b; the last if i = G."""
        width = max(self.tokens.shape[1], 1)
        return b * width + jnp.minimum(i, width - 1)

    def draft_law(self, probs: jax.Array | None) -> DraftLaw:
        """The draft laws of `probs` (B, G, V), or point masses on the draft tokens for None."""
        batch, length = self.tokens.shape
        if length == 0:  # nothing will be subtracted
            return PointMass(jnp.full((batch,), NO_TOKEN, jnp.int32))
        if probs is None:
            return PointMass(self.tokens.reshape(-1))
        return Probabilities(probs.reshape(batch * length, -1))


def ids_below(vocab_size: int, ids: jax.Array) -> jax.Array:
    """Ids as int32; `NO_TOKEN` where one is outside the vocabulary."""
    ids = widen(ids)
    return jnp.where((ids >= 0) & (ids < vocab_size), ids, NO_TOKEN).astype(jnp.int32)


def widen(integers: jax.Array) -> jax.Array:
    """Integers of a type that can be compared with a vocabulary's or a draft's size."""
    return integers.astype(jnp.int32) if integers.dtype.itemsize < 4 else integers


class Plan(NamedTuple):
    """What a rule decided, one entry a batch row.

    Attributes:
        num_accepted: int32 (B,), how many draft tokens are kept.
        subtract_draft: bool (B,), whether the next token is drawn from the residual
            max(target - draft, 0) at that position, not from the target itself.
    """

    num_accepted: jax.Array
    subtract_draft: jax.Array


def count_accepted(passed: jax.Array) -> jax.Array:
    """How many tests of each row passed before the first failure: bool (B, G) to int32 (B,)."""
    return jnp.sum(jnp.cumprod(passed.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def draw_verdict(step: Step, plan: Plan, target: TargetLaw, draft: DraftLaw) -> Verdict:
    """Draw the next token of each row as planned. Reads at most one pair of rows a batch row.

    Where the residual has no usable mass, by rounding or by NaN in the draft's row, the token is
    drawn from the target; where that has none either, it is `NO_TOKEN`.
    """
    batch, size = step.tokens.shape[0], target.rows.shape[1]
    rows = jnp.arange(batch, dtype=jnp.int32)
    target_rows = step.target_row(rows, plan.num_accepted)
    draft_rows = step.draft_row(rows, plan.num_accepted)

    def residual(
        target_row: jax.Array, draft_row: jax.Array, start: jax.Array | int, width: int
    ) -> jax.Array:
        weights = target.read(target_row, start, width)
        return jnp.maximum(draft.subtract_from(weights, draft_row, start), 0.0)

    def sum_rows(subtract: jax.Array) -> jax.Array:
        def sum_row(b: jax.Array) -> jax.Array:
            t, d = target_rows[b], draft_rows[b]
            return jax.lax.cond(
                subtract[b],
                lambda: block_sums(residual(t, d, 0, size)),
                lambda: block_sums(target.read(t, 0, size)),
            )

        return map_rows(sum_row, batch)

    sums = sum_rows(plan.subtract_draft)
    subtract = plan.subtract_draft & _usable(sums)
    is_changed = jnp.any(subtract != plan.subtract_draft)
    sums = jax.lax.cond(is_changed, lambda: sum_rows(subtract), lambda: sums)

    def choose(b: jax.Array) -> jax.Array:
        t, d = target_rows[b], draft_rows[b]
        block, before, threshold = choose_block(sums[b], step.sample_uniforms[b])
        start, width, is_inside = blocks.locate(block, size)
        weights = jnp.where(subtract[b], residual(t, d, start, width), target.read(t, start, width))
        weights = jnp.where(is_inside, weights, 0.0)
        return start + choose_token(weights, before, threshold)

    drawn = jnp.where(_usable(sums), jax.vmap(choose)(rows), NO_TOKEN)
    return make_verdict(step.tokens, plan.num_accepted, drawn)


def make_verdict(draft_tokens: jax.Array, num_accepted: jax.Array, drawn: jax.Array) -> Verdict:
    """Line up the accepted draft tokens, the drawn token (B,) and the padding."""
    tokens = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    i = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    stop = num_accepted[:, None]
    tokens = jnp.where(i < stop, tokens, jnp.where(i == stop, drawn[:, None], NO_TOKEN))
    return {"num_accepted": num_accepted, "tokens": tokens}


def _usable(sums: jax.Array) -> jax.Array:
    """Which rows of block sums (B, K) can be drawn from."""
    total = jnp.sum(sums, axis=1)
    return jnp.isfinite(total) & (total > 0)
