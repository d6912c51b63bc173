"""Drafting with a smaller language model: the original form of speculative decoding.

Leviathan, Kalman, Matias (arXiv:2211.17192); Chen et al. (arXiv:2302.01318). The draft model draws
its tokens one after another, with a cache of its own, under the settings of the request, and hands
over the laws it drew them from. G tokens take G small calls.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import Round, check_draft_length, check_ids, draft_chain, read_ids
from speculax.models.model import Model
from speculax.models.tokenizer import Tokenizer
from speculax.prefill import pick_position, read_missing
from speculax.types import NO_TOKEN, Draft


class Reading(NamedTuple):
    """What the draft model has read.

    Attributes:
        cache: Its cache.
        known: int32 (B,), how many committed tokens were in it at the last draft.
        drafted: int32 (B, G-1), the draft tokens that it read after those.
    """

    cache: Any
    known: jax.Array
    drafted: jax.Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["model", "ids"],
    meta_fields=["draft_length", "unknown"],
)
@dataclass(frozen=True, eq=False)
class DraftModel:
    """A drafter that draws from a language model. Costs `draft_length` of its calls a step.

    Past the end of the draft model's own context it proposes nothing.

    Attributes:
        model: The draft model.
        draft_length: The number of tokens proposed in every step, from 1 to 512.
        ids: int32 (V of the draft model,), which token of the target each of its tokens stands for,
            no two for the same; -1 for none. None if the vocabularies are the same.
        unknown: Its token to read in place of those of the target that it does not have; needed if
            there are any.

    Raises:
        ValueError: If `draft_length` is no integer in its range.
    """

    model: Model
    draft_length: int = 4
    ids: jax.Array | None = None
    unknown: int | None = None

    always_drafts = True

    def __post_init__(self) -> None:
        check_draft_length(self)
        read_ids(self)

    def check(self, target: Model) -> None:
        """Raise ValueError if the tokens do not mean the same, or the ids are no map of them."""
        given, wanted = self.model.network.vocab_size, target.network.vocab_size
        if self.ids is not None:
            check_ids(self.ids, given, target, allow_none=True)
            return self._check_unknown(target)
        own, others = self.model.tokenizer, target.tokenizer
        are_known = isinstance(own, Tokenizer) and isinstance(others, Tokenizer)
        if given != wanted or (are_known and own != others):
            raise ValueError(
                f"the draft model {self.model.name} ({given} tokens) and the target {target.name} "
                f"({wanted} tokens) must have the same vocabulary; choose another draft model, or "
                "pass ids, the target's token for each of its own."
            )

    def _check_unknown(self, target: Model) -> None:
        missing = np.setdiff1d(np.arange(target.network.vocab_size), np.asarray(self.ids))
        size = self.model.network.vocab_size
        if len(missing) and self.unknown not in range(size):
            raise ValueError(
                f"unknown must be the token of {self.model.name}, from 0 to {size - 1}, to read in "
                f"place of those of {target.name} that it does not have ({len(missing)}, such as "
                f"{missing[0]}), got {self.unknown}."
            )

    def init(self, tokens: jax.Array, lengths: jax.Array) -> Reading:
        """Read the prompts, all but the last token."""
        network = self.model.network
        batch, num_slots = tokens.shape
        cache, _ = read_missing(
            network,
            self.model.params,
            network.init_cache(batch, num_slots),
            jnp.zeros_like(lengths),
            tokens,
            lengths - 1,
            self._own,
        )
        nothing = jnp.full((batch, self.draft_length - 1), NO_TOKEN, jnp.int32)
        return Reading(cache, lengths - 1, nothing)

    def propose(self, state: Reading, round: Round) -> tuple[Draft, Reading]:
        """Draw tokens one after another.

        First the last two committed tokens are read: the last one is new for certain, and the one
        before it is if all of the last draft was accepted (its last token was never read). Reading
        it again changes nothing. If more are missing, because another drafter took a turn, they are
        read before.
        """
        network, params, lengths = self.model.network, self.model.params, round.lengths
        start = jnp.maximum(lengths - 2, 0)
        known = jnp.minimum(_count_known(state, round), lengths - 1)
        cache, _ = read_missing(network, params, state.cache, known, round.tokens, start, self._own)
        positions = start[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
        recent = self._own(jnp.take_along_axis(round.tokens, positions, axis=1))
        hidden, cache = network.score(params, recent, positions, network.keep(cache, start))
        hidden = pick_position(hidden, lengths - 1 - start)

        def advance(cache: Any, token: jax.Array, i: jax.Array) -> tuple[jax.Array, Any]:
            kept = lengths + i
            new = self._own(token)[:, None]
            hidden, cache = network.score(params, new, kept[:, None], network.keep(cache, kept))
            return self._logits(hidden[:, 0]), cache

        draft, cache = draft_chain(round, self._logits(hidden), cache, advance, self.ids)
        room = network.context_length + 1 - lengths
        draft = draft._replace(lengths=jnp.clip(room, 0, draft.lengths))
        missing = self.draft_length - round.draft_length
        read = jnp.pad(  # all but the last
            draft.tokens[:, :-1], ((0, 0), (0, missing)), constant_values=NO_TOKEN
        )
        return draft, Reading(cache, lengths, read)

    def _logits(self, hidden: jax.Array) -> jax.Array:
        """About the next token; those that the target does not have are left out."""
        logits = self.model.network.head(self.model.params, hidden)
        return logits if self.ids is None else jnp.where(self.ids[None] >= 0, logits, -jnp.inf)

    def _own(self, tokens: jax.Array) -> jax.Array:
        """The draft model's tokens for those of the target."""
        if self.ids is None:
            return tokens
        ids = jnp.expand_dims(self.ids, range(tokens.ndim))
        is_same = ids == tokens[..., None]
        own = jnp.argmax(is_same, axis=-1).astype(jnp.int32)
        return own if self.unknown is None else jnp.where(is_same.any(axis=-1), own, self.unknown)


def _count_known(state: Reading, round: Round) -> jax.Array:
    """How many committed tokens are in the cache: those at the last draft, and what held of it."""
    places = state.known[:, None] + jnp.arange(state.drafted.shape[1], dtype=jnp.int32)[None]
    inside = jnp.minimum(places, round.tokens.shape[1] - 1)
    holds = jnp.take_along_axis(round.tokens, inside, axis=1) == state.drafted
    holds &= places < round.lengths[:, None]
    held = jnp.cumprod(holds.astype(jnp.int32), axis=1)
    return state.known + jnp.sum(held, axis=1, dtype=jnp.int32)
