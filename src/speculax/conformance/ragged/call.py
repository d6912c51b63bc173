"""One call of a ragged verifier under test: its arguments, its result, and pasteable Python."""

from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate, WrongFormError
from speculax.conformance.pasting import writing
from speculax.conformance.verifier.call import Result, unpack

PARAMETERS = (
    "draft_tokens",
    "draft_lengths",
    "draft_probs",
    "target_probs",
    "bonus_probs",
    "accept_uniforms",
    "sample_uniforms",
)


class Request(NamedTuple):
    """The step of one request, L draft tokens long.

    Attributes:
        draft_tokens: int (L,).
        draft_probs: floating (L, V), or None.
        target_probs: floating (L + 1, V), the bonus row last.
        accept_uniforms: floating (L,).
        sample_uniform: floating ().
    """

    draft_tokens: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray
    accept_uniforms: np.ndarray
    sample_uniform: np.ndarray

    @property
    def length(self) -> int:
        """How many draft tokens it has."""
        return len(self.draft_tokens)


class Arguments(NamedTuple):
    """The arguments of a call, NumPy arrays; see `verify_ragged`."""

    draft_tokens: np.ndarray
    draft_lengths: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray
    bonus_probs: np.ndarray
    accept_uniforms: np.ndarray
    sample_uniforms: np.ndarray

    def requests(self) -> list[Request]:
        """What each request has."""
        found, start = [], 0
        for b, length in enumerate(self.draft_lengths.tolist()):
            own = slice(start, start + length)
            found.append(
                Request(
                    self.draft_tokens[own],
                    None if self.draft_probs is None else self.draft_probs[own],
                    np.concatenate([self.target_probs[own], self.bonus_probs[b : b + 1]]),
                    self.accept_uniforms[own],
                    self.sample_uniforms[b],
                )
            )
            start += length
        return found


def lay(requests: list[Request], *padding: Request) -> Arguments:
    """Requests end to end, and behind them what nobody may read."""
    parts = [*requests, *padding]
    drafts = [part.draft_probs for part in parts if part.draft_probs is not None]
    return Arguments(
        np.concatenate([part.draft_tokens for part in parts]).astype(np.int32),
        np.array([request.length for request in requests], np.int32),
        np.concatenate(drafts) if drafts else None,
        np.concatenate([part.target_probs[:-1] for part in parts]),
        np.stack([request.target_probs[-1] for request in requests]),
        np.concatenate([part.accept_uniforms for part in parts]),
        np.array([request.sample_uniform for request in requests], np.float32),
    )


def run(candidate: Candidate, arguments: Arguments) -> Result:
    """Call a ragged verifier.

    Raises:
        WrongFormError: If what it returns is no verdict.
        Exception: Whatever the function raises.
    """
    n, tokens = unpack(candidate(*arguments))
    batch, longest = len(arguments.draft_lengths), int(arguments.draft_lengths.max())
    if n.shape != (batch,):
        raise WrongFormError(f"returned num_accepted of shape {n.shape}, not {(batch,)}")
    if tokens.ndim != 2 or len(tokens) != batch or tokens.shape[1] <= longest:
        raise WrongFormError(
            f"returned tokens of shape {tokens.shape}, not ({batch}, at least {longest + 1})"
        )
    return Result(n, tokens)


def snippet(candidate: Candidate, arguments: Arguments, largest: int = 400) -> str:
    """A call as Python that can be pasted; nothing if the arrays are large."""
    if any(a is not None and a.size > largest for a in arguments):
        return ""
    how = writing(candidate)
    lines = [f"{candidate.origin.rpartition(':')[2]}("]
    lines += [
        f"    {name}={how.array(value)}," for name, value in zip(PARAMETERS, arguments, strict=True)
    ]
    return how.whole([*lines, ")"])
