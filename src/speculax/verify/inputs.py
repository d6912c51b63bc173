"""What chain verifiers are given: shapes checked and brought into one form; values on request."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.inverse_cdf import clip_uniform
from speculax.laws import PointMass, Probabilities
from speculax.verify.step import NO_TOKEN, Step

# Rows of bfloat16 probabilities are off by up to 0.5 %.
ROW_SUM_TOLERANCE = 0.01


class Arguments(NamedTuple):
    """The arguments of a chain verifier, as arrays."""

    draft_tokens: jax.Array
    draft_probs: jax.Array | None
    target_probs: jax.Array
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array
    draft_lengths: jax.Array | None


def check_inputs(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | None,
    target_probs: ArrayLike,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
) -> None:
    """Check what a verifier cannot check inside `jit`: the values. For debugging; runs on the host.

    Args:
        draft_tokens: As for `verify_token`, and so are the others.
        draft_probs: Rows that sum to 1 and give their draft token a positive probability.
        target_probs: Rows that sum to 1.
        accept_uniforms: In [0, 1).
        sample_uniforms: In [0, 1).
        draft_lengths: In [0, G]. What lies beyond them is not checked.

    Raises:
        ValueError: If shapes disagree, or with one line for each kind of wrong value: which
            argument, where first, what was found and what to do.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    arrays = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    tokens, draft, target, accept, sample, lengths = (
        None if x is None else np.asarray(x) for x in arrays
    )
    batch, length = tokens.shape
    vocab_size = target.shape[2]
    problems = []

    def report(name: str, wrong: np.ndarray, values: np.ndarray, expected: str, hint: str) -> None:
        if wrong.any():
            first = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = ", ".join(map(str, first))
            problems.append(
                f"{name}[{place}] is {values[first]:.6g}, expected {expected} "
                f"({int(wrong.sum())} such); {hint}."
            )

    if lengths is None:
        lengths = np.full(batch, length)
    else:
        outside = (lengths < 0) | (lengths > length)
        report("draft_lengths", outside, lengths, f"0 to {length}", "count the draft tokens")
        lengths = np.clip(lengths, 0, length)
    is_drafted = np.arange(length) < lengths[:, None]
    is_read = np.arange(length + 1) <= lengths[:, None]

    outside = (tokens < 0) | (tokens >= vocab_size)
    report(
        "draft_tokens",
        outside & is_drafted,
        tokens,
        f"an id from 0 to {vocab_size - 1}",
        "leave out missing drafts with draft_lengths",
    )
    for name, uniforms, used in (
        ("accept_uniforms", accept, is_drafted),
        ("sample_uniforms", sample, np.ones(batch, bool)),
    ):
        outside = ~((uniforms >= 0) & (uniforms < 1)) & used
        report(name, outside, uniforms, "a number in [0, 1)", "draw it with jax.random.uniform")
    for name, probs, used in (("draft_probs", draft, is_drafted), ("target_probs", target, is_read)):
        if probs is None:
            continue
        probs = probs.astype(np.float64)
        used = used[:, :, None]
        negative, unbounded = (probs < 0) & used, ~np.isfinite(probs) & used
        hint = "pass probabilities, not logits: apply jax.nn.softmax first"
        report(name, negative, probs, "a probability", hint)
        report(name, unbounded, probs, "a finite probability", "look for NaN in the model")
        sums = np.where(used, probs, 0).sum(axis=2)
        wrong = ~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE) & used[:, :, 0]
        wrong &= ~(negative | unbounded).any(axis=2)
        report(f"the sum of {name}", wrong, sums, "1", "normalise the row, e.g. jax.nn.softmax")
    if draft is not None and length:
        ids = np.clip(tokens, 0, vocab_size - 1)[:, :, None].astype(np.int64)
        chosen = np.take_along_axis(draft.astype(np.float64), ids, axis=2)[:, :, 0]
        report(
            "the draft probability of draft_tokens",
            (chosen == 0) & is_drafted & ~((tokens < 0) | (tokens >= vocab_size)),
            chosen,
            "more than 0",
            "pass the law the token was sampled from, after every filter",
        )
    if problems:
        raise ValueError("\n".join(problems))


