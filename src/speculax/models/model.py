"""A language model with its weights."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from speculax.models.tokenizer import Tokenizer
from speculax.types import LanguageModel

_SLOTS = 64  # the cache is made for a multiple of this many tokens


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params"],
    meta_fields=["network", "tokenizer", "eos_ids", "name"],
)
@dataclass(frozen=True, eq=False)
class Model:
    """A language model, its weights, and what is needed to talk to it; a pytree of the weights.

    Attributes:
        network: The model as pure functions; static and hashable.
        params: Its weights, a pytree of arrays.
        tokenizer: Text to ids and back; None for a model that only knows ids.
        eos_ids: The ids that end a text.
        name: What to call it.
    """

    network: LanguageModel
    params: Any
    tokenizer: Tokenizer | None = None
    eos_ids: tuple[int, ...] = ()
    name: str = "model"

    def logits(self, tokens: ArrayLike) -> jax.Array:
        """The logits at every position of `tokens`.

        Args:
            tokens: Integers (B, T), token ids in [0, V), 1 <= T <= the model's context length.
                Under a JAX transformation the ids themselves are not checked.

        Returns:
            float32 (B, T, V): entry (b, t) is about the token after `tokens[b, :t + 1]`. They take
            4 * B * T * V bytes, and each shape compiles once.

        Raises:
            ValueError: `tokens` has another rank or dtype, is longer than the context, or has ids
                outside the vocabulary.
        """
        if not isinstance(tokens, jax.Array):
            tokens = np.asarray(tokens)  # not yet JAX's, which would wrap 64-bit ids
        if tokens.ndim != 2 or 0 in tokens.shape or not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(
                f"tokens must be integers of shape (B, T), got {tokens.dtype} {tokens.shape}; "
                "add a batch axis to a single row."
            )
        if tokens.shape[1] > self.network.context_length:
            raise ValueError(
                f"tokens must have at most {self.network.context_length} positions (the model's "
                f"context), got {tokens.shape[1]}; cut them."
            )
        if not isinstance(tokens, Tracer):
            ids, vocab_size = np.asarray(tokens), self.network.vocab_size
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError(
                    f"tokens must be ids from 0 to {vocab_size - 1}, got {ids.min()} to "
                    f"{ids.max()}; check that the tokenizer belongs to the model."
                )
        return _logits(self.network, self.params, jnp.asarray(tokens, jnp.int32))


def hidden_states(network: LanguageModel, params: Any, tokens: jax.Array) -> jax.Array:
    """The hidden states (B, T, D) along `tokens` int32 (B, T), from an empty cache."""
    batch_size, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape)
    cache = network.init_cache(batch_size, -(-length // _SLOTS) * _SLOTS)
    return network.score(params, tokens, positions, cache)[0]


@partial(jax.jit, static_argnums=0)
def _logits(network: LanguageModel, params: Any, tokens: jax.Array) -> jax.Array:
    return network.head(params, hidden_states(network, params, tokens))
