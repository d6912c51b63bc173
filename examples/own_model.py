"""A language model of your own in plain JAX: one layer of attention, with its cache."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import speculax as sx


@dataclass(frozen=True)
class OneLayer:
    """The model as functions; static and hashable, as it has no arrays."""

    vocab_size: int = 64
    width: int = 32
    context_length: int = 256

    def init_cache(self, batch_size, num_slots):
        keys = jnp.zeros((batch_size, num_slots, self.width))
        return keys, keys, jnp.zeros((batch_size,), jnp.int32)

    def score(self, params, tokens, positions, cache, mask=None):
        """Read tokens (B, T) after the kept ones; write keys and values, and keep none of them."""
        keys, values, kept = cache
        x = params["embed"][tokens] + params["place"][positions]
        query, key, value = (x @ params[name] for name in ("query", "key", "value"))
        write = jax.vmap(lambda rows, new, at: jax.lax.dynamic_update_slice(rows, new, (at, 0)))
        keys, values = write(keys, key, kept), write(values, value, kept)
        slot = jnp.arange(keys.shape[1])
        new = slot[None, None] - kept[:, None, None]  # which of the new tokens a slot holds
        steps = tokens.shape[1]
        if mask is None:
            mask = jnp.broadcast_to(
                jnp.tril(jnp.ones((steps, steps), bool)), (len(kept), steps, steps)
            )
        index = jnp.broadcast_to(jnp.clip(new, 0, steps - 1), (len(kept), steps, len(slot)))
        sees = (new < 0) | ((new < steps) & jnp.take_along_axis(mask, index, axis=2))
        weights = jnp.einsum("btd,bsd->bts", query, keys) / np.sqrt(self.width)
        weights = jax.nn.softmax(jnp.where(sees, weights, -jnp.inf), axis=2)
        return x + jnp.einsum("bts,bsd->btd", weights, values), (keys, values, kept)

    def head(self, params, hidden):
        return hidden @ params["embed"].T

    def keep(self, cache, lengths):
        return (*cache[:2], lengths)


def init_params(network, seed=0):
    shapes = {
        "embed": (network.vocab_size, network.width),
        "place": (network.context_length, network.width),
        **dict.fromkeys(("query", "key", "value"), (network.width, network.width)),
    }
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        name: jax.random.normal(key, shape) / np.sqrt(network.width)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


if __name__ == "__main__":
    network = OneLayer()
    model = sx.Model(network, init_params(network), name="one layer")
    prompt = [5, 9, 2, 5, 9, 2, 5]
    plain = sx.generate(model, prompt)
    drafted = sx.generate(model, prompt, drafter=sx.NGram(4))
    print(f"{plain.stats.steps} steps plain, {drafted.stats.steps} with n-grams")
    assert plain.tokens.tolist() == drafted.tokens.tolist()
    # In pieces as in one: what the loop relies on.
    logits = model.logits(np.array([prompt]))
    cache, pieces = network.init_cache(1, 16), []
    for begin, end in ((0, 3), (3, 4), (4, 7)):
        positions = jnp.arange(begin, end, dtype=jnp.int32)[None]
        hidden, cache = network.score(
            model.params, jnp.array([prompt[begin:end]]), positions, cache
        )
        cache = network.keep(cache, jnp.array([end]))
        pieces.append(network.head(model.params, hidden))
    np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), logits, atol=1e-5)
