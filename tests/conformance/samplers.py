"""Samplers as others write them, as text: right by contract, and with mistakes."""

SORTED = """
import jax
import jax.numpy as jnp


def sample(logits, temperature, top_k, top_p, min_p, uniforms):
    size = logits.shape[1]
    is_greedy = temperature == 0
    heat = jnp.where(is_greedy, 1.0, temperature)[:, None]
    probs = jax.nn.softmax(logits / heat, axis=1)
    order = jnp.argsort(-probs, axis=1)
    probs = jnp.take_along_axis(probs, order, axis=1)
    k = jnp.where(top_k == 0, size, top_k)[:, None]
    probs = jnp.where(jnp.arange(size)[None] < k, probs, 0)
    probs = probs / probs.sum(axis=1, keepdims=True)
    before = jnp.cumsum(probs, axis=1) - probs
    probs = jnp.where((before < top_p[:, None]) | (top_p == 1)[:, None], probs, 0)
    probs = jnp.where(probs >= min_p[:, None] * probs[:, :1], probs, 0)
    place = DRAW
    ids = jnp.take_along_axis(order, place[:, None], axis=1)[:, 0]
    return jnp.where(is_greedy, jnp.argmax(logits, axis=1), ids).astype(jnp.int32)
"""
BY_UNIFORM = "jnp.argmax(jnp.cumsum(probs, 1) > (uniforms * probs.sum(1))[:, None], axis=1)"
BY_KEY = "jax.random.categorical(key, jnp.log(probs))"
OF_UNIFORMS = SORTED.replace("DRAW", BY_UNIFORM)
OF_KEY = SORTED.replace("DRAW", BY_KEY).replace("min_p, uniforms", "min_p, key")


def changed(old, new, text=OF_UNIFORMS):
    """The right sampler with a mistake."""
    assert text.count(old) == 1
    return text.replace(old, new)


# With the name that the mistake should be given.
NAMED = {
    "TopKOneMore": changed("[None] < k", "[None] <= k"),
    "MinPOfOne": changed("min_p[:, None] * probs[:, :1]", "min_p[:, None] * probs.sum(1)[:, None]"),
    "TopPOfTheWholeLaw": changed(
        "    probs = probs / probs.sum(axis=1, keepdims=True)\n", ""
    ),
    "TemperatureIgnored": changed("logits / heat", "logits"),
    "TemperatureMultiplied": changed("logits / heat", "logits * heat"),
    "MinPIgnored": changed("probs >= min_p", "probs >= 0 * min_p"),
}  # fmt: skip
