"""The words the parts of the library share: verdict, draft, language model."""

from typing import Any, NamedTuple, Protocol, TypedDict

import jax

NO_TOKEN = -1  # fills a verdict's tokens beyond the drawn one


class Verdict(TypedDict):
    """What one verification step decided; a plain dict with exactly these two keys.

    Attributes:
        num_accepted: int32 (B,), how many draft tokens of each row are kept.
        tokens: int32 (B, G+1), the accepted draft tokens, the one token drawn after them, then -1.
            The drawn token is -1 too where the target's law could not be drawn from (NaN, infinity
            or no mass).
    """

    num_accepted: jax.Array
    tokens: jax.Array


class Draft(NamedTuple):
    """What a drafter proposes for one step.

    Attributes:
        tokens: int32 (B, G), the draft tokens.
        lengths: int32 (B,), how many of them each row really has; the rest is never judged.
        probs: float (B, G, V) or a `Law`, the law each token was sampled from; None for
            deterministic drafters, whose laws are point masses on their tokens.
    """

    tokens: jax.Array
    lengths: jax.Array
    probs: Any = None


class LanguageModel(Protocol):
    """A causal language model as pure functions; the object itself is static and hashable.

    The cache holds all but the last committed token of each row, so the first token of a request
    is made by an ordinary step. Rejected tokens are rolled back by not keeping them.
    """

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        ...

    @property
    def context_length(self) -> int:
        """The most positions a sequence can have."""
        ...

    def init_cache(self, batch_size: int, num_slots: int) -> Any:
        """An empty cache for `batch_size` rows of at most `num_slots` tokens.

        Every array in it has rows as its first axis.
        """
        ...

    def score(
        self,
        params: Any,
        tokens: jax.Array,
        positions: jax.Array,
        cache: Any,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Run `tokens` (B, T) at `positions` (B, T) after what the cache keeps.

        `mask` bool (B, T, T) says which of the new tokens each new token sees; None is causal.
        Returns hidden states (B, T, D) and the cache with the new tokens written, not yet kept.
        """
        ...

    def head(self, params: Any, hidden: jax.Array) -> jax.Array:
        """Logits float32 (..., V) of hidden states (..., D)."""
        ...

    def keep(self, cache: Any, lengths: jax.Array) -> Any:
        """The cache with the first `lengths` (B,) tokens of each row kept and the rest dropped."""
        ...
