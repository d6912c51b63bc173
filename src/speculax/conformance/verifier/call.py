"""One call of a verifier under test: its arguments, its result, and both as pasteable Python."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate, WrongFormError, as_numpy, described
from speculax.conformance.pasting import writing

PARAMETERS = (
    "draft_tokens",
    "draft_probs",
    "target_probs",
    "accept_uniforms",
    "sample_uniforms",
)


class Arguments(NamedTuple):
    """The arguments of a call, NumPy arrays; see `verify_token`."""

    draft_tokens: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray
    accept_uniforms: np.ndarray
    sample_uniforms: np.ndarray
    draft_lengths: np.ndarray | None = None

    def row(self, b: int) -> "Arguments":
        """One row as a batch of its own."""
        return self.take(slice(b, b + 1))

    def take(self, rows: Any) -> "Arguments":
        """Some of the rows; a single one, without its batch axis, if `rows` is a number."""
        taken: list[Any] = [None if a is None else a[rows] for a in self]
        return Arguments(*taken)

    def cut(self, drafts: int) -> "Arguments":
        """The first draft tokens only."""
        draft = None if self.draft_probs is None else self.draft_probs[:, :drafts]
        return self._replace(
            draft_tokens=self.draft_tokens[:, :drafts],
            draft_probs=draft,
            target_probs=self.target_probs[:, : drafts + 1],
            accept_uniforms=self.accept_uniforms[:, :drafts],
        )


class Result(NamedTuple):
    """`num_accepted` (B,) and `tokens` (B, G+1); wider than the longest draft in flat batches."""

    num_accepted: np.ndarray
    tokens: np.ndarray

    def row(self, b: int) -> tuple[int, list[int]]:
        """One row of both."""
        return int(self.num_accepted[b]), self.tokens[b].tolist()


MOST_BARS = 8  # tokens of a vocabulary that a page can show

KEYS = set(Result._fields)


def run(candidate: Candidate, arguments: Arguments) -> Result:
    """Call a verifier.

    Raises:
        WrongFormError: If what it returns is no verdict.
        Exception: Whatever the function raises.
    """
    *positional, lengths = arguments
    named = {} if lengths is None else {"draft_lengths": lengths}
    result = candidate(*positional, **named)
    return read(result, arguments)


def as_verifier(candidate: Candidate) -> Callable[..., dict[str, np.ndarray]]:
    """A candidate with the signature of the verifiers, NumPy arrays in and out."""

    def verifier(*arrays: Any, draft_lengths: Any = None) -> dict[str, np.ndarray]:
        result = run(candidate, Arguments(*arrays, draft_lengths=draft_lengths))
        for name, array in result._asdict().items():
            if array.dtype.kind not in "iu":
                raise WrongFormError(f"returned {name} of {array.dtype}, not of integers")
        return result._asdict()

    return verifier


def unpack(result: Any) -> Result:
    """The two arrays of a verdict, whatever their shapes."""
    if not isinstance(result, dict):
        raise WrongFormError(f"returned {described(result)}, not a dict")
    if set(result) != KEYS:
        raise WrongFormError(f"returned the keys {sorted(map(str, result))}, not {sorted(KEYS)}")
    return Result(*(as_numpy(result[name]) for name in Result._fields))


def read(result: Any, arguments: Arguments) -> Result:
    """What a verifier returned, its form checked but for dtypes."""
    n, tokens = unpack(result)
    batch, drafts = arguments.draft_tokens.shape
    for name, array, shape in (
        ("num_accepted", n, (batch,)),
        ("tokens", tokens, (batch, drafts + 1)),
    ):
        if array.shape != shape:
            raise WrongFormError(f"returned {name} of shape {array.shape}, not {shape}")
    return Result(n, tokens)


def as_text(n: int, tokens: list[int]) -> str:
    """A row of a result."""
    return f"num_accepted {n}, tokens {tokens}"


def snippet(candidate: Candidate, arguments: Arguments, largest: int = 400) -> str:
    """A call as Python that can be pasted; nothing if the arrays are large."""
    if any(a is not None and a.size > largest for a in arguments):
        return ""
    how = writing(candidate)
    lines = [f"{candidate.origin.rpartition(':')[2]}("]
    for key, value in zip(Arguments._fields, arguments, strict=True):
        if value is not None or key == "draft_probs":
            lines.append(f"    {key}={how.array(value)},")
    return how.whole([*lines, ")"])


def as_step(rule: str, arguments: Arguments) -> dict[str, Any] | None:
    """The arguments of `step_page` for a batch of one small row; None if it is something else."""
    if rule not in ("token", "block") or len(arguments.draft_tokens) != 1:
        return None
    ids, draft, target, accept, sample, lengths = arguments.take(0)
    if draft is None or lengths is not None or target.shape[-1] > MOST_BARS:
        return None
    floats = np.concatenate([draft.ravel(), target.ravel(), accept, [sample]])
    in_vocabulary = (ids >= 0) & (ids < target.shape[-1])
    if not np.isfinite(floats).all() or not in_vocabulary.all():
        return None
    return {
        "draft_tokens": ids.tolist(),
        "draft_probs": draft.tolist(),
        "target_probs": target.tolist(),
        "accept_uniforms": accept.tolist(),
        "sample_uniform": float(sample),
        "rule": rule,
    }
