"""A decoder-only transformer described by its configuration; the first family is Gemma 3.

Grouped-query attention with normalised queries and keys, local (sliding-window) and global layers
with their own rotary bases, RMS norms before and after attention and MLP, gated MLP, tied head.

What the measurements say, all on CPU: weights are kept per layer (scanning over a stack copies
them), fused where they share an input, and stored (in, out); the cache is (B, heads, slots, dim)
and always the right-hand side of a batched product; new keys and values are written before they
are read. Rolling back is free: rejected tokens stay in slots that are not kept, hidden by the mask
until they are overwritten, in the sliding window too.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speculax.batching import write_rows
from speculax.models.config import DecoderConfig
from speculax.models.few_rows import row_products

MASKED = -1e30


class Cache(NamedTuple):
    """Keys and values of each layer, and how many slots of each row are kept.

    Attributes:
        layers: A pair (keys, values) a layer, each float (B, Hkv, S, Dh).
        lengths: int32 (B,).
    """

    layers: tuple[tuple[jax.Array, jax.Array], ...]
    lengths: jax.Array


@dataclass(frozen=True)
class Decoder:
    """A `LanguageModel`; `speculax.load` gives one with its parameters, as a `Model`.

    Attributes:
        config: Sizes and constants.
    """

    config: DecoderConfig

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """The most positions a sequence can have."""
        return self.config.context_length

    @property
    def num_layers(self) -> int:
        """How many layers it has."""
        return self.config.num_layers

    def init_params(self, key: jax.Array) -> dict[str, Any]:
        """Random float32 parameters to start training from."""
        config = self.config
        width, num_layers = config.hidden_size, config.num_layers
        heads = config.num_heads * config.head_dim
        keys = iter(jax.random.split(key, 1 + 4 * num_layers))

        def matrix(rows: int, columns: int) -> jax.Array:
            return jax.random.normal(next(keys), (rows, columns), jnp.float32) * rows**-0.5

        def layer() -> dict[str, jax.Array]:
            return {
                "attention_norm": jnp.ones(width),
                "qkv": matrix(width, heads + 2 * config.num_kv_heads * config.head_dim),
                "query_norm": jnp.ones(config.head_dim),
                "key_norm": jnp.ones(config.head_dim),
                "out": matrix(heads, width),
                "post_attention_norm": jnp.full(width, num_layers**-0.5),
                "mlp_norm": jnp.ones(width),
                "gate_up": matrix(width, 2 * config.mlp_size),
                "down": matrix(config.mlp_size, width),
                "post_mlp_norm": jnp.full(width, num_layers**-0.5),
            }

        embedding = jax.random.normal(next(keys), (config.vocab_size, width), jnp.float32)
        return {
            "embedding": embedding / config.embed_scale,
            "final_norm": jnp.ones(width),
            "layers": [layer() for _ in range(num_layers)],
        }

    def init_cache(self, batch_size: int, num_slots: int) -> Cache:
        """An empty float32 cache. `score` needs a free slot for each token it is given."""
        config = self.config
        shape = (batch_size, config.num_kv_heads, num_slots, config.head_dim)
        return Cache(
            layers=tuple(
                (jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))
                for _ in range(config.num_layers)
            ),
            lengths=jnp.zeros((batch_size,), jnp.int32),
        )

    def keep(self, cache: Cache, lengths: jax.Array) -> Cache:
        """Keep the first `lengths` (B,) tokens of each row."""
        return cache._replace(lengths=lengths.astype(jnp.int32))

    def score(
        self,
        params: Any,
        tokens: jax.Array,
        positions: jax.Array,
        cache: Cache,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache]:
        """Run new tokens after the kept ones; any number of them, a row at its own place.

        Args:
            params: `Model.params`.
            tokens: int32 (B, T).
            positions: int32 (B, T); without `mask` they follow on the kept tokens.
            cache: Its slots must suffice for kept and new tokens (and for one more, if there is
                one row with one token).
            mask: bool (B, T, T), which new tokens each new token sees; None is causal.

        Returns:
            Hidden states float32 (B, T, D), and the cache with the new tokens written, not kept.
        """
        if tokens.shape == (1, 1):
            # As a matrix-vector product XLA would copy every layer's cache; two rows are as fast.
            pair = [jnp.pad(x, ((0, 0), (0, 1)), mode="edge") for x in (tokens, positions)]
            if mask is not None:
                mask = jnp.pad(mask, ((0, 0), (0, 1), (0, 1)))
            hidden, cache = self.score(params, pair[0], pair[1], cache, mask)
            return hidden[:, :1], cache
        config = self.config
        local = _Reach(
            _rotary(positions, config.local_rope_base, config.head_dim),
            _visible(positions, cache, mask, config.sliding_window),
        )
        distant = _Reach(
            _rotary(positions, config.rope_base, config.head_dim), _visible(positions, cache, mask)
        )
        # Built once, not again in each layer.
        local, distant = jax.lax.optimization_barrier((local, distant))
        hidden = self.embed(params, tokens)
        layers = []
        for i, (layer, slots) in enumerate(zip(params["layers"], cache.layers, strict=True)):
            reach = distant if i in config.global_layers else local
            x = _rms_norm(hidden, layer["attention_norm"], config.norm_eps)
            x, slots = _attention(config, layer, x, slots, cache.lengths, reach)
            hidden += _rms_norm(x, layer["post_attention_norm"], config.norm_eps)
            x = _rms_norm(hidden, layer["mlp_norm"], config.norm_eps)
            gate, up = jnp.split(x @ layer["gate_up"], 2, axis=-1)
            x = (jax.nn.gelu(gate, approximate=True) * up) @ layer["down"]
            hidden += _rms_norm(x, layer["post_mlp_norm"], config.norm_eps)
            layers.append(slots)
        return hidden, Cache(tuple(layers), cache.lengths)

    def head(self, params: Any, hidden: jax.Array) -> jax.Array:
        """Logits float32 (..., V) of hidden states (..., D)."""
        hidden = _rms_norm(hidden, params["final_norm"], self.config.norm_eps)
        return row_products(hidden, params["embedding"])

    def embed(self, params: Any, tokens: jax.Array) -> jax.Array:
        """What `tokens` (...) are read as, float32 (..., D)."""
        return params["embedding"][tokens] * jnp.float32(self.config.embed_scale)

    def first_layers(
        self, params: Any, cache: Cache, num_layers: int
    ) -> tuple["Decoder", Any, Cache]:
        """The model that ends after its first layers, with its share of parameters and cache."""
        config = replace(self.config, num_layers=num_layers)
        params = {**params, "layers": params["layers"][:num_layers]}
        return Decoder(config), params, Cache(cache.layers[:num_layers], cache.lengths)

    def small_head(self, params: Any, ids: jax.Array) -> Any:
        """Parameters for `head` that give the logits of the tokens `ids` (K,) only."""
        return {"embedding": params["embedding"][ids], "final_norm": params["final_norm"]}


class _Reach(NamedTuple):
    """What a kind of layer sees: rotary (cos, sin) (B, T, 1, Dh/2) and slots bool (B, T, S)."""

    rotary: tuple[jax.Array, jax.Array]
    visible: jax.Array


def _attention(
    config: DecoderConfig,
    layer: dict[str, jax.Array],
    x: jax.Array,
    slots: tuple[jax.Array, jax.Array],
    lengths: jax.Array,
    reach: _Reach,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Attention of new tokens x (B, T, D) over the slots, themselves included."""
    batch, num_new, _ = x.shape
    num_heads, num_kv, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    group = num_heads // num_kv
    heads = (x @ layer["qkv"]).reshape(batch, num_new, num_heads + 2 * num_kv, head_dim)
    queries, keys, values = jnp.split(heads, [num_heads, num_heads + num_kv], axis=2)
    queries = _rotate(_rms_norm(queries, layer["query_norm"], config.norm_eps), *reach.rotary)
    keys = _rotate(_rms_norm(keys, layer["key_norm"], config.norm_eps), *reach.rotary)
    cached_keys, cached_values = (
        write_rows(cached, new.swapaxes(1, 2), lengths, axis=1)
        for cached, new in zip(slots, (keys, values), strict=True)
    )
    # The queries of a group share their keys: lay them out as rows of one matrix.
    queries = queries.swapaxes(1, 2).reshape(batch, num_kv, group * num_new, head_dim)
    visible = jnp.tile(reach.visible, (1, group, 1))[:, None]
    scores = jnp.einsum("bhqd,bhsd->bhqs", queries, cached_keys) * config.query_scale
    weights = jax.nn.softmax(jnp.where(visible, scores, MASKED), axis=-1)
    mixed = jnp.einsum("bhqs,bhsd->bhqd", weights, cached_values)
    mixed = mixed.reshape(batch, num_heads, num_new, head_dim).swapaxes(1, 2)
    return mixed.reshape(batch, num_new, -1) @ layer["out"], (cached_keys, cached_values)


