"""What requests ask of the laws they are drawn from, applied at every position of a draft.

The history that a position really has is the committed tokens and the draft tokens before it. Only
of the former are counts kept, (B, V); what the latter change is a few entries of each row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speculax.laws import Law
from speculax.make_law import law_from_logits
from speculax.token_mask import MaskedRows
from speculax.types import NO_TOKEN


class RowSettings(NamedTuple):
    """The settings of a batch of rows; what is None is off in all of them, and costs nothing.

    Attributes:
        stop_ids: int32 (B, E), the tokens that end a row; -1 for none.
        temperature: float32 (B,), 0 for greedy rows; None if all are.
        top_k: int32 (B,).
        top_p: float32 (B,).
        min_p: float32 (B,).
        is_joint: bool (B,), whether the cut-offs look at the same law; else one after another.
        repetition_penalty: float32 (B,), above 0; for tokens of prompt or text.
        presence_penalty: float32 (B,), for tokens of the text.
        frequency_penalty: float32 (B,), for each time that a token is in the text.
        bias: float32 (B, V).
        masks: Which tokens may come next.
    """

    stop_ids: jax.Array
    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    is_joint: jax.Array | None = None
    repetition_penalty: jax.Array | None = None
    presence_penalty: jax.Array | None = None
    frequency_penalty: jax.Array | None = None
    bias: jax.Array | None = None
    masks: MaskedRows | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether all rows are; not traced."""
        return self.temperature is None

    @property
    def has_penalties(self) -> bool:
        """Whether any row has a penalty; not traced."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return any(penalty is not None for penalty in penalties)

    def law(self, logits: jax.Array, ids: jax.Array | None = None) -> Law:
        """The laws of adjusted logits (B, ..., V): temperature and cut-offs."""
        if self.temperature is None:
            return law_from_logits(logits, temperature=0.0, ids=ids)
        return law_from_logits(
            logits,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            order="sequential" if self.is_joint is None else self.is_joint,
            ids=ids,
        )


class History(NamedTuple):
    """What is kept of the committed tokens for the settings; None where no row needs it.

    Attributes:
        counts: int32 (B, V), how often each token is in the text, the prompt apart.
        in_prompt: bool (B, V), which tokens are in the prompt.
        mask_states: A pytree, where the token masks stand.
    """

    counts: jax.Array | None
    in_prompt: jax.Array | None
    mask_states: Any


def begin_history(
    settings: RowSettings, prompts: jax.Array, lengths: jax.Array, vocab_size: int
) -> History:
    """That of rows that have their prompts only, int32 (B, S) of which `lengths` (B,) count."""
    counts = in_prompt = None
    if settings.has_penalties:
        counts = jnp.zeros((prompts.shape[0], vocab_size), jnp.int32)
    if settings.repetition_penalty is not None:
        is_prompt = jnp.arange(prompts.shape[1], dtype=jnp.int32)[None] < lengths[:, None]
        tokens = jnp.where(is_prompt, prompts, vocab_size)
        rows = jnp.zeros((prompts.shape[0], vocab_size), bool)
        in_prompt = _at_tokens(rows, tokens).set(True, mode="drop")
    masks = settings.masks
    return History(counts, in_prompt, None if masks is None else masks.init())


def extend_history(settings: RowSettings, history: History, tokens: jax.Array) -> History:
    """With new tokens int32 (B, T) committed; -1 for none."""
    counts, states = history.counts, history.mask_states
    if counts is not None:
        counts = _at_tokens(counts, _drop(tokens, counts.shape[1])).add(1, mode="drop")
    if settings.masks is not None:
        states, _ = jax.lax.scan(
            lambda states, token: (_advance(settings, states, token), None), states, tokens.T
        )
    return History(counts, history.in_prompt, states)


def adjust(
    settings: RowSettings,
    history: History,
    logits: jax.Array,
    drafts: jax.Array,
    first: jax.Array | int = 0,
    ids: jax.Array | None = None,
) -> jax.Array:
    """Logits with bias, penalties and masks; the same array if there are none.

    In this order, which is that of vLLM and transformers: bias; repetition penalty, which divides
    logits above 0 and multiplies those below; frequency and presence penalty, which are subtracted;
    masks. Time is that of writing the logits once.

    Args:
        settings: Of the rows.
        history: Of the rows.
        logits: float32 (B, N, V), about the tokens after the first `first`, `first` + 1, ...
            draft tokens.
        drafts: int32 (B, G), the draft tokens, G at least `first` + N - 1; those that are later
            do not count.
        first: How many draft tokens are before the first logits.
        ids: int32 (V,), which token each entry of the logits stands for; -1 for none.
    """
    if settings.bias is not None:
        bias = settings.bias if ids is None else settings.bias[:, jnp.maximum(ids, 0)]
        logits += bias[:, None]
    if history.counts is not None:
        logits = _penalize(settings, history, logits, drafts, first, ids)
    if settings.masks is not None:
        allowed = _allowed(settings, history.mask_states, drafts, first, logits.shape[1])
        if ids is not None:
            allowed = allowed[..., jnp.maximum(ids, 0)]
        logits = jnp.where(allowed, logits, -jnp.inf)
    return logits


def _penalize(
    settings: RowSettings,
    history: History,
    logits: jax.Array,
    drafts: jax.Array,
    first: jax.Array | int,
    ids: jax.Array | None,
) -> jax.Array:
    """By what was committed, and then once more the entries of the draft tokens that count."""
    batch, num, size = logits.shape
    counts, in_prompt = history.counts, history.in_prompt
    assert counts is not None
    entries = drafts
    if ids is not None:
        counts = jnp.where(ids[None] >= 0, counts[:, jnp.maximum(ids, 0)], 0)
        if in_prompt is not None:
            in_prompt = in_prompt[:, jnp.maximum(ids, 0)]
        is_entry = (ids[None, None] == drafts[:, :, None]) & (drafts[:, :, None] >= 0)
        found = jnp.argmax(is_entry, axis=2).astype(jnp.int32)
        entries = jnp.where(jnp.any(is_entry, axis=2), found, NO_TOKEN)
    place = jnp.arange(drafts.shape[1], dtype=jnp.int32)
    number = first + jnp.arange(num, dtype=jnp.int32)
    counts_here = (place[None] < number[:, None])[None] & (entries >= 0)[:, None]  # (B, N, G)
    same = (entries[:, :, None] == entries[:, None, :])[:, None]  # (B, 1, G, G)
    drafted = jnp.sum(same & counts_here[:, :, None, :], axis=3, dtype=jnp.int32)

    safe = jnp.maximum(entries, 0)
    in_rows = jnp.arange(batch, dtype=jnp.int32)[:, None]
    old = logits[
        in_rows[:, :, None], jnp.arange(num, dtype=jnp.int32)[None, :, None], safe[:, None]
    ]
    known = None if in_prompt is None else in_prompt[in_rows, safe][:, None]
    new = _penalized(settings, old, counts[in_rows, safe][:, None] + drafted, known)

    whole = None if in_prompt is None else in_prompt[:, None]
    logits = _penalized(settings, logits, counts[:, None], whole)
    target = jnp.where(counts_here, safe[:, None], size)
    flat = logits.reshape(batch * num, size)
    flat = _at_tokens(flat, target.reshape(batch * num, -1)).set(
        new.reshape(batch * num, -1), mode="drop"
    )
    return flat.reshape(batch, num, size)


def _penalized(
    settings: RowSettings, logits: jax.Array, counts: jax.Array, in_prompt: jax.Array | None
) -> jax.Array:
    """Logits (B, N, K) of entries that are so often in the text, and perhaps in the prompt."""
    if settings.repetition_penalty is not None:
        penalty = settings.repetition_penalty[:, None, None]
        is_known = counts > 0 if in_prompt is None else (counts > 0) | in_prompt
        smaller = jnp.where(logits > 0, logits / penalty, logits * penalty)
        logits = jnp.where(is_known, smaller, logits)
    if settings.frequency_penalty is not None:
        logits -= settings.frequency_penalty[:, None, None] * counts.astype(jnp.float32)
    if settings.presence_penalty is not None:
        logits -= jnp.where(counts > 0, settings.presence_penalty[:, None, None], 0.0)
    return logits


def _allowed(
    settings: RowSettings, states: Any, drafts: jax.Array, first: jax.Array | int, num: int
) -> jax.Array:
    """Which tokens may come after the first `first`, ... draft tokens: bool (B, N, V)."""
    masks = settings.masks
    assert masks is not None
    if not isinstance(first, int) or first > 0:
        states = jax.lax.fori_loop(
            0, first, lambda i, states: _advance(settings, states, drafts[:, i]), states
        )

    def read(states: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        allowed = masks.allowed(states)
        token = drafts[:, jnp.minimum(first + i, drafts.shape[1] - 1)]
        return _advance(settings, states, token), allowed

    if num == 1:
        return masks.allowed(states)[:, None]
    return jax.lax.scan(read, states, jnp.arange(num, dtype=jnp.int32))[1].swapaxes(0, 1)


def _advance(settings: RowSettings, states: Any, token: jax.Array) -> Any:
    """Past one token a row, int32 (B,); what ends a row is not shown to the masks."""
    assert settings.masks is not None
    is_shown = (token >= 0) & ~jnp.any(settings.stop_ids == token[:, None], axis=1)
    return settings.masks.advance(states, token, is_shown)


def _drop(tokens: jax.Array, size: int) -> jax.Array:
    """Tokens as indices, with those that are none where `mode="drop"` leaves them out."""
    return jnp.where(tokens >= 0, tokens, size)


def _at_tokens(rows: jax.Array, tokens: jax.Array) -> Any:
    return rows.at[jnp.arange(rows.shape[0], dtype=jnp.int32)[:, None], tokens]
