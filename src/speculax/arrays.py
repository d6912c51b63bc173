"""Arguments as arrays of their own dtypes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

KINDS: dict[Any, str] = {
    jnp.integer: "an integer",
    jnp.floating: "a floating-point",
    jnp.number: "a real",
    jnp.bool_: "a boolean",
    jnp.unsignedinteger: "an unsigned integer",
}


def as_array(name: str, values: ArrayLike) -> jax.Array:
    """An array of its own dtype; integers of 64 bits on the host become the nearest of 32 bits.

    Raises:
        TypeError: If it is no array of numbers.
    """
    if isinstance(values, jax.Array):
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)  # a ragged list
    if array.dtype == object:
        raise TypeError(
            f"{name} must be an array of numbers, got {type(values).__name__} that is none; pass a "
            "NumPy or JAX array, or nested lists of equal lengths."
        )
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        # Without jax_enable_x64 these would wrap around, perhaps into the vocabulary.
        limits = np.iinfo(np.int32)
        array = np.minimum(array, limits.max)
        if array.dtype.kind == "i":
            array = np.maximum(array, limits.min)
        array = array.astype(np.int32)
    return jnp.asarray(array)


def as_int32(integers: jax.Array) -> jax.Array:
    """Integers of any type as the nearest int32."""
    limits = jnp.iinfo(jnp.int32)
    if jnp.iinfo(integers.dtype).max > limits.max:
        integers = jnp.minimum(integers, limits.max)
    if jnp.iinfo(integers.dtype).min < limits.min:
        integers = jnp.maximum(integers, limits.min)
    return integers.astype(jnp.int32)


def check_kind(name: str, array: jax.Array | np.ndarray, kind: Any) -> None:
    """Check that an array is of one of `KINDS`.

    Raises:
        TypeError: If it is not.
    """
    is_complex = jnp.issubdtype(array.dtype, jnp.complexfloating)
    if is_complex or not jnp.issubdtype(array.dtype, kind):
        raise TypeError(
            f"{name} must have {KINDS[kind]} dtype, got {array.dtype} of shape {array.shape}; "
            "check the order of the arguments, or cast with astype."
        )