def _visible(
    positions: jax.Array, cache: Cache, mask: jax.Array | None, window: int | None = None
) -> jax.Array:
    """Which slots each new token sees: bool (B, T, S)."""
    num_new, num_slots = positions.shape[1], cache.layers[0][0].shape[2]
    slot = jnp.arange(num_slots, dtype=jnp.int32)[None]
    kept = cache.lengths[:, None]
    new = jnp.clip(slot - kept, 0, num_new - 1)
    place = jnp.where(slot < kept, slot, jnp.take_along_axis(positions, new, axis=1))
    if mask is None:
        mask = jnp.broadcast_to(
            jnp.tri(num_new, dtype=bool)[None], (positions.shape[0], num_new, num_new)
        )
    is_new = ((slot >= kept) & (slot < kept + num_new))[:, None]
    visible = (slot < kept)[:, None] | (is_new & jnp.take_along_axis(mask, new[:, None], axis=2))
    if window is not None:
        visible &= place[:, None] > positions[:, :, None] - window
    return visible


def _rotary(positions: jax.Array, base: float, head_dim: int) -> tuple[jax.Array, jax.Array]:
    rates = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[:, :, None, None].astype(jnp.float32) * rates[None, None, None]
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary position embedding of x (B, T, H, Dh), its two halves being the two coordinates."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * jnp.expand_dims(weight, tuple(range(x.ndim - 1)))
