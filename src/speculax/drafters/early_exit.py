"""Drafting with the first layers of the target itself, which share its weights and its cache.

Self-speculative decoding: Zhang et al., "Draft & Verify" (arXiv:2309.08168), skips layers; Elhoushi
et al., "LayerSkip" (arXiv:2404.16710), leaves early, as here. A target that was not trained for it
agrees with its own first layers only if there are many of them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import jax
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
from speculax.types import Draft, LanguageModel


class Layered(LanguageModel, Protocol):
    """A language model that can be left early."""

    @property
    def num_layers(self) -> int:
        """How many layers it has."""
        ...

    def first_layers(
        self, params: Any, cache: Any, num_layers: int
    ) -> tuple[LanguageModel, Any, Any]:
        """The model that ends after its first layers, with its share of parameters and cache."""
        ...

    def small_head(self, params: Any, ids: jax.Array) -> Any:
        """Parameters for `head` that give the logits of the tokens `ids` int32 (K,) only."""
        ...


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["head", "ids"],
    meta_fields=["num_layers", "draft_length"],
)
@dataclass(frozen=True, eq=False)
class EarlyExit:
    """A drafter that draws from what the target's head says after its first layers.

    For targets whose network is `Layered`, as `Decoder` is. A draft token costs the share of the
    layers, and the head: with a large vocabulary that is much of the model, and a smaller head
    (`EarlyExit.with_vocabulary`) pays. The cache of those layers is copied in each step.

    Attributes:
        num_layers: How many layers to run, from 1.
        draft_length: The number of tokens proposed in every step, from 1 to 512.
        head: Parameters of a head over some of the tokens; None for the target's own.
        ids: int32 (K,), those tokens.
    """

    num_layers: int
    draft_length: int = 2
    head: Any = None
    ids: jax.Array | None = None

    always_drafts = True

    def __post_init__(self) -> None:
        check_draft_length(self)
        read_ids(self)

    @classmethod
    def with_vocabulary(
        cls, target: Model, ids: Any, num_layers: int, draft_length: int = 2
    ) -> "EarlyExit":
        """A drafter that proposes only the tokens `ids` int (K,), at the cost of a head for them.

        Raises:
            ValueError: If they are no tokens of the target, or repeat.
        """
        return cls(num_layers, draft_length, *cut_head(target, ids))

    def check(self, target: Model) -> None:
        """Raise ValueError if the target does not have those layers."""
        check_network(self, target, "first_layers")
        most = cast(Layered, target.network).num_layers
        if not isinstance(self.num_layers, int | np.integer) or not 1 <= self.num_layers <= most:
            raise ValueError(
                f"num_layers must be from 1 to the {most} layers of {target.name}, got "
                f"{self.num_layers!r}."
            )
        if (self.ids is None) != (self.head is None):
            raise ValueError("head and ids go together; use EarlyExit.with_vocabulary.")
        if self.ids is not None:
            check_ids(self.ids, len(self.ids), target, allow_none=False)

    def init(self, tokens: jax.Array, lengths: jax.Array) -> tuple[()]:
        """No state: what it needs is in the target's cache."""
        return ()

    def propose(self, state: tuple[()], round: Round) -> tuple[Draft, tuple[()]]:
        """Draw tokens one after another, each read by the first layers in a copy of their cache."""
        target, lengths = round.target, round.lengths
        network, params, cache = cast(Layered, target.network).first_layers(
            target.params, target.cache, self.num_layers
        )
        head = params if self.head is None else self.head

        def read(cache: Any, token: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
            cache = network.keep(cache, position)
            hidden, cache = network.score(params, token[:, None], position[:, None], cache)
            return network.head(head, hidden[:, 0]), cache

        logits, cache = read(cache, round.pending, lengths - 1)
        draft, _ = draft_chain(
            round, logits, cache, lambda cache, token, i: read(cache, token, lengths + i), self.ids
        )
        return draft, state
