"""Drafting with a small recurrent head on the target's hidden states.

The head starts from the hidden state that the last committed token was drawn from, reads that
token, predicts the next one, and so on: a few matrices a token, and no cache. In the spirit of Li
et al., "EAGLE" (arXiv:2401.15077), whose head has attention, and Cheng et al., "Recurrent drafter"
(arXiv:2403.09919). The tokens it can propose are a small part of the vocabulary, as in Zhao et al.,
"FR-Spec" (arXiv:2502.14856): the output matrix is most of the cost.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import (
    Round,
    check_draft_length,
    check_ids,
    check_network,
    cut_head,
    draft_chain,
    read_ids,
)
from speculax.models.model import Model
from speculax.models.params import flat, nested
from speculax.types import Draft, LanguageModel

_EPS = 1e-6


class Embedding(LanguageModel, Protocol):
    """A language model that shows how it reads tokens."""

    def embed(self, params: Any, tokens: jax.Array) -> jax.Array:
        """What `tokens` (...) are read as, float32 (..., D)."""
        ...

    def small_head(self, params: Any, ids: jax.Array) -> Any:
        """Parameters for `head` that give the logits of the tokens `ids` int32 (K,) only."""
        ...


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "head", "ids"],
    meta_fields=["draft_length"],
)
@dataclass(frozen=True, eq=False)
class RecurrentHead:
    """A drafter trained for one target, whose hidden states it continues.

    Make one with `RecurrentHead.create` and train `params` (`examples/train_drafter.py`).

    Attributes:
        params: Its matrices, see `init_params`.
        head: Parameters of the target's head over the tokens it can propose.
        ids: int32 (K,), those tokens.
        draft_length: The number of tokens proposed in every step, from 1 to 512.
    """

    params: Any
    head: Any
    ids: jax.Array
    draft_length: int = 2

    always_drafts = True

    def __post_init__(self) -> None:
        check_draft_length(self)
        read_ids(self)

    @classmethod
    def create(cls, target: Model, params: Any, ids: Any, draft_length: int = 2) -> "RecurrentHead":
        """The drafter with the target's own head, cut to the tokens `ids` int (K,).

        Raises:
            ValueError: If they are no tokens of the target, or repeat.
        """
        return cls(params, *cut_head(target, ids), draft_length)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write its matrices and tokens to a `.safetensors` file, which `load` reads."""
        from safetensors.numpy import save_file

        tensors = {name: np.asarray(array) for name, array in flat(self.params).items()}
        num_layers = str(len(self.params["layers"]))
        save_file(tensors | {"ids": np.asarray(self.ids)}, path, {"head_layers": num_layers})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], target: Model, draft_length: int = 2
    ) -> "RecurrentHead":
        """The drafter that `save` wrote, for the target that it was trained for.

        Raises:
            ValueError: If the file has no such drafter, or its tokens are none of the target's.
            OSError: If it cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                num_layers = int((file.metadata() or {})["head_layers"])
                tensors: dict[str, Any] = {
                    name: jnp.asarray(file.get_tensor(name)) for name in list(file.keys())
                }
            ids = tensors.pop("ids")
        except (SafetensorError, KeyError) as error:
            raise ValueError(
                f"{path} must be a RecurrentHead written by save, it is something else."
            ) from error
        return cls.create(target, nested(tensors, num_layers), ids, draft_length)

    def check(self, target: Model) -> None:
        """Raise ValueError if it was made for other tokens or hidden states of another width."""
        check_ids(self.ids, len(self.ids), target, allow_none=False)
        check_network(self, target, "embed")
        tokens = jax.ShapeDtypeStruct((1,), jnp.int32)
        embed = cast(Embedding, target.network).embed
        width = jax.eval_shape(embed, target.params, tokens).shape[-1]
        wanted = self.params["layers"][0]["mix"].shape[0] // 2
        if width != wanted:
            raise ValueError(
                f"the RecurrentHead was trained for hidden states of width {wanted}, those of "
                f"{target.name} have width {width}; train one for it."
            )

    def init(self, tokens: jax.Array, lengths: jax.Array) -> tuple[()]:
        """No state: it starts from the target's hidden states."""
        return ()

    def propose(self, state: tuple[()], round: Round) -> tuple[Draft, tuple[()]]:
        """Draw tokens one after another."""
        target = round.target
        network = cast(Embedding, target.network)

        def advance(
            hidden: jax.Array, token: jax.Array, i: jax.Array | int
        ) -> tuple[jax.Array, jax.Array]:
            hidden = advance_hidden(self.params, hidden, network.embed(target.params, token))
            return network.head(self.head, hidden), hidden

        logits, hidden = advance(target.hidden, round.pending, 0)
        draft, _ = draft_chain(round, logits, hidden, advance, self.ids)
        return draft, state


def init_params(key: jax.Array, width: int, inner: int, num_layers: int = 1) -> dict[str, Any]:
    """Parameters to start training from: at first a hidden state is passed on as it is.

    Args:
        key: Of `jax.random`.
        width: The target's D.
        inner: The width inside a layer.
        num_layers: One or two; each takes another inner width.
    """
    layers = []
    for i, layer_key in enumerate(jax.random.split(key, num_layers)):
        rows = 2 * width if i == 0 else width
        mix = jax.random.normal(layer_key, (rows, 2 * inner), jnp.float32) * rows**-0.5
        layers.append({"mix": mix, "down": jnp.zeros((inner, width), jnp.float32)})
    return {"layers": layers, "skip": jnp.ones((width,), jnp.float32)}


def advance_hidden(params: dict[str, Any], hidden: jax.Array, embedded: jax.Array) -> jax.Array:
    """The hidden state (..., D) after a token, from that before it and the token's embedding."""
    x = jnp.concatenate([_normalize(hidden), _normalize(embedded)], axis=-1)
    hidden = _normalize(hidden) * jnp.expand_dims(params["skip"], range(hidden.ndim - 1))
    for layer in params["layers"]:
        gate, up = jnp.split(x @ layer["mix"], 2, axis=-1)
        hidden += (jax.nn.gelu(gate, approximate=True) * up) @ layer["down"]
        x = _normalize(hidden)
    return hidden


def _normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + _EPS)
