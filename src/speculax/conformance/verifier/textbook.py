"""Verification as engines mostly write it: whole arrays, a cumulative sum over V, argmax."""

# pyright: reportMissingParameterType=false

import jax.numpy as jnp


def verify_token(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
    """Gather, cumprod, one residual row."""
    target, draft = _of_tokens(draft_tokens, draft_probs, target_probs)
    passed = accept_uniforms * draft < target
    n = jnp.sum(jnp.cumprod(passed.astype(jnp.int32), axis=1), axis=1)
    weights = _residual(n, jnp.ones_like(sample_uniforms), draft_probs, target_probs)
    return _verdict(draft_tokens, n, weights, sample_uniforms)


def verify_block(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
    """Block verification, the masses of all residuals by one reduction over (B, G, V)."""
    batch, length = draft_tokens.shape
    target, draft = _of_tokens(draft_tokens, draft_probs, target_probs)
    held = [jnp.ones(batch)]
    for ratio in (target / draft).T:
        held.append(jnp.minimum(held[-1] * ratio, 1))
    held = jnp.stack(held, axis=1)
    residuals = jnp.maximum(held[:, :-1, None] * target_probs[:, :-1] - draft_probs, 0)
    masses = jnp.sum(residuals, axis=2)[:, 1:]
    holds = masses / (masses + 1 - held[:, 1:-1])  # where 0 / 0, the prefix is held for certain
    holds = jnp.where(held[:, 1:-1] == 1, 1, holds)
    holds = jnp.concatenate([holds, held[:, -1:]], axis=1)
    n = jnp.max(jnp.where(accept_uniforms < holds, jnp.arange(1, length + 1)[None], 0), axis=1)
    weight = jnp.take_along_axis(held, n[:, None], axis=1)[:, 0]
    weight = jnp.where(n < length, weight, 1)
    weights = _residual(n, weight, draft_probs, target_probs)
    return _verdict(draft_tokens, n, weights, sample_uniforms)


def _of_tokens(tokens, draft_probs, target_probs):
    place = jnp.arange(tokens.shape[0])[:, None], jnp.arange(tokens.shape[1])[None], tokens
    return target_probs[place], draft_probs[place]


def _residual(n, weight, draft_probs, target_probs):
    """Of each batch row, max(weight * target - draft, 0) at n; the target itself at the end."""
    b, length = jnp.arange(len(n)), draft_probs.shape[1]
    subtracted = jnp.where((n < length)[:, None], draft_probs[b, jnp.minimum(n, length - 1)], 0)
    return jnp.maximum(weight[:, None] * target_probs[b, n] - subtracted, 0)


def _verdict(draft_tokens, n, weights, sample_uniforms):
    weights /= jnp.sum(weights, axis=1, keepdims=True)
    token = jnp.argmax(jnp.cumsum(weights, axis=1) > sample_uniforms[:, None], axis=1)
    place = jnp.arange(draft_tokens.shape[1] + 1)[None]
    drafts = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    tail = jnp.where(place == n[:, None], token[:, None], -1)
    return {"num_accepted": n, "tokens": jnp.where(place < n[:, None], drafts, tail)}
