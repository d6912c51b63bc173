"""Objects of users as arguments of compiled functions, whether they are pytrees or not."""

from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_static
@dataclass(frozen=True)
class Opaque:
    """A hashable object that is no pytree, made one without arrays."""

    object: Any


def as_pytree(object: Any) -> Any:
    """The object as what can be given to a compiled function; `from_pytree` undoes it."""
    return Opaque(object) if jax.tree_util.all_leaves([object]) else object


def from_pytree(object: Any) -> Any:
    """The object itself."""
    return object.object if isinstance(object, Opaque) else object
