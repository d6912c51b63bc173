"""What chain verifiers are given: shapes checked, and brought into one form."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from speculax.arrays import as_array, check_kind
from speculax.flat_laws import DraftLaw, PointMass, TargetLaw
from speculax.inverse_cdf import clip_uniform, draw_uniform
from speculax.laws import Law, as_law, flat_draft_law, flat_law
from speculax.types import NO_TOKEN
from speculax.verify.step import Step, StepLaw, ids_below, widen


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
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    draft_lengths: ArrayLike | None,
    target_name: str = "target_probs",
) -> Arguments:
    """The arguments of a chain verifier as arrays of their own dtypes, their shapes checked.

    Raises:
        ValueError: If a rank or a size is wrong.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    target = as_target(target_name, target_probs)
    shape = target.shape
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{target_name} must have shape (B, G+1, V) with B and V at least 1, got {shape}; pass "
            "one row of probabilities for each draft token and one for the bonus token."
        )
    batch, length, vocab_size = shape[0], shape[1] - 1, shape[2]
    arguments = Arguments(
        as_array("draft_tokens", draft_tokens),
        as_draft("draft_probs", draft_probs),
        target,
        as_array("accept_uniforms", accept_uniforms),
        as_array("sample_uniforms", sample_uniforms),
        None if draft_lengths is None else as_array("draft_lengths", draft_lengths),
    )
    if arguments.draft_tokens.shape == (batch, length + 1):
        raise ValueError(
            f"{target_name} must have G + 1 = {length + 2} rows for G = {length + 1} draft tokens, "
            f"got shape {shape}; pass the row after the last draft token too, for the bonus token."
        )
    drafted = batch, length, num_draft_entries(arguments.draft_probs, vocab_size)
    check_arrays(
        {
            "draft_tokens": (arguments.draft_tokens, "(B, G)", (batch, length), jnp.integer),
            "draft_probs": (arguments.draft_probs, "(B, G, V)", drafted, jnp.floating),
            target_name: (target, "(B, G+1, V)", shape, jnp.floating),
            "accept_uniforms": (arguments.accept_uniforms, "(B, G)", (batch, length), jnp.floating),
            "sample_uniforms": (arguments.sample_uniforms, "(B,)", (batch,), jnp.floating),
            "draft_lengths": (arguments.draft_lengths, "(B,)", (batch,), jnp.integer),
        },
        f"{target_name} of shape {shape}",
    )
    return arguments


def as_target(name: str, law: ArrayLike | Law) -> jax.Array | Law:
    """Probabilities as an array, a law as it is.

    Raises:
        ValueError: If it is a law on some of the tokens.
        TypeError: If it is neither.
    """
    if not isinstance(law, Law):
        return as_array(name, law)
    if law.ids is not None:
        raise ValueError(
            f"{name} must be a law over the whole vocabulary, got one with ids; only the draft's "
            "laws may leave tokens out."
        )
    return law


def as_draft(name: str, law: ArrayLike | Law | None) -> jax.Array | Law | None:
    """Probabilities as an array, a law as it is, None as None."""
    return law if law is None or isinstance(law, Law) else as_array(name, law)


def num_draft_entries(law: jax.Array | Law | None, vocab_size: int) -> int:
    """How many entries a row of the draft's laws must have."""
    return law.size if isinstance(law, Law) and law.ids is not None else vocab_size


def check_arrays(
    expected: dict[str, tuple[jax.Array | Law | None, str, tuple[int, ...], Any]], companion: str
) -> None:
    """Check arrays, by name, for the shape, in letters and numbers, and the kind expected of them.

    Raises:
        ValueError: If a shape is not the one expected.
        TypeError: If a dtype is of the wrong kind.
    """
    for name, (array, letters, shape, kind) in expected.items():
        if array is None:
            continue
        if array.shape != shape:
            raise ValueError(
                f"{name} must have shape {letters} = {shape} to go with {companion}, got "
                f"{array.shape}; check the batch size, draft length and vocabulary."
            )
        if not isinstance(array, Law):
            check_kind(name, array, kind)


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
    return Step(tokens, lengths, clip_uniform(accept_uniforms), draw_uniform(sample_uniforms))


def target_rows(law: Law | jax.Array) -> StepLaw[TargetLaw]:
    """The target's laws (B, G+1, V) of a step."""
    return StepLaw(flat_law(as_law("target_probs", law)), _number(law.shape[:2]))


def draft_rows(
    tokens: jax.Array, law: Law | jax.Array | None, rows: jax.Array | None = None
) -> StepLaw[DraftLaw]:
    """The draft's laws of a step, or point masses on the draft tokens for None.

    Args:
        tokens: int32, the draft tokens as the laws' rows: (B, G), or in `rows`' numbering.
        law: (B, G, V), or (T, V) with `rows`.
        rows: int32 (B, G), the row of each position; None if they are in order.
    """
    rows = _number(tokens.shape) if rows is None else rows
    if rows.shape[1] == 0:  # nothing will be subtracted
        nothing = jnp.array([NO_TOKEN], jnp.int32)
        return StepLaw(PointMass(nothing), jnp.zeros((rows.shape[0], 1), jnp.int32))
    if law is None:
        return StepLaw(PointMass(tokens.reshape(-1)), rows)
    return StepLaw(flat_draft_law(as_law("draft_probs", law)), rows)


def _number(shape: tuple[int, ...]) -> jax.Array:
    return jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape)
