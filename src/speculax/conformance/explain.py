"""An exception of the function under test, told to whoever wrote it."""

import inspect
import linecache
import re
import traceback

import jax

from speculax.conformance.candidate import Candidate, WrongFormError
from speculax.conformance.report import Failure

_BRANCH = (
    "Under jax.jit values are not known while the function is traced, so Python cannot branch or "
    "loop on them. Compute both sides and choose with jnp.where, or use jax.lax.cond, "
    "jax.lax.while_loop or jnp.cumprod over the passed tests in place of a loop that breaks."
)
_NUMPY = (
    "Under jax.jit values are not known while the function is traced, so they cannot become NumPy "
    "arrays. Use jax.numpy in place of numpy (jnp.where, jnp.take_along_axis, ...)."
)
_NUMBER = (
    "Under jax.jit values are not known while the function is traced, so they cannot become "
    "Python numbers or sizes. Keep them arrays: drop .item(), int() and float(), index with the "
    "array, and use masks of the full length, jnp.arange(G) < n, in place of slices up to n."
)
_SHAPE = (
    "Under jax.jit shapes must be known while the function is traced. x[mask], jnp.nonzero and "
    "the like have a size that depends on values: use jnp.where with a mask of full size instead."
)
_LEAK = (
    "A value that was traced was kept outside of the function (in a global, a list or an "
    "attribute) and used in a later call. Pass it in and out instead."
)
_WRITE = "JAX arrays do not change in place. Use x = x.at[index].set(value)."

_MEANINGS: list[tuple[type[BaseException], str, str]] = [
    (
        jax.errors.TracerBoolConversionError,
        "a Python if, while, and, or, not or assert on a traced value",
        _BRANCH,
    ),
    (jax.errors.TracerArrayConversionError, "NumPy is called on a traced value", _NUMPY),
    (
        jax.errors.TracerIntegerConversionError,
        "a traced value is used as a Python index or a length",
        _NUMBER,
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "the shape of an array depends on traced values",
        _SHAPE,
    ),
    (jax.errors.UnexpectedTracerError, "a traced value leaked out of the function", _LEAK),
    (jax.errors.ConcretizationTypeError, "a traced value is made a Python number", _NUMBER),
]


def explain(candidate: Candidate, error: BaseException, what: str, snippet: str = "") -> Failure:
    """A failure that tells what was raised, in which line of the candidate, and what to do.

    Args:
        candidate: The function.
        error: What it raised.
        what: What was done with it, to begin the sentence with.
        snippet: Python that does it.
    """
    if isinstance(error, WrongFormError):
        return Failure(f"{what}: it {error}", error.expected, str(error), snippet)
    place = _place(candidate, error)
    for kind, meaning, hint in _MEANINGS:
        if isinstance(error, kind):
            name = type(error).__name__
            return Failure(f"{what}: {meaning}{place}", actual=name, snippet=snippet, why=hint)
    said = str(error).strip().partition("\n")[0]
    if found := re.search(r"traced for jit returned a value of type <class '(.*?)'>", said):
        returned = f"it returned a {found[1]}, which jax.jit does not take"
        return Failure(f"{what}: {returned}", "a dict of two arrays", found[1], snippet)
    hint = _WRITE if "immutable" in said and "JAX" in said.upper() else ""
    names = getattr(inspect.unwrap(candidate.function), "__globals__", {})
    if candidate.framework == "jax" and ("torch" in said or "torch" in names):
        hint = "A PyTorch function is checked with --no-jit."
    return Failure(
        what=f"{what}: it raises {type(error).__name__}{place}",
        actual=f"{type(error).__name__}: {said}" if said else type(error).__name__,
        snippet=snippet,
        why=hint,
    )


def _place(candidate: Candidate, error: BaseException) -> str:
    """The last line that belongs to the candidate's own files."""
    code = getattr(inspect.unwrap(candidate.function), "__code__", None)
    own = getattr(code, "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if frame.filename == own]
    if not frames:
        return ""
    frame = frames[-1]
    line = (linecache.getline(frame.filename, frame.lineno or 0) or "").strip()
    return f", in line {frame.lineno}: {line}"
