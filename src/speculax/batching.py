"""Rules are written for one row; here they become a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def map_rows(function: Callable[[jax.Array], Any], num_rows: int) -> Any:
    """Stack `function(0), ..., function(num_rows - 1)`.

    On CPU row after row, so that what one row needs stays in cache; elsewhere all at once, without
    a loop. The function gets the row's number and cuts what it needs from arrays it closes over:
    mapping over the arrays themselves would copy every row, needed or not.
    """
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    return jax.lax.platform_dependent(
        rows, cpu=lambda rows: jax.lax.map(function, rows), default=jax.vmap(function)
    )
