"""What a drafter is told, and how it draws: the protocol between the loop and drafters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from speculax.batching import map_rows, number_rows
from speculax.coupling import coupled_draw
from speculax.flat_laws import argmax_row
from speculax.laws import Law, as_law, expand, flat_law, tokens_of
from speculax.sampling import sample
from speculax.settings import History, RowSettings, adjust
from speculax.types import Draft, LanguageModel

MAX_DRAFT_LENGTH = 512


class Target(NamedTuple):
    """The model whose text it is, for drafters that are built on it.

    Attributes:
        network: The model.
        params: Its parameters.
        cache: Its cache, with all but the last committed token of each row.
        hidden: (B, D), its hidden states at the last token in the cache, from which the last
            committed token was drawn; zeros in rows of a single token.
    """

    network: LanguageModel
    params: Any
    cache: Any
    hidden: jax.Array


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a drafter is told at the start of a step, and how it is to draw.

    Attributes:
        tokens: int32 (B, S), the committed tokens of each row, prompt included.
        lengths: int32 (B,), how many there are; at least 1.
        draft_length: The number of tokens to propose, G; not traced.
        target: The model whose text it is.
        settings: What the requests ask of laws: temperatures, cut-offs, penalties, masks.
        history: What the penalties and masks know of the committed tokens.
        uniforms: float32 (B, G) in [0, 1), independent noise for the draws.
        seeds: uint32 (B,), where draws are coupled with the target's; else None.
        needs_laws: Whether the rule that will judge asks for the draft's laws; not traced.
    """

    tokens: jax.Array
    lengths: jax.Array
    draft_length: int
    target: Target
    settings: RowSettings
    history: History
    uniforms: jax.Array
    seeds: jax.Array | None = None
    needs_laws: bool = True

    @property
    def pending(self) -> jax.Array:
        """The last committed token of each row, int32 (B,)."""
        return jnp.take_along_axis(self.tokens, self.lengths[:, None] - 1, axis=1)[:, 0]

    def adjust(
        self,
        logits: jax.Array,
        drafted: jax.Array,
        i: jax.Array | int,
        ids: jax.Array | None = None,
    ) -> jax.Array:
        """Logits (B, V) about draft token i with the requests' biases, penalties and masks.

        They know the committed tokens and the first i of `drafted` int32 (B, G). `ids` int32 (V,)
        says which token each entry stands for.
        """
        return adjust(self.settings, self.history, logits[:, None], drafted, i, ids)[:, 0]

    def law(self, logits: jax.Array, ids: jax.Array | None = None) -> Law:
        """The laws of adjusted logits (B, ..., V): temperatures and cut-offs of the requests."""
        return self.settings.law(logits, ids)

    def draw(self, law: Law, i: jax.Array | int) -> jax.Array:
        """Draft token i of each row from its law (B, V), int32 (B,); -1 where that is impossible.

        Independent of the target's draws, coupled with them, or the likeliest: as the rule that
        will judge the drafts wants it.
        """
        if self.settings.is_greedy:
            flat = flat_law(law)
            rows = number_rows(flat.num_rows, flat)
            return tokens_of(law, map_rows(partial(argmax_row, flat), rows))
        if self.seeds is not None:
            return coupled_draw(law, self.seeds, self.lengths + i)
        return sample(law, self.uniforms[:, i])


def write_out(draft: Draft, vocab_size: int) -> jax.Array:
    """The laws of a draft over the target's vocabulary, float32 (B, G, V), each row normalised."""
    if draft.probs is None:
        return jax.nn.one_hot(draft.tokens, vocab_size, dtype=jnp.float32)
    return expand(as_law("probs", draft.probs), vocab_size)


def cut_head(target: Any, ids: Any) -> tuple[Any, jax.Array]:
    """Parameters of the head of the `Model` target over some tokens, and those as int32 (K,).

    Raises:
        ValueError: If they are no tokens of the target, or repeat.
    """
    check_ids(ids, len(ids), target, allow_none=False)
    ids = jnp.asarray(ids, jnp.int32)
    return target.network.small_head(target.params, ids), ids


def check_network(drafter: Any, target: Any, part: str) -> None:
    """Raise ValueError unless the network of the `Model` target has a part that a drafter needs."""
    if not hasattr(target.network, part):
        raise ValueError(
            f"{type(drafter).__name__} needs a network with {part}, as Decoder has, and that of "
            f"{target.name} has none; choose another drafter."
        )


def check_draft_length(drafter: Any) -> None:
    """Raise ValueError unless `draft_length` of a frozen dataclass is in range; make it an int."""
    length = drafter.draft_length
    if not _is_draft_length(length, 1):
        raise ValueError(
            f"draft_length must be an integer from 1 to {MAX_DRAFT_LENGTH}, got {length!r}."
        )
    object.__setattr__(drafter, "draft_length", int(length))


def _is_draft_length(length: Any, least: int) -> bool:
    return isinstance(length, int | np.integer) and bool(least <= length <= MAX_DRAFT_LENGTH)


def read_ids(drafter: Any) -> None:
    """Make the `ids` of a frozen dataclass an array if they are a list."""
    if isinstance(drafter.ids, list | tuple):
        ids = np.asarray(drafter.ids)
        is_int = ids.dtype.kind in "iu"
        object.__setattr__(drafter, "ids", ids.astype(np.int32) if is_int else ids)


