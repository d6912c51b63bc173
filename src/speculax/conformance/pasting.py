"""Python that can be pasted, to show a failure."""

from typing import Any, NamedTuple

import numpy as np

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

    def array(self, value: np.ndarray | None) -> str:
        """An array, or None."""
        if value is None:
            return "None"
        dtype = f"{self.module}.{value.dtype}"
        if value.size == 0:
            return f"{self.module}.zeros({value.shape}, dtype={dtype})"
        return f"{self.make}({literal(value)}, dtype={dtype})"

    def whole(self, lines: list[str], more: tuple[str, ...] = ()) -> str:
        """The lines, after the imports and more of them."""
        text = "\n".join([*more, *self.imports, "", *lines])
        return f"from math import inf, nan\n{text}" if "nan" in text or "inf" in text else text


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


def imports_of_key(candidate: Candidate) -> tuple[str, ...]:
    """What a key needs to be imported."""
    return ("import jax",) if candidate.framework == "jax" else ()


def literal(array: np.ndarray) -> str:
    """Nested lists; floats as short as gives the same float of their type."""
    if array.ndim == 0:
        return _number(array[()])
    return f"[{', '.join(literal(a) for a in array)}]"


def _number(value: Any) -> str:
    if isinstance(value, np.floating):
        return str(value) if np.isfinite(value) else str(float(value))
    return str(value.item())
