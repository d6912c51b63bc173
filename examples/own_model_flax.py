"""A model of Flax NNX: its graph is the static part, its state the weights. Needs `flax`."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import speculax as sx


class Bigrams(nnx.Module):
    """Hidden states of the last token only, so that there is nothing to cache."""

    def __init__(self, vocab_size: int, width: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.layer = nnx.Linear(width, width, rngs=rngs)

    def hidden(self, tokens: jax.Array) -> jax.Array:
        return nnx.gelu(self.layer(self.embed(tokens)))

    def logits(self, hidden: jax.Array) -> jax.Array:
        return 4 * self.embed.attend(hidden)


@dataclass(frozen=True)
class Network:
    """The module as speculax sees it. `graph` is hashable; the state is passed as `params`."""

    graph: Any
    vocab_size: int
    context_length: int = 256

    def init_cache(self, batch_size, num_slots):
        return jnp.zeros((batch_size, 0))

    def score(self, params, tokens, positions, cache, mask=None):
        return nnx.merge(self.graph, params).hidden(tokens), cache

    def head(self, params, hidden):
        return nnx.merge(self.graph, params).logits(hidden)

    def keep(self, cache, lengths):
        return cache


module = Bigrams(64, 32, nnx.Rngs(0))
graph, state = nnx.split(module)
model = sx.Model(Network(graph, 64), state, name="bigrams")
plain = sx.generate(model, [3, 4, 5])
drafted = sx.generate(model, [3, 4, 5], drafter=sx.NGram(4))
print(f"{plain.stats.steps} steps plain, {drafted.stats.steps} with n-grams")
assert plain.tokens.tolist() == drafted.tokens.tolist()