def check_ids(ids: Any, num_entries: int, target: Any, *, allow_none: bool) -> None:
    """Raise ValueError unless ids say which token of the `Model` target each entry stands for.

    Args:
        ids: int (K,), no token twice.
        num_entries: K.
        target: The target.
        allow_none: Whether -1 may stand for none: only where such entries are given no mass.
    """
    ids, size = np.asarray(ids), target.network.vocab_size
    if ids.shape != (num_entries,) or ids.dtype.kind not in "iu":
        raise ValueError(
            f"ids must be integers of shape ({num_entries},), one for each token that can be "
            f"proposed, got {ids.dtype} {ids.shape}."
        )
    taken = ids[ids >= 0]
    or_none = ", or -1 for none" if allow_none else ""
    if len(taken) == 0 or taken.max() >= size or not (allow_none or len(taken) == len(ids)):
        wrong = taken.max() if len(taken) and taken.max() >= size else ids.min()
        raise ValueError(
            f"ids must be tokens of {target.name}, from 0 to {size - 1}{or_none}, got {wrong}."
        )
    if len(np.unique(taken)) < len(taken):
        raise ValueError(
            "ids must name a token of the target at most once, or the law of the draft would not "
            f"be what was drawn from{'; use -1 for none' if allow_none else ''}."
        )


class Drafter(Protocol):
    """A cheap proposer; hashable and static, or a pytree whose arrays are traced.

    Rolling back what was rejected, and reading what its own cache lacks, is the drafter's own
    business: at the start of each step it is shown the committed tokens.

    A drafter may also have `always_drafts = True`, which asks it for `draft_length` tokens in every
    step in place of adapting to what holds; `check(target: Model)`, called once before the work
    begins, which raises ValueError if the two do not go together; and `remember(tokens)`, which
    gives the drafter to go on with after a request whose prompt and text are `tokens` int32 (N,).
    """

    @property
    def draft_length(self) -> int:
        """The most tokens it proposes in a step."""
        ...

    def init(self, tokens: jax.Array, lengths: jax.Array) -> Any:
        """The state for rows whose first `lengths` (B,) entries of `tokens` (B, S) are prompts.

        Every array in it has rows as its first axis. S is the most tokens a row will ever have, and
        room for a draft.
        """
        ...

    def propose(self, state: Any, round: Round) -> tuple[Draft, Any]:
        """Propose up to `round.draft_length` tokens a row."""
        ...


def check_drafter(drafter: Any, target: Any) -> None:
    """Raise ValueError if this is no drafter, or not one for the `Model` target."""
    parts = ("draft_length", "init", "propose")
    if isinstance(drafter, type) or not all(hasattr(drafter, part) for part in parts):
        given = drafter if isinstance(drafter, type | str | int) else type(drafter).__name__
        advice = "; make one of the model, DraftModel(model)" if hasattr(drafter, "network") else ""
        raise ValueError(
            f"drafter must be None or a drafter such as NGram(), with {', '.join(parts)}, got "
            f"{given!r}{advice}."
        )
    length = drafter.draft_length
    if not _is_draft_length(length, 0):
        raise ValueError(
            f"a drafter's draft_length must be an integer from 0 to {MAX_DRAFT_LENGTH}, got "
            f"{length!r}."
        )
    if jax.tree_util.all_leaves([drafter]):
        try:
            hash(drafter)
        except TypeError:
            raise ValueError(
                f"a drafter must be hashable, or a pytree if it has arrays, and {drafter!r} is "
                "neither; register it with jax.tree_util.register_dataclass."
            ) from None
    if hasattr(drafter, "check"):
        drafter.check(target)


def draft_chain(
    round: Round,
    logits: jax.Array,
    state: Any,
    advance: Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]],
    ids: jax.Array | None = None,
) -> tuple[Draft, Any]:
    """Draw draft tokens one after another from a model.

    Args:
        round: What to draw for.
        logits: float32 (B, V), about the first draft token.
        state: What `advance` needs.
        advance: `advance(state, token, i) -> (logits, state)`, where `token` int32 (B,) is draft
            token i, counted from 0, and the logits are about the next one.
        ids: int32 (V,), which token of the target each entry of the logits stands for.

    Returns:
        The draft, all of it, with its laws if they are needed, and the last state: after all draft
        tokens but the last.
    """
    batch, size = logits.shape
    length = round.draft_length
    needs_laws = round.needs_laws and not round.settings.is_greedy

    def draw(i: jax.Array | int, logits: jax.Array, drawn: Any) -> tuple[jax.Array, Any]:
        logits = round.adjust(logits, drawn[0], i, ids)
        law = round.law(logits, ids)
        if needs_laws:
            law = law.normalize()
        token = round.draw(law, i)
        new = token, (logits, law.normalizers) if needs_laws else None
        return token, jax.tree.map(lambda all, one: all.at[:, i].set(one), drawn, new)

    def turn(i: jax.Array, carry: tuple) -> tuple:
        token, state, drawn = carry
        logits, state = advance(state, jnp.maximum(token, 0), i - 1)
        token, drawn = draw(i, logits, drawn)
        return token, state, drawn

    one = jax.eval_shape(lambda: round.law(logits, ids).normalize().normalizers)
    drawn = (
        jnp.zeros((batch, length), jnp.int32),
        (
            jnp.zeros((batch, length, size), logits.dtype),
            jax.tree.map(lambda x: jnp.zeros((batch, length), x.dtype), one),
        )
        if needs_laws
        else None,
    )
    token, drawn = draw(0, logits, drawn)
    _, state, (tokens, laws) = jax.lax.fori_loop(1, length, turn, (token, state, drawn))
    lengths = jnp.full((batch,), length, jnp.int32)
    if laws is None:
        return Draft(tokens, lengths), state
    table, normalizers = laws
    return Draft(tokens, lengths, replace(round.law(table, ids), normalizers=normalizers)), state
