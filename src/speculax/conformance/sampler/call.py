"""One call of a sampler under test: its arguments, its result, and both as pasteable Python."""

import inspect
from typing import Any, NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate, WrongFormError, as_numpy, described
from speculax.conformance.pasting import imports_of_key, key_of, literal, writing
from speculax.conformance.sampler.oracle import Settings
from speculax.conformance.seeds import as_key

PARAMETERS = ("logits", "temperature", "top_k", "top_p", "min_p", "uniforms")
NEUTRAL = Settings()
MOST_PASTED = 400  # numbers

EXPECTED = "int32 (R,), an id for each row"


class Rows(NamedTuple):
    """All arguments but the noise: float32 (R, V), and a setting for each row."""

    logits: np.ndarray
    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray

    def take(self, which: Any) -> "Rows":
        """Some of the rows."""
        return Rows(*(array[which] for array in self))

    def settings(self, r: int) -> Settings:
        """The settings of one row."""
        return Settings(*(array[r].item() for array in self[1:]))


def make_rows(logits: Any, many: list[Settings]) -> Rows:
    """Rows of logits (R, V) with their settings."""
    temperature, top_k, top_p, min_p = zip(*(s[:4] for s in many), strict=True)
    return Rows(
        np.asarray(logits, np.float32),
        np.array(temperature, np.float32),
        np.array(top_k, np.int32),
        np.array(top_p, np.float32),
        np.array(min_p, np.float32),
    )


def together(some: list[Rows]) -> Rows:
    """Rows of one vocabulary, one after another."""
    return Rows(*(np.concatenate(arrays) for arrays in zip(*some, strict=True)))


def takes_key(candidate: Candidate) -> bool:
    """Whether the function's last parameter is `key`, in place of `uniforms`."""
    try:
        names = [*inspect.signature(candidate.function).parameters]
    except (TypeError, ValueError):
        return False
    return names[len(PARAMETERS) - 1 : len(PARAMETERS)] == ["key"]


def run(candidate: Candidate, rows: Rows, noise: np.ndarray | int) -> np.ndarray:
    """Call a sampler.

    Args:
        candidate: The sampler.
        rows: R of them.
        noise: float32 (R,), the uniforms; the number of a key for those that take one.

    Returns:
        int (R,), the ids.

    Raises:
        WrongFormError: If what it returns is not one integer a row.
        Exception: Whatever the function raises.
    """
    given = as_key(candidate, noise) if isinstance(noise, int) else noise
    return read(candidate(*rows, given), len(rows.logits))


def read(result: Any, num_rows: int) -> np.ndarray:
    """What a sampler returned, its form checked."""
    if not hasattr(result, "shape"):
        raise WrongFormError(f"returned {described(result)}, not an array", EXPECTED)
    ids = as_numpy(result)
    if ids.shape != (num_rows,):
        raise WrongFormError(f"returned an array of shape {ids.shape}, not {(num_rows,)}", EXPECTED)
    if ids.dtype.kind not in "iu":
        raise WrongFormError(f"returned {ids.dtype} for ids", EXPECTED)
    return ids


def in_words(settings: Settings) -> str:
    """The settings that are not neutral."""
    names = PARAMETERS[1:-1]
    values = zip(names, settings[:4], NEUTRAL[:4], strict=True)
    said = [f"{name} {np.float32(x):g}" for name, x, neutral in values if x != neutral]
    return ", ".join(said) if said else "neutral settings"


def snippet(candidate: Candidate, rows: Rows, noise: np.ndarray | int) -> str:
    """A call as Python that can be pasted; nothing if the arrays are large."""
    if rows.logits.size > MOST_PASTED:
        return ""
    how = writing(candidate)
    lines = [f"{candidate.name}("]
    for name, array in zip(PARAMETERS, rows, strict=False):
        lines.append(f"    {name}={how.array(array)},")
    if isinstance(noise, int):
        lines += [f"    key={key_of(candidate, noise)},", ")"]
        return how.whole(lines, imports_of_key(candidate))
    return how.whole([*lines, f"    uniforms={how.array(noise)},", ")"])


def counting(candidate: Candidate, row: Rows) -> str:
    """A thousand draws from one row, counted, as Python that can be pasted."""
    if row.logits.size > MOST_PASTED:
        return ""
    how, imports = writing(candidate), ("from collections import Counter", "")
    lines = ["n = 1000", f"ids = {candidate.name}("]
    for name, array in zip(PARAMETERS, row, strict=False):
        dtype = f"{how.module}.{array.dtype}"
        lines.append(f"    {name}={how.make}({literal(array)} * n, dtype={dtype}),")
    if takes_key(candidate):
        lines.append(f"    key={key_of(candidate, 0)},")
        imports = (*imports, *imports_of_key(candidate))
    else:
        spread = "[(i + 0.5) / n for i in range(n)]"
        lines.append(f"    uniforms={how.make}({spread}, dtype={how.module}.float32),")
    return how.whole([*lines, ")", "print(sorted(Counter(ids.tolist()).items()))"], imports)
