"""One call of a generation loop under test: its result read, and the rows it asked for."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate, WrongFormError, as_numpy, described
from speculax.conformance.generate.laws import as_ids
from speculax.conformance.pasting import writing

PARAMETERS = ("target", "drafter", "prompt", "max_new_tokens", "eos", "seed")
EXPECTED = "a list of the new ids"

Row = Callable[[Sequence[int]], np.ndarray]  # ids to a row, float64 (V,)


class Call(NamedTuple):
    """The arguments of a call.

    Attributes:
        target: The target's row after a text.
        drafter: The drafter's row after a text.
        prompt: The tokens to continue.
        max_new_tokens: The most tokens to make.
        eos: The token that ends a text, or None.
        seed: What fixes all sampling.
    """

    target: Row
    drafter: Row
    prompt: list[int]
    max_new_tokens: int
    eos: int | None = None
    seed: int = 0


def run(candidate: Candidate, call: Call) -> list[int]:
    """The new tokens that a loop makes.

    Raises:
        WrongFormError: If what it returns is no list of ids.
        Exception: Whatever the function raises.
    """
    result = candidate(*call._replace(prompt=list(call.prompt)))
    if isinstance(result, str | bytes | dict) or not hasattr(result, "__len__"):
        raise WrongFormError(f"returned {described(result)}, not a list of ids", EXPECTED)
    ids = as_numpy(result) if len(result) else np.zeros(0, np.int64)
    if ids.ndim != 1:
        raise WrongFormError(f"returned {result!r}, not a flat list of ids", EXPECTED)
    if ids.dtype.kind not in "iu":
        raise WrongFormError(f"returned {result!r}, whose entries are no integers", EXPECTED)
    return ids.tolist()


class Recorder:
    """Remembers which texts rows were asked for.

    Attributes:
        asked: The texts, in the order of the calls.
    """

    def __init__(self, row: Row):
        self._row = row
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """The row after a text, float64 (V,)."""
        self.asked.append(as_ids(ids))
        return self._row(ids)


def snippet(candidate: Candidate, lines: list[str], call: Call, then: str = "") -> str:
    """A call as Python that can be pasted, after the lines that make its target and drafter."""
    name = candidate.origin.rpartition(":")[2]
    arguments = f"target, drafter, {call.prompt}, {call.max_new_tokens}, {call.eos}, {call.seed}"
    return "\n".join(
        [writing(candidate).imports[1], *lines, "", f"print({name}({arguments}){then})"]
    )


def as_list(value: Any) -> str:
    """Ids as text, long ones cut."""
    ids = list(value)
    return str(ids) if len(ids) <= 24 else f"{str(ids[:20])[:-1]}, ...] ({len(ids)} ids)"
