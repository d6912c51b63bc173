"""One call of a verifier that takes a key: its arguments, its result, and both as Python."""

from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.pasting import imports_of_key, key_of, writing
from speculax.conformance.seeds import as_key
from speculax.conformance.verifier.call import Arguments, Result, read

PARAMETERS = ("draft_tokens", "draft_probs", "target_probs", "key")
MOST_PASTED = 400  # numbers


class Step(NamedTuple):
    """All arguments but the key, NumPy arrays; see `verify_token`."""

    draft_tokens: np.ndarray
    draft_probs: np.ndarray | None
    target_probs: np.ndarray

    def take(self, which: np.ndarray) -> "Step":
        """Some of the rows."""
        draft = None if self.draft_probs is None else self.draft_probs[which]
        return Step(self.draft_tokens[which], draft, self.target_probs[which])


def run(candidate: Candidate, step: Step, seed: int) -> Result:
    """Call a verifier with a key made of a seed.

    Raises:
        WrongFormError: If what it returns is no verdict.
        Exception: Whatever the function raises.
    """
    none = np.zeros(0, np.float32)
    result = candidate(*step, as_key(candidate, seed))
    draft_tokens, draft_probs, target_probs = step
    return read(result, Arguments(draft_tokens, draft_probs, target_probs, none, none))


def snippet(candidate: Candidate, step: Step, seed: int) -> str:
    """A call as Python that can be pasted; nothing if the arrays are large."""
    if any(array is not None and array.size > MOST_PASTED for array in step):
        return ""
    how = writing(candidate)
    lines = [f"{candidate.name}("]
    for name, array in zip(PARAMETERS, step, strict=False):
        lines.append(f"    {name}={how.array(array)},")
    lines += [f"    key={key_of(candidate, seed)},", ")"]
    return how.whole(lines, imports_of_key(candidate))
