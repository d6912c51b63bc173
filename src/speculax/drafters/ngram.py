"""N-gram drafting: what followed the last few tokens earlier will follow them again.

Prompt lookup decoding (Saxena 2023; Yang et al., arXiv:2304.04487): find the longest suffix of the
text that occurred before, the most recent occurrence first, and propose what came after it.
Deterministic, so its laws are point masses. A few comparisons a token of context; no model.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import MAX_DRAFT_LENGTH, Round
from speculax.types import Draft


@jax.tree_util.register_static
@dataclass(frozen=True)
class NGram:
    """A drafter that copies from the prompt and the output.

    The copy may run on into the tokens it has just proposed, so that a text that repeats with a
    short period is drafted at full length.

    Attributes:
        draft_length: The most tokens proposed in a step, from 0 to 512.
        max_ngram: The longest suffix that is looked for, from 1 to 32 tokens; shorter ones down to
            1 follow.

    Raises:
        ValueError: If `draft_length` or `max_ngram` is no integer in its range.
    """

    draft_length: int = 15
    max_ngram: int = 3

    def __post_init__(self) -> None:
        for name, least, most in (("draft_length", 0, MAX_DRAFT_LENGTH), ("max_ngram", 1, 32)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or not least <= value <= most:
                raise ValueError(
                    f"{name} must be an integer from {least} to {most}, got {value!r}; the "
                    "defaults are draft_length=15 and max_ngram=3."
                )
            object.__setattr__(self, name, int(value))

    def init(self, tokens: jax.Array, lengths: jax.Array) -> tuple[()]:
        """No state: all it needs is the text."""
        return ()

    def propose(self, state: tuple[()], round: Round) -> tuple[Draft, tuple[()]]:
        """Propose up to G tokens a row, none where nothing matches; uses no randomness."""
        tokens, lengths = jax.vmap(
            lambda row, length: self._look_up(row, length, round.draft_length)
        )(round.tokens, round.lengths)
        return Draft(tokens, lengths), state

    def _look_up(
        self, row: jax.Array, length: jax.Array, num_drafts: int
    ) -> tuple[jax.Array, jax.Array]:
        """The continuation int32 (G,) of one row (S,), and how much of it to use, int32 ()."""
        ends = jnp.arange(row.shape[0], dtype=jnp.int32)
        matched = jnp.zeros_like(row)  # how long a suffix of the text ends here
        matches = ends < length - 1
        for back in range(self.max_ngram):
            suffix_token = row[jnp.maximum(length - 1 - back, 0)]
            matches &= (ends >= back) & (jnp.roll(row, back) == suffix_token)
            matched += matches.astype(jnp.int32)
        # The longest match, and of those the last.
        end = row.shape[0] - 1 - jnp.argmax(matched[::-1]).astype(jnp.int32)
        period = jnp.maximum(length - 1 - end, 1)
        steps = jnp.arange(num_drafts, dtype=jnp.int32)
        found = jnp.where(matched[end] > 0, num_drafts, 0).astype(jnp.int32)
        return row[end + 1 + steps % period], found
