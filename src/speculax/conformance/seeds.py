"""What a function gets that takes a key in place of uniforms."""

from typing import Any

import jax

from speculax.conformance.candidate import Candidate


def as_key(candidate: Candidate, seed: int) -> Any:
    """A key of `jax.random`; for NumPy and PyTorch the seed itself, an int."""
    return jax.random.key(seed) if candidate.framework == "jax" else seed
