"""What a rule saw in a step, and what the step's last token was drawn from; for a record of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speculax.laws import Law, as_law, expand_rows
from speculax.log_probs import log_probs
from speculax.rules import Rule
from speculax.types import NO_TOKEN, Draft
from speculax.verify.step import Step

NUM_CANDIDATES = 8  # or V, if that is less


class Judged(NamedTuple):
    """The drafts of a step as the rule saw them, and the law that its last token is drawn from.

    Attributes:
        draft_tokens: int32 (B, G).
        target_log_probs: float32 (B, G), of each draft token.
        draft_log_probs: The same, under the law it was drawn from; 0 for deterministic drafts.
        accept_uniforms: float32 (B, G), the noise of the tests; NaN if the rule has none.
        sample_uniforms: float32 (B,), the noise of the draw; NaN if it is not of one uniform.
        candidates: int32 (B, K), the tokens most likely to be drawn, the likeliest first.
        draw_probs: float32 (B, K), their probabilities in the law that is drawn from; NaN if it
            is not known, and the candidates are the target's likeliest.
        target_probs: float32 (B, K), under the target there.
        draft_probs: float32 (B, K), under the draft there; 0 behind its end.
    """

    draft_tokens: jax.Array
    target_log_probs: jax.Array
    draft_log_probs: jax.Array
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array
    candidates: jax.Array
    draw_probs: jax.Array
    target_probs: jax.Array
    draft_probs: jax.Array


def blank_judged(zeros: Callable[..., Any], num_drafts: int, vocab_size: int) -> Judged:
    """That of no step yet, of arrays that `zeros(*shape, dtype=float32)` makes.

    Their shapes are behind its own leading axes, in place of B.
    """
    drafts, candidates = (num_drafts,), (min(NUM_CANDIDATES, vocab_size),)
    return Judged(
        draft_tokens=zeros(*drafts, dtype=jnp.int32),
        target_log_probs=zeros(*drafts),
        draft_log_probs=zeros(*drafts),
        accept_uniforms=zeros(*drafts),
        sample_uniforms=zeros(),
        candidates=zeros(*candidates, dtype=jnp.int32),
        draw_probs=zeros(*candidates),
        target_probs=zeros(*candidates),
        draft_probs=zeros(*candidates),
    )


def look_into(rule: Rule, step: Step, draft: Draft, law: Law, num_accepted: jax.Array) -> Judged:
    """What the rule saw; reads all laws, and writes out one row of each request."""
    batch, length = step.tokens.shape
    size = law.size
    padded = jnp.pad(step.tokens, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
    target = log_probs(law, padded).after[:, :-1]
    own = jnp.zeros_like(target)
    if draft.probs is not None:
        own = log_probs(draft.probs, step.tokens).after

    numbers = jnp.arange(batch, dtype=jnp.int32)
    place = jnp.minimum(num_accepted, max(length - 1, 0))
    refused = jnp.full((batch,), NO_TOKEN)
    if length:
        refused = jnp.where(num_accepted < step.lengths, step.tokens[numbers, place], NO_TOKEN)
    target_row = expand_rows(law, numbers * (length + 1) + num_accepted, size)
    draft_row = jax.nn.one_hot(refused, size, dtype=jnp.float32)
    if length and draft.probs is not None:
        draft_row = expand_rows(as_law("draft_probs", draft.probs), numbers * length + place, size)
        draft_row = jnp.where((refused >= 0)[:, None], draft_row, 0.0)

    weights = target_row
    if rule.draws == "target without":
        weights = jnp.where(jnp.arange(size)[None] == refused[:, None], 0.0, target_row)
    elif rule.draws == "residual":
        weights = jnp.maximum(target_row - draft_row, 0.0)
    elif rule.draws == "block residual":
        held = _held(target - own, num_accepted)
        weights = jnp.maximum(held[:, None] * target_row - draft_row, 0.0)
    mass = jnp.sum(weights, axis=1, keepdims=True)
    weights = jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1.0), target_row)
    draw, tokens = jax.lax.top_k(weights, min(NUM_CANDIDATES, size))
    if rule.draws == "unknown":
        draw = jnp.full_like(draw, jnp.nan)
    tests, noise = step.accept_uniforms, step.sample_uniforms
    if rule.is_coupled or rule.is_greedy:
        tests, noise = jnp.full_like(tests, jnp.nan), jnp.full_like(noise, jnp.nan)
    elif rule.is_keyed and length:  # each place has a draw of its own
        noise = jnp.where(refused >= 0, tests[numbers, place], noise)
    return Judged(
        draft_tokens=step.tokens,
        target_log_probs=target,
        draft_log_probs=own,
        accept_uniforms=tests,
        sample_uniforms=noise,
        candidates=tokens,
        draw_probs=draw,
        target_probs=jnp.take_along_axis(target_row, tokens, axis=1),
        draft_probs=jnp.take_along_axis(draft_row, tokens, axis=1),
    )


def _held(log_ratios: jax.Array, num_accepted: jax.Array) -> jax.Array:
    """P_n of block verification, P_i = min(1, P_{i-1} ratio_i), for the accepted prefix: (B,)."""
    place = jnp.arange(log_ratios.shape[1], dtype=jnp.int32)[None]
    sums = jnp.cumsum(jnp.where(place < num_accepted[:, None], log_ratios, 0.0), axis=1)
    highest = jnp.max(sums, axis=1, initial=0.0)
    return jnp.exp(sums[:, -1] - highest) if log_ratios.shape[1] else jnp.exp(highest)