def as_arguments(*values: ArrayLike | None) -> Arguments:
    """The arguments of a chain verifier as arrays of their own dtypes, their shapes checked.

    Raises:
        ValueError: If a rank or a size is wrong.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    arguments = Arguments(*(None if x is None else _as_array(x) for x in values))
    shape = None if arguments.target_probs is None else arguments.target_probs.shape
    if shape is None or len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"target_probs must have shape (B, G+1, V) with B and V at least 1, got {shape}; pass "
            "one row of probabilities for each draft token and one for the bonus token."
        )
    batch, length, vocab_size = shape[0], shape[1] - 1, shape[2]
    ids, reals = (jnp.integer, "an integer"), (jnp.floating, "a floating-point")
    expected = {
        "draft_tokens": ("(B, G)", (batch, length), ids),
        "draft_probs": ("(B, G, V)", (batch, length, vocab_size), reals),
        "target_probs": ("(B, G+1, V)", shape, reals),
        "accept_uniforms": ("(B, G)", (batch, length), reals),
        "sample_uniforms": ("(B,)", (batch,), reals),
        "draft_lengths": ("(B,)", (batch,), ids),
    }
    for name, array in arguments._asdict().items():
        letters, wanted, (kind, words) = expected[name]
        if array is None and name in ("draft_probs", "draft_lengths"):
            continue
        given = None if array is None else array.shape
        if given != wanted:
            raise ValueError(
                f"{name} must have shape {letters} = {wanted} to go with target_probs of shape "
                f"{shape}, got {given}; check the batch size, draft length and vocabulary."
            )
        if not jnp.issubdtype(array.dtype, kind):
            raise TypeError(
                f"{name} must have {words} dtype, got {array.dtype} of shape {given}; check the "
                "order of the arguments, or cast with astype."
            )
    return arguments


def read_arguments(
    arguments: Arguments,
) -> tuple[Step, Probabilities, Probabilities | PointMass]:
    """The step and its laws, as the rules take them."""
    batch, length = arguments.draft_tokens.shape
    vocab_size = arguments.target_probs.shape[2]
    tokens = _ids_below(vocab_size, arguments.draft_tokens)
    lengths = arguments.draft_lengths
    if lengths is None:
        lengths = jnp.full((batch,), length, jnp.int32)
    uniforms = clip_uniform(arguments.sample_uniforms)
    step = Step(
        tokens=tokens,
        lengths=jnp.clip(lengths, 0, length).astype(jnp.int32),
        accept_uniforms=clip_uniform(arguments.accept_uniforms),
        sample_uniforms=jnp.where(jnp.isnan(uniforms), 0.0, uniforms),
    )
    if length == 0:
        draft = PointMass(jnp.full((batch,), NO_TOKEN, jnp.int32))
    elif arguments.draft_probs is None:
        draft = PointMass(tokens.reshape(-1))
    else:
        draft = Probabilities(arguments.draft_probs.reshape(-1, vocab_size))
    return step, Probabilities(arguments.target_probs.reshape(-1, vocab_size)), draft


def _as_array(values: ArrayLike) -> jax.Array:
    if not isinstance(values, jax.Array):
        values = np.asarray(values)
        if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
            # Without jax_enable_x64 these would wrap around, perhaps into the vocabulary.
            values = np.clip(values, NO_TOKEN, np.iinfo(np.int32).max).astype(np.int32)
    return jnp.asarray(values)


def _ids_below(vocab_size: int, ids: jax.Array) -> jax.Array:
    """Ids as int32; `NO_TOKEN` where one is outside the vocabulary."""
    if ids.dtype.itemsize < 4:
        ids = ids.astype(jnp.int32)  # its own dtype may not hold vocab_size
    return jnp.where((ids >= 0) & (ids < vocab_size), ids, NO_TOKEN).astype(jnp.int32)
