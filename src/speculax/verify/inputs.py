"""What chain verifiers are given: shapes checked, and brought into one form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.inverse_cdf import clip_uniform
from speculax.laws import DraftLaw, Probabilities
from speculax.verify.step import Step, ids_below, widen


class Arguments(NamedTuple):
    """The arguments of a chain verifier, as arrays."""

    draft_tokens: jax.Array
    draft_probs: jax.Array | None
    target_probs: jax.Array
    accept_uniforms: jax.Array
    sample_uniforms: jax.Array
    draft_lengths: jax.Array | None


def as_arguments(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | None,
    target_probs: ArrayLike,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    draft_lengths: ArrayLike | None,
) -> Arguments:
    """The arguments of a chain verifier as arrays of their own dtypes, their shapes checked.

    Raises:
        ValueError: If a rank or a size is wrong.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    arguments = Arguments(
        _as_array("draft_tokens", draft_tokens),
        None if draft_probs is None else _as_array("draft_probs", draft_probs),
        _as_array("target_probs", target_probs),
        _as_array("accept_uniforms", accept_uniforms),
        _as_array("sample_uniforms", sample_uniforms),
        None if draft_lengths is None else _as_array("draft_lengths", draft_lengths),
    )
    shape = arguments.target_probs.shape
    if len(shape) != 3 or 0 in shape:
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
        if array is None:
            continue
        letters, wanted, (kind, words) = expected[name]
        if array.shape != wanted:
            raise ValueError(
                f"{name} must have shape {letters} = {wanted} to go with target_probs of shape "
                f"{shape}, got {array.shape}; check the batch size, draft length and vocabulary."
            )
        if not jnp.issubdtype(array.dtype, kind):
            raise TypeError(
                f"{name} must have {words} dtype, got {array.dtype} of shape {array.shape}; check "
                "the order of the arguments, or cast with astype."
            )
    return arguments


def read_arguments(arguments: Arguments) -> tuple[Step, Probabilities, DraftLaw]:
    """The step and its laws, as the rules take them."""
    batch, length = arguments.draft_tokens.shape
    vocab_size = arguments.target_probs.shape[2]
    tokens = ids_below(vocab_size, arguments.draft_tokens)
    lengths = arguments.draft_lengths
    if lengths is None:
        lengths = jnp.full((batch,), length, jnp.int32)
    uniforms = clip_uniform(arguments.sample_uniforms)
    step = Step(
        tokens=tokens,
        lengths=jnp.clip(widen(lengths), 0, length).astype(jnp.int32),
        accept_uniforms=clip_uniform(arguments.accept_uniforms),
        sample_uniforms=jnp.where(jnp.isnan(uniforms), 0.0, uniforms),
    )
    target = Probabilities(arguments.target_probs.reshape(-1, vocab_size))
    return step, target, step.draft_law(arguments.draft_probs)


def _as_array(name: str, values: ArrayLike) -> jax.Array:
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
