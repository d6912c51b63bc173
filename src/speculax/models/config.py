"""The numbers that describe a decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and constants of a decoder-only language model; hashable, so static under jit.

    Attributes:
        vocab_size: Number of token ids V.
        hidden_size: Width of the residual stream D.
        num_layers: Number of layers.
        num_heads: Query heads H.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of one head; even.
        mlp_size: Inner width of the gated MLP F.
        context_length: Most positions the model was made for, in tokens.
        norm_eps: Added to the mean square inside each RMS norm.
        query_scale: Factor on query-key products.
        embed_scale: Factor on embedding rows at the input.
        rope_base: Rotary base of the global layers.
        local_rope_base: Rotary base of the local layers.
        sliding_window: Positions a local layer sees, the token's own included.
        global_layers: Indices of the layers that see the whole context.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    context_length: int
    norm_eps: float
    query_scale: float
    embed_scale: float
    rope_base: float
    local_rope_base: float
    sliding_window: int
    global_layers: tuple[int, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "DecoderConfig":
        """The config whose fields went through JSON, which has lists in place of tuples."""
        return cls(**{**values, "global_layers": tuple(values["global_layers"])})
