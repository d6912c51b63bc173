"""A model of Equinox: its arrays are the weights, all else the static part. Needs `equinox`."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import speculax as sx


class Bigrams(eqx.Module):
    """Hidden states of the last token only, so that there is nothing to cache."""

    embed: jax.Array
    layer: eqx.nn.Linear

    def __init__(self, vocab_size: int, width: int, key: jax.Array):
        first, second = jax.random.split(key)
        self.embed = jax.random.normal(first, (vocab_size, width)) / 3
        self.layer = eqx.nn.Linear(width, width, key=second)

    def hidden(self, tokens: jax.Array) -> jax.Array:
        return jax.nn.gelu(jax.vmap(jax.vmap(self.layer))(self.embed[tokens]))

    def logits(self, hidden: jax.Array) -> jax.Array:
        return 4 * hidden @ self.embed.T


@dataclass(frozen=True)
class Network:
    """The module as speculax sees it. What is no array is hashable; arrays are `params`."""

    static: Any
    vocab_size: int
    context_length: int = 256

    def init_cache(self, batch_size, num_slots):
        return jnp.zeros((batch_size, 0))

    def score(self, params, tokens, positions, cache, mask=None):
        return eqx.combine(params, self.static).hidden(tokens), cache

    def head(self, params, hidden):
        return eqx.combine(params, self.static).logits(hidden)

    def keep(self, cache, lengths):
        return cache


arrays, static = eqx.partition(Bigrams(64, 32, jax.random.key(0)), eqx.is_array)
model = sx.Model(Network(static, 64), arrays, name="bigrams")
plain = sx.generate(model, [3, 4, 5])
drafted = sx.generate(model, [3, 4, 5], drafter=sx.NGram(4))
print(f"{plain.stats.steps} steps plain, {drafted.stats.steps} with n-grams")
assert plain.tokens.tolist() == drafted.tokens.tolist()
