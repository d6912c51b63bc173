"""One step of speculative decoding: two requests, two draft tokens each, a vocabulary of four."""

import jax.numpy as jnp

import speculax as sx

draft = jnp.array([[[0.5, 0.3, 0.1, 0.1]] * 2] * 2)  # the drafter's laws, (B, G, V)
target = jnp.array([[[0.2, 0.5, 0.2, 0.1]] * 3] * 2)  # the target's, one row more
verdict = sx.verify_token(
    draft_tokens=jnp.array([[1, 0], [0, 0]]),
    draft_probs=draft,
    target_probs=target,
    accept_uniforms=jnp.array([[0.9, 0.3], [0.7, 0.1]]),
    sample_uniforms=jnp.array([0.5, 0.2]),
)
# Row 0: token 1 is kept, as 0.9 * 0.3 < 0.5, and token 0, as 0.3 * 0.5 < 0.2; then a bonus.
# Row 1: token 0 is refused, as 0.7 * 0.5 >= 0.2; the residual is 0.2 of token 1 and 0.1 of token 2.
print(verdict["num_accepted"], verdict["tokens"].tolist())
assert verdict["num_accepted"].tolist() == [2, 0]
assert verdict["tokens"].tolist() == [[1, 0, 1], [1, -1, -1]]
