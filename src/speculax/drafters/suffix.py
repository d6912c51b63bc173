"""Suffix drafting: the continuation that most often followed the longest suffix seen before.

In the spirit of Oliaro et al., "SuffixDecoding" (arXiv:2411.04975), with a scan of the text in
place of a suffix tree: find the longest suffix of the text that occurred before, look at all its
occurrences, and go on with the token that most of them went on with, then with those that did. The
longer the match, the longer the draft. Deterministic, so its laws are point masses.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import MAX_DRAFT_LENGTH, Round
from speculax.types import NO_TOKEN, Draft

HISTORY = 8192  # tokens of earlier requests
_BUCKETS = 4096  # votes are counted by token modulo this: a collision makes a draft worse at most


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["history"],
    meta_fields=["draft_length", "max_suffix", "tokens_per_match", "share_history"],
)
@dataclass(frozen=True, eq=False)
class Suffix:
    """A drafter that copies the most frequent continuation.

    No model: `max_suffix` scans of the text, and of the history if it is shared, and a few more for
    each draft token.

    Attributes:
        draft_length: The most tokens proposed in a step, from 0 to 512.
        max_suffix: The longest suffix that is told from longer ones, from 1 to 64 tokens.
        tokens_per_match: How many tokens to propose, at most, for each token of the match.
        share_history: Whether requests also copy from earlier ones of the same call; `remember`
            shows it others. Which drafts a request gets then depends on what was run before.
        history: int32 (H,), earlier texts with -1 after each.

    Raises:
        ValueError: If a number is no integer in its range.
    """

    draft_length: int = 15
    max_suffix: int = 16
    tokens_per_match: int = 4
    share_history: bool = False
    history: Any = None

    def __post_init__(self) -> None:
        ranges = {
            "draft_length": (0, MAX_DRAFT_LENGTH),
            "max_suffix": (1, 64),
            "tokens_per_match": (1, MAX_DRAFT_LENGTH),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or not least <= value <= most:
                raise ValueError(
                    f"{name} must be an integer from {least} to {most}, got {value!r}."
                )
            object.__setattr__(self, name, int(value))
        if self.history is None:
            size = HISTORY if self.share_history else 1
            object.__setattr__(self, "history", np.full((size,), NO_TOKEN, np.int32))

    def remember(self, tokens: np.ndarray) -> "Suffix":
        """The drafter with a text, int (N,), in its history, from which the oldest tokens fall."""
        if not self.share_history:
            return self
        longer = np.concatenate([self.history, tokens, [NO_TOKEN]])
        return replace(self, history=longer[-len(self.history) :].astype(np.int32))

    def init(self, tokens: jax.Array, lengths: jax.Array) -> tuple[()]:
        """No state: all it needs is the text."""
        return ()

    def propose(self, state: tuple[()], round: Round) -> tuple[Draft, tuple[()]]:
        """Propose up to G tokens a row, none where nothing matches; uses no randomness."""
        draft = partial(self._draft, num_drafts=round.draft_length)
        return Draft(*jax.vmap(draft)(round.tokens, round.lengths)), state

    def _draft(
        self, row: jax.Array, length: jax.Array, num_drafts: int
    ) -> tuple[jax.Array, jax.Array]:
        """The draft int32 (G,) of one row (S,), and how much of it to use, int32 ()."""
        corpus = jnp.concatenate([jnp.asarray(self.history), row])
        end = self.history.shape[0] + length  # of the text in it
        places = jnp.arange(corpus.shape[0], dtype=jnp.int32)
        matched = jnp.zeros_like(corpus)  # how long a suffix of the text ends here
        matches = (places < end - 1) & (corpus >= 0)
        for back in range(self.max_suffix):
            matches &= jnp.roll(corpus, back) == corpus[end - 1 - back]
            matches &= (places >= back) & (back < length)
            matched += matches.astype(jnp.int32)
        longest = jnp.max(matched)

        def extend(carry: tuple, i: jax.Array) -> tuple[tuple, tuple]:
            corpus, is_at = carry  # where the text could be said to stand
            following = jnp.roll(corpus, -1)
            is_at &= (following >= 0) & (places < end + i - 1)
            bucket = jnp.where(is_at, following % _BUCKETS, _BUCKETS)
            votes = jnp.zeros((_BUCKETS,), jnp.int32).at[bucket].add(1, mode="drop")
            count = jnp.where(is_at, votes[following % _BUCKETS], 0)
            last = corpus.shape[0] - 1 - jnp.argmax(count[::-1])  # of those with the most votes
            token, is_found = following[last], count[last] > 0
            # The draft is part of the text, so that what repeats is drafted at any length.
            corpus = corpus.at[end + i].set(token, mode="drop")
            is_at = jnp.roll(is_at & (following == token), 1)
            return (corpus, is_at), (token, is_found)

        at_start = (matched == longest) & (longest > 0)
        steps = jnp.arange(num_drafts, dtype=jnp.int32)
        _, (tokens, is_found) = jax.lax.scan(extend, (corpus, at_start), steps)
        found = jnp.sum(jnp.cumprod(is_found.astype(jnp.int32)), dtype=jnp.int32)
        return tokens, jnp.minimum(found, self.tokens_per_match * longest)
