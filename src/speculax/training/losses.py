"""What a drafter is trained to minimise: distances of its laws from the target's, along sequences.

Losses take logits and give one number a position; average them as you like. p is the target's law
and q the draft's, softmax of the logits at temperature 1: divide logits by the temperature that the
drafter will be used at. Gradients flow to the draft's logits only. No softmax is kept for them:
what they need is computed again from the logits. Arithmetic is float32, or float64
if that is given.

The acceptance rate of the token rule is sum min(p, q) = 1 - total variation, so the divergences
are proxies (Zhou et al., "DistillSpec", arXiv:2310.08461, compares them), and `acceptance` and what
is made of it the thing itself.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

Loss = Callable[[jax.Array, jax.Array], jax.Array]


def _of_rows(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Loss:
    """A loss from a function of log p and log q (..., V), which are not kept for the gradient."""

    @jax.checkpoint
    def loss(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
        log_p = _log_softmax(jax.lax.stop_gradient(target_logits))
        return function(log_p, _log_softmax(draft_logits))

    return loss


def forward_kl(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
    """KL(p || q), the usual distillation loss: the draft must cover all that the target says.

    Smooth, and the gradient q - p of a position is bounded: low variance. Equal to cross-entropy up
    to the target's entropy. Hinton, Vinyals, Dean (arXiv:1503.02531).

    Args:
        target_logits: floating (..., V); entries of -inf have no mass.
        draft_logits: floating (..., V), finite where the target has mass.

    Returns:
        (...), natural logarithms, at least 0.

    Examples:
        >>> import jax.numpy as jnp
        >>> round(float(forward_kl(jnp.log(jnp.array([0.5, 0.5])), jnp.zeros(2))), 6)
        0.0
    """
    return _of_rows(_kl)(target_logits, draft_logits)


def reverse_kl(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
    """KL(q || p): the draft must say only what the target says.

    A token that the draft finds likely and the target impossible costs without bound, so the
    gradient has a higher variance than that of `forward_kl`. Gu et al. (arXiv:2306.08543).

    Args:
        target_logits: floating (..., V), finite.
        draft_logits: floating (..., V); entries of -inf have no mass.

    Returns:
        (...), natural logarithms, at least 0.
    """
    return _of_rows(lambda log_p, log_q: _kl(log_q, log_p))(target_logits, draft_logits)


def acceptance(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
    """Sum min(p, q), the chance that the token rule accepts a token drawn from the draft.

    Leviathan, Kalman, Matias (arXiv:2211.17192), corollary 3.6. To be maximised.

    Args:
        target_logits: floating (..., V).
        draft_logits: floating (..., V).

    Returns:
        (...), from 0 to 1.
    """
    return _of_rows(_overlap_of_rows)(target_logits, draft_logits)


def total_variation(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
    """1 - sum min(p, q), the chance that the token rule refuses.

    The gradient vanishes where the laws do not overlap, as at a random start, so it is for drafters
    that are trained already. Bounded, but each token changes sides at p = q: noisier than
    `forward_kl` there. DistillSpec (arXiv:2310.08461), table 1.

    Args:
        target_logits: floating (..., V).
        draft_logits: floating (..., V).

    Returns:
        (...), from 0 to 1.
    """
    return 1 - acceptance(target_logits, draft_logits)


def lk(target_logits: jax.Array, draft_logits: jax.Array) -> jax.Array:
    """-log sum min(p, q): total variation whose gradient is divided by the acceptance rate.

    That keeps it from vanishing where there is little overlap, at the price of variance: positions
    that accept little weigh most. For a point mass p it is cross-entropy. Samarin et al., "LK
    losses" (arXiv:2602.23881), the loss LK-alpha.

    Args:
        target_logits: floating (..., V).
        draft_logits: floating (..., V), with mass somewhere that the target has some; else the loss
            is infinite and has no gradient.

    Returns:
        (...), natural logarithms, at least 0.
    """
    return _of_rows(lambda log_p, log_q: -jax.nn.logsumexp(jnp.minimum(log_p, log_q), axis=-1))(
        target_logits, draft_logits
    )


def lk_hybrid(
    target_logits: jax.Array, draft_logits: jax.Array, *, decay: float = 3.0
) -> jax.Array:
    """Forward KL with weight w and total variation with 1 - w, w = exp(-decay * acceptance).

    Starts as the first and turns into the second as the draft gets better, each position by itself;
    w is no part of the gradient. Its variance is between theirs. Samarin et al. (arXiv:2602.23881),
    the loss LK-lambda.

    Args:
        target_logits: floating (..., V).
        draft_logits: floating (..., V), finite where the target has mass.
        decay: How soon; 3 is the authors' choice.

    Returns:
        (...), at least 0.
    """

    def mix(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
        accepted = _overlap_of_rows(log_p, log_q)
        weight = jnp.exp(-decay * jax.lax.stop_gradient(accepted))
        return weight * _kl(log_p, log_q) + (1 - weight) * (1 - accepted)

    return _of_rows(mix)(target_logits, draft_logits)


def block_efficiency(
    target_logits: jax.Array,
    draft_logits: jax.Array,
    tokens: jax.Array,
    *,
    draft_length: int,
    rule: Literal["token", "block"] = "token",
) -> jax.Array:
    """The share of a draft that is not kept, 1 - E[accepted] / G, from texts of the target.

    The number of draft tokens kept has the mean sum_i E[c_i] over drafts, where c_i is the product
    of min(1, p / q) for the token rule and min(1, c_{i-1} p / q) for the block rule. Written as a
    mean over texts of the *target*, c_i becomes a product of min(1, q / p), and the running minimum
    of the products of q / p: no draft is sampled, so the gradient is that of the mean, unbiased.
    The last factor of each is summed over the vocabulary in place of taking the text's token, which
    lowers the variance; what remains grows with G, as the products do.

    Source: the closed forms are those of Leviathan et al. (arXiv:2211.17192), algorithm 1, and Sun
    et al. (arXiv:2403.10444), algorithm 2; see `speculax.theory`.

    Args:
        target_logits: floating (..., T, V), at each position of a text that the target sampled (at
            the temperature of these logits; another text gives a biased estimate).
        draft_logits: floating (..., T, V).
        tokens: int (..., T), the token of the text at each position, drawn from these laws.
        draft_length: G, from 1 to T. The draft may start at each of the first T - G + 1 positions.
        rule: The rule that will judge the drafts.

    Returns:
        (..., T - G + 1), from 0 to 1, for each start of a draft.

    Raises:
        ValueError: If the draft is longer than the text, or there is no such rule.
    """
    length = tokens.shape[-1]
    if not 1 <= draft_length <= length:
        raise ValueError(
            f"draft_length must be from 1 to the {length} positions of the text, got "
            f"{draft_length}; pass longer texts or shorten the draft."
        )
    if rule not in ("token", "block"):
        raise ValueError(f"rule must be 'token' or 'block', got {rule!r}.")
    num_starts = length - draft_length + 1
    log_ratio = _log_ratio(target_logits, draft_logits, tokens)  # of q to p, at the text's tokens
    total = jnp.zeros_like(log_ratio[..., :num_starts])
    reached = jnp.zeros_like(total)  # logarithm of the product of q / p
    least = jnp.zeros_like(total)  # logarithm of c_{i-1}
    accepted = acceptance(target_logits, draft_logits) if rule == "token" else None
    for i in range(draft_length):
        here = jax.lax.slice_in_dim(log_ratio, i, i + num_starts, axis=-1)
        if accepted is not None:
            total += jnp.exp(least) * accepted[..., i : i + num_starts]
            least += jnp.minimum(0, here)
        else:
            total += _overlap(target_logits, draft_logits, least, reached, i)
            reached += here
            least = jnp.minimum(least, reached)
    return 1 - total / draft_length


@jax.checkpoint
def _log_ratio(target_logits: jax.Array, draft_logits: jax.Array, tokens: jax.Array) -> jax.Array:
    def log_prob(logits: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        return _widen(chosen) - jax.nn.logsumexp(_widen(logits), axis=-1)

    return log_prob(draft_logits) - log_prob(jax.lax.stop_gradient(target_logits))


@partial(jax.checkpoint, static_argnums=4)  # and slices are cut inside, or each would be kept
def _overlap(
    target_logits: jax.Array,
    draft_logits: jax.Array,
    log_target: jax.Array,
    log_draft: jax.Array,
    start: int,
) -> jax.Array:
    """Sum of min(a p, b q) at positions from `start`, a and b by their logarithms (..., N)."""

    def cut(logits: jax.Array) -> jax.Array:
        end = start + log_target.shape[-1]
        return jax.lax.slice_in_dim(logits, start, end, axis=-2)

    log_p = _log_softmax(jax.lax.stop_gradient(cut(target_logits))) + log_target[..., None]
    log_q = _log_softmax(cut(draft_logits)) + log_draft[..., None]
    return jnp.sum(jnp.exp(jnp.minimum(log_p, log_q)), axis=-1)


def _widen(x: jax.Array) -> jax.Array:
    x = jnp.asarray(x)
    return x if x.dtype.itemsize > 4 else x.astype(jnp.float32)


def _log_softmax(logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(_widen(logits))


def _kl(log_a: jax.Array, log_b: jax.Array) -> jax.Array:
    a = jnp.exp(log_a)
    difference = jnp.where(a > 0, log_a - log_b, 0.0)  # or gradients would be NaN at -inf
    return jnp.sum(a * difference, axis=-1)


def _overlap_of_rows(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(jnp.minimum(log_p, log_q)), axis=-1)
