"""What chain verifiers are given: shapes checked, and brought into one form."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.inverse_cdf import clip_uniform
from speculax.laws import (
    DraftLaw,
    Law,
    PointMass,
    TargetLaw,
    as_law,
    flat_draft_law,
    flat_law,
)
from speculax.types import NO_TOKEN
from speculax.verify.step import Step, StepLaw, ids_below, widen

IDS, REALS = (jnp.integer, "an integer"), (jnp.floating, "a floating-point")


class Arguments(NamedTuple):
    """The arguments of a chain verifier, as arrays or laws."""

    draft_tokens: jax.Array
    draft_probs: jax.Array | Law | None
    target_probs: jax.Array | Law
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array
    draft_lengths: jax.Array | None


def as_arguments(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike | None,
    sample_uniforms: ArrayLike | None,
    draft_lengths: ArrayLike | None,
    target_name: str = "target_probs",
) -> Arguments:
    """The arguments of a chain verifier as arrays of their own dtypes, their shapes checked.

    Uniforms that a rule has no use for are None, and come out as zeros.

    Raises:
        ValueError: If a rank or a size is wrong.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    target = as_array_or_law(target_name, target_probs)
    if isinstance(target, Law) and target.ids is not None:
        raise ValueError(
            f"{target_name} must be a law over the whole vocabulary, got one with ids; only the "
            "draft's laws may leave tokens out."
        )
    shape = target.shape
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{target_name} must have shape (B, G+1, V) with B and V at least 1, got {shape}; pass "
            "one row of probabilities for each draft token and one for the bonus token."
        )
    batch, length, vocab_size = shape[0], shape[1] - 1, shape[2]
    draft = None if draft_probs is None else as_array_or_law("draft_probs", draft_probs)
    if accept_uniforms is None:
        accept_uniforms = jnp.zeros((batch, length), jnp.float32)
    if sample_uniforms is None:
        sample_uniforms = jnp.zeros((batch,), jnp.float32)
    arguments = Arguments(
        as_array("draft_tokens", draft_tokens),
        draft,
        target,
        as_array("accept_uniforms", accept_uniforms),
        as_array("sample_uniforms", sample_uniforms),
        None if draft_lengths is None else as_array("draft_lengths", draft_lengths),
    )
    draft_size = vocab_size
    if isinstance(draft, Law) and draft.ids is not None:
        draft_size = draft.size
    check_arrays(
        arguments._asdict(),
        {
            "draft_tokens": ("(B, G)", (batch, length), IDS),
            "draft_probs": ("(B, G, V)", (batch, length, draft_size), REALS),
            "target_probs": ("(B, G+1, V)", shape, REALS),
            "accept_uniforms": ("(B, G)", (batch, length), REALS),
            "sample_uniforms": ("(B,)", (batch,), REALS),
            "draft_lengths": ("(B,)", (batch,), IDS),
        },
        f"{target_name} of shape {shape}",
    )
    return arguments


def check_arrays(
    arrays: dict[str, jax.Array | Law | None],
    expected: dict[str, tuple[str, tuple[int, ...], tuple[Any, str]]],
    companion: str,
) -> None:
    """Check shapes and dtypes by name; what is None is left out.

    Raises:
        ValueError: If a shape is not the one expected.
        TypeError: If a dtype is of the wrong kind.
    """
    for name, array in arrays.items():
        if array is None:
            continue
        letters, wanted, (kind, words) = expected[name]
        if array.shape != wanted:
            raise ValueError(
                f"{name} must have shape {letters} = {wanted} to go with {companion}, got "
                f"{array.shape}; check the batch size, draft length and vocabulary."
            )
        if not isinstance(array, Law) and not jnp.issubdtype(array.dtype, kind):
            raise TypeError(
                f"{name} must have {words} dtype, got {array.dtype} of shape {array.shape}; check "
                "the order of the arguments, or cast with astype."
            )


def read_arguments(
    arguments: Arguments,
) -> tuple[Step, StepLaw[TargetLaw], StepLaw[DraftLaw]]:
    """The step and its laws, as the rules take them."""
    batch, length = arguments.draft_tokens.shape
    target = target_rows(arguments.target_probs)
    tokens = ids_below(target.law.size, arguments.draft_tokens)
    lengths = arguments.draft_lengths
    if lengths is None:
        lengths = jnp.full((batch,), length, jnp.int32)
    lengths = jnp.clip(widen(lengths), 0, length).astype(jnp.int32)
    step = make_step(tokens, lengths, arguments.accept_uniforms, arguments.sample_uniforms)
    return step, target, draft_rows(tokens, arguments.draft_probs)


def make_step(
    tokens: jax.Array, lengths: jax.Array, accept_uniforms: jax.Array, sample_uniforms: jax.Array
) -> Step:
    """The step with its uniforms in contract."""
    uniforms = clip_uniform(sample_uniforms)
    return Step(
        tokens=tokens,
        lengths=lengths,
        accept_uniforms=clip_uniform(accept_uniforms),
        sample_uniforms=jnp.where(jnp.isnan(uniforms), 0.0, uniforms),
    )


def target_rows(law: Law | jax.Array) -> StepLaw[TargetLaw]:
    """The target's laws (B, G+1, V) of a step."""
    flat = flat_law(as_law(law))
    return StepLaw(
        flat, jnp.arange(law.shape[0] * law.shape[1], dtype=jnp.int32).reshape(law.shape[:2])
    )


def draft_rows(tokens: jax.Array, law: Law | jax.Array | None) -> StepLaw[DraftLaw]:
    """The draft's laws (B, G, V) of a step, or point masses on the draft tokens (B, G) for None."""
    batch, length = tokens.shape
    if length == 0:  # nothing will be subtracted
        return StepLaw(
            PointMass(jnp.array([NO_TOKEN], jnp.int32)), jnp.zeros((batch, 1), jnp.int32)
        )
    flat = PointMass(tokens.reshape(-1)) if law is None else flat_draft_law(as_law(law))
    return StepLaw(flat, jnp.arange(batch * length, dtype=jnp.int32).reshape(batch, length))


def as_array_or_law(name: str, values: ArrayLike | Law) -> jax.Array | Law:
    """Like `as_array`, but a law stays as it is."""
    return values if isinstance(values, Law) else as_array(name, values)


def as_array(name: str, values: ArrayLike) -> jax.Array:
    """An array of its own dtype.

    Raises:
        TypeError: If it is none.
    """
    if isinstance(values, jax.Array):
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)  # a ragged list
    if array.dtype == object:
        raise TypeError(
            f"{name} must be an array of numbers, got {type(values).__name__} that is none; pass a "
            "NumPy or JAX array, or nested lists of equal lengths."
        )
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        # Without jax_enable_x64 these would wrap around, perhaps into the vocabulary.
        limits = np.iinfo(np.int32)
        array = np.minimum(array, limits.max)
        if array.dtype.kind == "i":
            array = np.maximum(array, limits.min)
        array = array.astype(np.int32)
    return jnp.asarray(array)
