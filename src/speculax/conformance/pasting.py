"""Python that can be pasted, to show a failure."""

from typing import NamedTuple

from speculax.conformance.candidate import Candidate


class Writing(NamedTuple):
    """How arrays are written for a function, and what must be imported.

    Attributes:
        make: What makes an array of nested lists.
        module: What its dtypes belong to.
        imports: The lines to begin with.
    """

    make: str
    module: str
    imports: list[str]


def writing(candidate: Candidate) -> Writing:
    """How a call of a function is written down."""
    place, _, name = candidate.origin.rpartition(":")
    module = place.removesuffix(".py").rpartition("/")[2] if place.endswith(".py") else place
    make, line = {
        "jax": ("jnp.array", "import jax.numpy as jnp"),
        "torch": ("torch.tensor", "import torch"),
        "numpy": ("np.array", "import numpy as np"),
    }[candidate.framework]
    imports = [line, f"from {module} import {name.partition('.')[0]}"]
    return Writing(make, make.partition(".")[0], imports)


def key_of(candidate: Candidate, seed: int) -> str:
    """A key as Python."""
    return f"jax.random.key({seed})" if candidate.framework == "jax" else str(seed)
