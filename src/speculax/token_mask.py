"""Token masks: which tokens may come next, as a function of the text, on device.

A grammar, a schema or a list of words is an automaton over tokens; its state is carried along with
the text, and advanced along drafts to judge each position by its own mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from speculax.opaque import as_pytree, from_pytree


class TokenMask(Protocol):
    """What tokens a text may go on with; its methods are traced.

    The object is hashable, or a pytree whose arrays are traced. A state is a pytree of arrays.
    Tokens that end a request are not shown to `advance`, and must be allowed where the text may
    end. If nothing is allowed, the request fails.
    """

    def init(self) -> Any:
        """The state at the end of the prompt."""
        ...

    def advance(self, state: Any, token: jax.Array) -> Any:
        """The state after one more token, int32 (), which need not be an allowed one."""
        ...

    def allowed(self, state: Any) -> jax.Array:
        """Which tokens may come next: bool (V,)."""
        ...


@partial(
    jax.tree_util.register_dataclass, data_fields=["masks", "is_used"], meta_fields=["is_shared"]
)
@dataclass(frozen=True, eq=False)
class MaskedRows:
    """The masks of a batch of rows, some of which may have none.

    Attributes:
        masks: A mask as a pytree; if rows have different ones, with a leading axis of rows.
        is_used: bool (B,), which rows have one.
        is_shared: Whether it is the same for all; static.
    """

    masks: Any
    is_used: jax.Array
    is_shared: bool

    def init(self) -> Any:
        """The states at the end of the prompts, each leaf (B, ...)."""
        if self.is_shared:
            one = _begin(from_pytree(self.masks))
            batch = self.is_used.shape[0]
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), one)
        return jax.vmap(lambda mask: _begin(from_pytree(mask)))(self.masks)

    def advance(self, states: Any, tokens: jax.Array, is_shown: jax.Array) -> Any:
        """The states after tokens int32 (B,), in the rows that are shown theirs."""

        def one(mask: Any, state: Any, token: jax.Array, is_shown: jax.Array) -> Any:
            new = from_pytree(mask).advance(state, jnp.maximum(token, 0))
            return jax.tree.map(partial(jnp.where, is_shown & (token >= 0)), new, state)

        axes, size = (self._axis, 0, 0, 0), self.is_used.shape[0]
        return jax.vmap(one, axes, axis_size=size)(self.masks, states, tokens, is_shown)

    def allowed(self, states: Any) -> jax.Array:
        """Which tokens may come next: bool (B, V), all where a row has no mask."""
        read = jax.vmap(
            lambda mask, state: from_pytree(mask).allowed(state),
            (self._axis, 0),
            axis_size=self.is_used.shape[0],
        )
        return read(self.masks, states) | ~self.is_used[:, None]

    @property
    def _axis(self) -> int | None:
        return None if self.is_shared else 0


def check_masks(masks: Sequence[Any], vocab_size: int) -> None:
    """Raise ValueError if requests have masks of different kinds, or of another vocabulary."""
    kinds = {_kind(as_pytree(mask)) for mask in masks if mask is not None}
    if len(kinds) > 1:
        raise ValueError(
            "token_mask: requests of one call must have masks of the same class, with the same "
            f"static fields and arrays of the same shapes, got {len(kinds)} kinds; put what "
            "differs into arrays, or run the requests in calls of their own."
        )
    for mask in masks:
        if mask is not None:
            allowed = jax.eval_shape(lambda mask=mask: jnp.asarray(mask.allowed(_begin(mask))))
            if allowed.shape != (vocab_size,) or allowed.dtype != jnp.bool_:
                raise ValueError(
                    f"token_mask must allow tokens by bool ({vocab_size},), one for each token of "
                    f"the model, got {allowed.dtype} {allowed.shape} from "
                    f"{type(mask).__name__}.allowed."
                )
            return


def stack_masks(rows: Sequence[Any], masks: Sequence[Any]) -> MaskedRows | None:
    """The masks of a batch, one or None a row; None if none of `masks` is one.

    Args:
        rows: The masks of the rows, each of them one of `masks`.
        masks: All that rows of the batch may ever have, of one kind.
    """
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    is_used = jnp.asarray([mask is not None for mask in rows])
    one = as_pytree(given[0])
    if not jax.tree.leaves(one) or all(mask is given[0] for mask in given):
        return MaskedRows(one, is_used, True)
    filled = [one if mask is None else as_pytree(mask) for mask in rows]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *filled)
    return MaskedRows(stacked, is_used, False)


def _begin(mask: Any) -> Any:
    """Its first state, of the types that all its states have: Python's numbers have weak ones."""
    return jax.tree.map(lambda x: jnp.asarray(x, jax.dtypes.result_type(x)), mask.init())


def _kind(mask: Any) -> Any:
    leaves, structure = jax.tree.flatten(mask)
    return structure, tuple((np.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)
