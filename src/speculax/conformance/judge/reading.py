"""What a function returned, read as a verdict: whichever of the common forms it has."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.candidate import WrongFormError, as_numpy, described

NUMBERS = ("num", "n", "count", "length", "len", "number")


class Reading(NamedTuple):
    """Which parts of a result are what.

    Attributes:
        tokens: The part that holds tokens, or a mask of those accepted; None if there is none.
        number: The part with one number a row; None if there is none.
        means: What the number is: how many are accepted, or the token after them.
        extra: The part with the token after them, if number is how many and tokens is None.
    """

    tokens: int | None
    number: int | None = None
    means: Literal["num_accepted", "token"] = "num_accepted"
    extra: int | None = None

    def __str__(self) -> str:
        """In words."""
        if self.extra is not None:
            return "how many are accepted, and the token after them"
        if self.number is None:
            return "tokens, padded with -1"
        if self.means == "token":
            return "the accepted tokens or a mask of them, and the token after them"
        return "tokens, and how many are accepted"


def parts_of(result: Any) -> list[tuple[str, Any]]:
    """The parts of a result, with their names."""
    if isinstance(result, dict):
        return [(str(name), value) for name, value in result.items()]
    if hasattr(result, "_asdict"):
        return list(result._asdict().items())
    is_mixed = isinstance(result, list) and len({_rank(value) for value in result}) > 1
    if isinstance(result, tuple) or is_mixed:
        return [("", value) for value in result]
    return [("", result)]


def readings(result: Any, rank: int) -> Iterator[Reading]:
    """The ways to read a result whose rows have this many axes before the tokens, likely first."""
    parts = parts_of(result)
    ranks = [_rank(value) for _, value in parts]
    rows = [i for i, found in enumerate(ranks) if found == rank + 1]
    numbers = [i for i, found in enumerate(ranks) if found == rank]
    numbers.sort(key=lambda i: not set(parts[i][0].lower().split("_")) & set(NUMBERS))
    for row in rows:
        yield from (Reading(row, number) for number in numbers)
    yield from (Reading(row) for row in rows)
    for number in numbers:
        yield from (Reading(None, number, extra=i) for i in numbers if i != number)
    for row in rows:
        yield from (Reading(row, number, "token") for number in numbers)


def _rank(value: Any) -> int:
    if isinstance(value, list | tuple):
        return 1 + (_rank(value[0]) if value else 0)
    return np.ndim(value) if not hasattr(value, "ndim") else value.ndim


def read(result: Any, reading: Reading, draft_tokens: Any) -> tuple[Any, Any]:
    """A verdict as the contract has it: num_accepted (...,) and tokens (..., G+1).

    Args:
        result: What the function returned.
        reading: How to read it.
        draft_tokens: int (..., G), traced or NumPy.

    Raises:
        WrongFormError: If it cannot be read so.
    """
    xp = jnp if isinstance(draft_tokens, jax.Array) else np
    parts = [value for _, value in parts_of(result)]
    needed = [i for i in (reading.tokens, reading.number, reading.extra) if i is not None]
    if not needed or max(needed) >= len(parts):
        raise WrongFormError(f"returned {described(result)}, which is no verdict")
    width = draft_tokens.shape[-1] + 1
    draft_tokens = _integers(xp, draft_tokens)
    places = xp.arange(width, dtype=np.int32).reshape(*[1] * (draft_tokens.ndim - 1), width)
    number = None if reading.number is None else _integers(xp, parts[reading.number])
    drafts = xp.concatenate([draft_tokens, draft_tokens[..., :1]], axis=-1)
    if reading.tokens is None:
        rows, n, extra = drafts, number, _integers(xp, parts[needed[-1]])
    else:
        rows = _padded(parts[reading.tokens], width, xp)
        n, extra = (rows != -1).sum(-1), number
        if reading.means == "num_accepted":
            return (n - 1 if number is None else number).astype(np.int32), rows
        if _is_mask(parts[reading.tokens]):
            rows, n = drafts, xp.cumprod(rows == 1, axis=-1).sum(-1)
    assert n is not None
    assert extra is not None
    after = xp.where(places == n[..., None], extra[..., None], -1)
    return n.astype(np.int32), xp.where(places < n[..., None], rows, after)


def _is_mask(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], bool | np.bool)
    return str(getattr(value, "dtype", "")).rpartition(".")[2] == "bool"


def _padded(value: Any, width: int, xp: Any) -> Any:
    """Rows of tokens as wide as they are to be; lists may have any lengths."""
    if isinstance(value, Sequence) and any(isinstance(row, Sequence | np.ndarray) for row in value):
        return np.stack([_padded(row, width, np) for row in value])
    array = _integers(xp, value)
    missing = width - array.shape[-1]
    if missing <= 0:
        return array[..., :width]
    padding = [(0, 0)] * (array.ndim - 1) + [(0, missing)]
    return xp.pad(array, padding, constant_values=-1)


def _integers(xp: Any, value: Any) -> Any:
    """An array; integers of any type, and truth values, as the contract's int32."""
    array = jnp.asarray(value) if xp is jnp else as_numpy(value)
    is_exact = array.dtype == bool or np.issubdtype(array.dtype, np.integer)
    return array.astype(np.int32) if is_exact or not array.size else array
