"""Two drafters in one: what the first has to say, and where it is silent the second.

An n-gram match costs nothing and, where there is one, is long and mostly right; a model always has
something to say. Serving engines combine them likewise.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import Drafter, Round, check_drafter, write_out
from speculax.models.model import Model
from speculax.opaque import as_pytree, from_pytree
from speculax.types import Draft


@partial(jax.tree_util.register_dataclass, data_fields=["first", "second"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class FirstMatch:
    """Drafts of `first` in the rows in which it proposes anything, else of `second`.

    The second does not run while all rows have a draft. Where the first's drafts are deterministic
    and the second's are not, the laws of the rows with a draft of the first are written out.

    All steps have room for the longer of the two drafts, and neither length adapts.

    Attributes:
        first: For example `NGram(draft_length=8)`. It must be deterministic, or silent for reasons
            other than what it drew: the second gets the same noise.
        second: For example a `DraftModel`.
    """

    first: Any
    second: Any

    always_drafts = True

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            object.__setattr__(self, name, as_pytree(getattr(self, name)))

    @property
    def draft_length(self) -> int:
        """That of the longer of the two."""
        return max(drafter.draft_length for drafter in self._both)

    @property
    def _both(self) -> tuple[Drafter, Drafter]:
        return from_pytree(self.first), from_pytree(self.second)

    def check(self, target: Model) -> None:
        """Raise ValueError if one of the two does not go with the target."""
        for drafter in self._both:
            check_drafter(drafter, target)

    def remember(self, tokens: np.ndarray) -> "FirstMatch":
        """The two with a text, int (N,), in the history of those that keep one."""
        both: tuple[Any, Any] = self._both
        return FirstMatch(
            *(one.remember(tokens) if hasattr(one, "remember") else one for one in both)
        )

    def init(self, tokens: jax.Array, lengths: jax.Array) -> tuple[Any, Any]:
        """The states of both."""
        first, second = (drafter.init(tokens, lengths) for drafter in self._both)
        return first, second

    def propose(self, state: tuple[Any, Any], round: Round) -> tuple[Draft, tuple[Any, Any]]:
        """Ask the first, and if it has nothing for some row the second too."""
        first, second = self._both
        draft, first_state = _ask(first, state[0], round)

        def ask_second(second_state: Any) -> tuple[Draft, Any]:
            return _ask(second, second_state, round)

        def skip(second_state: Any) -> tuple[Draft, Any]:
            blank = jax.eval_shape(ask_second, second_state)[0]
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), blank), second_state

        has_draft = draft.lengths > 0
        other, second_state = jax.lax.cond(jnp.all(has_draft), skip, ask_second, state[1])
        probs = None
        if draft.probs is not None or other.probs is not None:
            own, others = (
                write_out(one, round.target.network.vocab_size) if one.probs is None else one.probs
                for one in (draft, other)
            )
            probs = jnp.where(has_draft[:, None, None], own, others)
        merged = Draft(
            jnp.where(has_draft[:, None], draft.tokens, other.tokens),
            jnp.where(has_draft, draft.lengths, other.lengths),
            probs,
        )
        return merged, (first_state, second_state)


def _ask(drafter: Drafter, state: Any, round: Round) -> tuple[Draft, Any]:
    """The drafter's draft, filled up to the round's length, its laws written out if it has any."""
    length = min(round.draft_length, drafter.draft_length)
    missing = round.draft_length - length
    short = replace(round, draft_length=length, uniforms=round.uniforms[:, :length])
    draft, state = drafter.propose(state, short)
    tokens = jnp.pad(draft.tokens, ((0, 0), (0, missing)))
    probs = draft.probs
    if probs is not None:
        probs = write_out(draft, round.target.network.vocab_size)
        probs = jnp.pad(probs, ((0, 0), (0, missing), (0, 0)))
    return Draft(tokens, draft.lengths, probs), state
