"""A loop around this library's own verifiers, to test the checks by."""

from typing import Any

import numpy as np

import speculax as sx
from speculax.conformance.generate.mutants import Loop, Step


class OursLoop(Loop):
    """Speculative generation with `verify_token`, correct."""

    def judge(self, step: Step) -> list[int]:
        """The accepted draft tokens, and one more."""
        verdict: Any = sx.verify_token(
            np.array([step.drafts], np.int32),
            np.array([step.draft], np.float32),
            np.array([step.target], np.float32),
            np.array([step.coins[1, :-1]], np.float32),
            np.array([step.coins[2, 0]], np.float32),
        )
        n = int(verdict["num_accepted"][0])
        return np.asarray(verdict["tokens"])[0, : n + 1].tolist()
