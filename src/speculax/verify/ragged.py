"""The flat layout of serving engines: drafts of different lengths, one after another."""

import operator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.arrays import as_array
from speculax.flat_laws import FlatLaw, Joined
from speculax.laws import Law, as_law, flat_law
from speculax.types import NO_TOKEN, Verdict
from speculax.verify.block import block_verdict
from speculax.verify.greedy import greedy_verdict
from speculax.verify.inputs import (
    as_draft,
    as_target,
    check_arrays,
    draft_rows,
    make_step,
    num_draft_entries,
)
from speculax.verify.sampled import sampled_verdict
from speculax.verify.step import StepLaw, ids_below, widen
from speculax.verify.token import token_verdict

Rule = Literal["token", "block", "greedy", "sampled"]


def verify_ragged(
    draft_tokens: ArrayLike,
    draft_lengths: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    bonus_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    max_draft_length: int,
    rule: Rule = "token",
) -> Verdict:
    """Verify drafts of different lengths that lie one after another, by one of the lossless rules.

    The layout of serving engines: the drafts of request 0, then those of request 1, and so on, T in
    all. Nothing is copied into a padded form but ids and uniforms. Requests at temperature 0 and
    sampled ones may be mixed: give the temperature to the laws. Lossless as the rule is, and as
    fast; V-sized rows are read where they are.

    Args:
        draft_tokens: int (T,), the draft tokens of all requests.
        draft_lengths: int (B,), how many of them each request has (0 allowed). Their sum is at most
            T; what lies beyond is never read.
        draft_probs: floating (T, V) or `Law`, the law each token was sampled from; None for
            deterministic drafters.
        target_probs: floating (T, V) or `Law`, the target's law at the position of each token.
        bonus_probs: floating (B, V) or `Law`, made as `target_probs` was: the target's law after
            the last draft token of each request.
        accept_uniforms: floating (T,) in [0, 1), noise of the acceptance tests.
        sample_uniforms: floating (B,) in [0, 1), noise of the token drawn afterwards.
        max_draft_length: The most draft tokens judged in a row, G; static. Longer drafts are cut.
        rule: "token", "block", "greedy" or "sampled"; static. See `verify_token` and the others.

    Returns:
        `{"num_accepted": int32 (B,), "tokens": int32 (B, G+1)}`, as the rule.

    Raises:
        ValueError: If shapes disagree, or the rule is not known.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> verdict = verify_ragged(
        ...     draft_tokens=jnp.array([1, 0, 1]),
        ...     draft_lengths=jnp.array([2, 0, 1]),
        ...     draft_probs=None,
        ...     target_probs=jnp.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2]]),
        ...     bonus_probs=jnp.array([[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]]),
        ...     accept_uniforms=jnp.array([0.5, 0.5, 0.5]),
        ...     sample_uniforms=jnp.array([0.1, 0.1, 0.1]),
        ...     max_draft_length=2,
        ... )
        >>> verdict["num_accepted"].tolist(), verdict["tokens"].tolist()
        ([2, 0, 0], [[1, 0, 0], [0, -1, -1], [0, -1, -1]])
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}.")
    max_draft_length = operator.index(max_draft_length)
    if max_draft_length < 0:
        raise ValueError(f"max_draft_length must be at least 0, got {max_draft_length}.")
    arguments = _Arguments(
        as_array("draft_tokens", draft_tokens),
        as_array("draft_lengths", draft_lengths),
        as_draft("draft_probs", draft_probs),
        as_target("target_probs", target_probs),
        as_target("bonus_probs", bonus_probs),
        as_array("accept_uniforms", accept_uniforms),
        as_array("sample_uniforms", sample_uniforms),
    )
    target, bonus = arguments.target_probs, arguments.bonus_probs
    if len(bonus.shape) != 2 or 0 in bonus.shape:
        raise ValueError(
            f"bonus_probs must have shape (B, V) with B and V at least 1, got {bonus.shape}; pass "
            "one row for each request."
        )
    num_tokens, (batch, size) = arguments.draft_tokens.size, bonus.shape
    drafted = num_tokens, num_draft_entries(arguments.draft_probs, size)
    check_arrays(
        {
            "draft_tokens": (arguments.draft_tokens, "(T,)", (num_tokens,), jnp.integer),
            "draft_lengths": (arguments.draft_lengths, "(B,)", (batch,), jnp.integer),
            "draft_probs": (arguments.draft_probs, "(T, V)", drafted, jnp.floating),
            "target_probs": (target, "(T, V)", (num_tokens, size), jnp.floating),
            "bonus_probs": (bonus, "(B, V)", (batch, size), jnp.floating),
            "accept_uniforms": (arguments.accept_uniforms, "(T,)", (num_tokens,), jnp.floating),
            "sample_uniforms": (arguments.sample_uniforms, "(B,)", (batch,), jnp.floating),
        },
        f"bonus_probs of shape {bonus.shape} and {num_tokens} draft tokens",
    )
    if num_tokens and _kinds(target) != _kinds(bonus):
        raise ValueError(
            "bonus_probs must be made as target_probs was, got laws with different settings, or "
            "one normalised and one not; pass the same settings to both, with neutral values where "
            "a request does not use them."
        )
    return _verify_ragged(arguments, max_draft_length, rule)


def _kinds(law: jax.Array | Law) -> Any:
    """Which settings a law has; that its rows name them makes no difference."""
    flat = flat_law(as_law("law", law))
    if isinstance(flat, FlatLaw):
        flat = replace(flat, has_settings=None)
    return jax.tree.structure(flat)


class _Arguments(NamedTuple):
    draft_tokens: jax.Array
    draft_lengths: jax.Array
    draft_probs: jax.Array | Law | None
    target_probs: jax.Array | Law
    bonus_probs: jax.Array | Law
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array


@partial(jax.jit, static_argnums=(1, 2))
def _verify_ragged(arguments: _Arguments, max_length: int, rule: Rule) -> Verdict:
    num_tokens, batch = arguments.draft_tokens.shape[0], arguments.draft_lengths.shape[0]
    length = min(max_length, num_tokens)
    bonus = flat_law(as_law("bonus_probs", arguments.bonus_probs))
    tokens = ids_below(bonus.size, arguments.draft_tokens)
    lengths = jnp.clip(widen(arguments.draft_lengths), 0, num_tokens).astype(jnp.int32)[:, None]
    # Of each request (B, G+1): which draft token stands at a place, and which row judges it.
    i = jnp.arange(length + 1, dtype=jnp.int32)[None]
    requests = jnp.arange(batch, dtype=jnp.int32)[:, None]
    # Of jnp.cumsum newer JAX makes a loop over the requests for GPU; the scan needs a known batch.
    if isinstance(batch, int):
        ends = jax.lax.associative_scan(jnp.add, lengths, axis=0)
    else:
        ends = jnp.cumsum(lengths, axis=0, dtype=jnp.int32)
    places = jnp.minimum(ends - lengths + i, num_tokens - 1)
    rows = jnp.where(i < lengths, places, num_tokens + requests)
    if num_tokens == 0:
        target = StepLaw(bonus, requests)
    else:
        drafted = flat_law(as_law("target_probs", arguments.target_probs))
        target = StepLaw(Joined(drafted, bonus), rows)

    places = places[:, :length]
    step = make_step(
        tokens[places],
        jnp.minimum(lengths[:, 0], length),
        arguments.accept_uniforms[places],
        arguments.sample_uniforms,
    )
    if rule == "greedy":
        verdict = greedy_verdict(step, target)
    elif rule == "sampled":
        verdict = sampled_verdict(step, target)
    else:
        draft = draft_rows(tokens, arguments.draft_probs, places)
        verdict = (block_verdict if rule == "block" else token_verdict)(step, target, draft)
    padding = ((0, 0), (0, max_length - length))
    padded = jnp.pad(verdict["tokens"], padding, constant_values=NO_TOKEN)
    return {"num_accepted": verdict["num_accepted"], "tokens": padded}
