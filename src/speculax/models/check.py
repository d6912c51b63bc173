"""Whether a network of somebody's own does what the loop relies on, by shapes and types alone."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from speculax.models.model import Model


def check_model(model: Any) -> None:
    """Raise ValueError if this is no model."""
    if not isinstance(model, Model):
        raise ValueError(
            f"model must be a Model, as speculax.load gives one, got {type(model).__name__}; of a "
            "network of your own make one with speculax.Model(network, params)."
        )


def check_network(model: Model) -> None:
    """Raise ValueError if the functions of a model give something else than they should.

    Nothing is computed; a network is traced once for each shape of its weights.
    """
    leaves, structure = jax.tree.flatten(model.params)
    types = tuple(jax.ShapeDtypeStruct(jnp.shape(x), jax.dtypes.result_type(x)) for x in leaves)
    _check_network(model.network, model.name, structure, types)


@lru_cache(maxsize=256)
def _check_network(network: Any, name: str, structure: Any, types: tuple[Any, ...]) -> None:
    params = jax.tree.unflatten(structure, types)
    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    cache = jax.eval_shape(lambda: network.init_cache(1, 4))
    hidden, written = jax.eval_shape(network.score, params, tokens, tokens, cache)
    _require(hidden.shape[:2] == (1, 2), name, "score", "hidden states (B, T, D)", hidden)
    logits = jax.eval_shape(network.head, params, hidden)
    wanted = jax.ShapeDtypeStruct((1, 2, network.vocab_size), jnp.float32)
    _require(_same(logits, wanted), name, "head", "float32 (B, T, vocab_size)", logits)
    kept = jax.eval_shape(network.keep, written, jax.ShapeDtypeStruct((1,), jnp.int32))
    for function, made in (("score", written), ("keep", kept)):
        is_cache = jax.tree.structure(made) == jax.tree.structure(cache) and all(
            map(_same, jax.tree.leaves(made), jax.tree.leaves(cache))
        )
        _require(is_cache, name, function, "a cache like that of init_cache", made)


def _same(one: Any, other: Any) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _require(holds: bool, name: str, function: str, expected: str, given: Any) -> None:
    if not holds:
        shown = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", given)
        raise ValueError(
            f"{function} of the network of {name} must give {expected}, for B = 1 and T = 2 it "
            f"gives {shown}; see docs/your-model.md."
        )
