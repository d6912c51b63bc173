"""The decoder once more, from its formulas, in NumPy and float64: no cache, no batch, no fusion."""

import numpy as np

from speculax.models.config import DecoderConfig


def random_params(config: DecoderConfig, seed=0):
    """Weights of a size that keeps every layer's say."""
    rng = np.random.default_rng(seed)
    width, head_dim = config.hidden_size, config.head_dim
    num_heads, num_kv = config.num_heads, config.num_kv_heads

    def matrix(rows, columns):
        return (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)

    def norm(size):
        return (1 + 0.3 * rng.normal(size=size)).astype(np.float32)

    def layer():
        return {
            "attention_norm": norm(width),
            "qkv": matrix(width, (num_heads + 2 * num_kv) * head_dim),
            "query_norm": norm(head_dim),
            "key_norm": norm(head_dim),
            "out": matrix(num_heads * head_dim, width),
            "post_attention_norm": norm(width),
            "mlp_norm": norm(width),
            "gate_up": matrix(width, 2 * config.mlp_size),
            "down": matrix(config.mlp_size, width),
            "post_mlp_norm": norm(width),
        }

    return {
        "embedding": matrix(width, config.vocab_size).T.copy(),
        "final_norm": norm(width),
        "layers": [layer() for _ in range(config.num_layers)],
    }


def logits(config: DecoderConfig, params, tokens):
    """float64 (T, V) of one row of tokens (T,)."""
    params = _as_float64(params)
    positions = np.arange(len(tokens))
    hidden = params["embedding"][np.asarray(tokens)] * config.embed_scale
    for i, layer in enumerate(params["layers"]):
        is_global = i in config.global_layers
        x = _rms_norm(config, hidden, layer["attention_norm"])
        x = _attention(config, layer, x, positions, is_global)
        hidden = hidden + _rms_norm(config, x, layer["post_attention_norm"])
        x = _rms_norm(config, hidden, layer["mlp_norm"])
        gate = x @ layer["gate_up"][:, : config.mlp_size]
        up = x @ layer["gate_up"][:, config.mlp_size :]
        x = (_gelu(gate) * up) @ layer["down"]
        hidden = hidden + _rms_norm(config, x, layer["post_mlp_norm"])
    return _rms_norm(config, hidden, params["final_norm"]) @ params["embedding"].T


def _attention(config, layer, x, positions, is_global):
    num_heads, num_kv, dim = config.num_heads, config.num_kv_heads, config.head_dim
    base = config.rope_base if is_global else config.local_rope_base
    fused = x @ layer["qkv"]
    mixed = []
    for head in range(num_heads):
        shared = head // (num_heads // num_kv)  # consecutive heads share keys and values
        key_start = (num_heads + shared) * dim
        value_start = (num_heads + num_kv + shared) * dim
        query = _rms_norm(config, fused[:, head * dim : (head + 1) * dim], layer["query_norm"])
        key = _rms_norm(config, fused[:, key_start : key_start + dim], layer["key_norm"])
        value = fused[:, value_start : value_start + dim]
        scores = _rotate(query, positions, base) @ _rotate(key, positions, base).T
        scores = scores * config.query_scale
        distance = positions[:, None] - positions[None, :]
        is_seen = distance >= 0
        if not is_global:
            is_seen &= distance < config.sliding_window
        weights = np.exp(np.where(is_seen, scores - scores.max(axis=1, keepdims=True), -np.inf))
        mixed.append(weights / weights.sum(axis=1, keepdims=True) @ value)
    return np.concatenate(mixed, axis=1) @ layer["out"]


def _rotate(x, positions, base):
    """Coordinates i and i + dim / 2 turn together, by position * base ** (-2 i / dim)."""
    half = x.shape[1] // 2
    turned = np.empty_like(x)
    for i in range(half):
        angle = positions * base ** (-2 * i / x.shape[1])
        turned[:, i] = x[:, i] * np.cos(angle) - x[:, half + i] * np.sin(angle)
        turned[:, half + i] = x[:, i] * np.sin(angle) + x[:, half + i] * np.cos(angle)
    return turned


def _rms_norm(config, x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_eps) * weight


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _as_float64(tree):
    if isinstance(tree, dict):
        return {key: _as_float64(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_as_float64(value) for value in tree]
    return np.asarray(tree, np.float64)
