"""The decoding loop on device: draft, score, verify, commit, for rows that go their own ways.

It knows models and drafters only as protocols. The host calls `prefill` once and `decode_chunk`
until no row is live; a chunk is a fixed number of steps without a word to the host.

Noise is derived from a request's seed, the number of its committed tokens at the start of the step,
the index within the step and the stream (proposal, acceptance, draw): never from the row's place in
the batch, and no number is used in two steps. Rules whose noise is the text (coupled and sampled
verification) take seed and absolute position instead.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from speculax.batching import write_rows
from speculax.drafting import Round, Target, from_pytree
from speculax.laws import Law
from speculax.log_probs import log_probs
from speculax.make_law import law_from_logits
from speculax.prefill import pick_position, read_missing
from speculax.rules import RULES, Keys, Rule
from speculax.types import NO_TOKEN, Draft, LanguageModel, Verdict
from speculax.verify.step import Step, ids_below

STEPS_PER_CHUNK = 4
PROPOSAL, ACCEPTANCE, DRAW, POSITION = range(4)  # streams of noise


class Requests(NamedTuple):
    """What the rows ask for.

    Attributes:
        limits: int32 (B,), the length a row may reach, its prompt included.
        temperature: float32 (B,), 0 for greedy rows.
        seeds: uint32 (B,).
        eos_ids: int32 (E,), the tokens that end a row.
    """

    limits: jax.Array
    temperature: jax.Array
    seeds: jax.Array
    eos_ids: jax.Array


class State(NamedTuple):
    """What the next step needs.

    Attributes:
        tokens: int32 (B, S), the committed tokens of each row, prompt included.
        accepted: bool (B, S), which of them were accepted drafts.
        lengths: int32 (B,), how many there are.
        live: bool (B,), which rows go on.
        failed: bool (B,), which rows stopped because their law could not be drawn from.
        cache: The model's, with all but the last committed token.
        hidden: (B, D), its hidden states at the last token in the cache.
        drafter: The drafter's own state.
    """

    tokens: jax.Array
    accepted: jax.Array
    lengths: jax.Array
    live: jax.Array
    failed: jax.Array
    cache: Any
    hidden: jax.Array
    drafter: Any


class Counts(NamedTuple):
    """What happened in a chunk, after cutting.

    Attributes:
        steps: int32 (B,), steps in which the row was live.
        drafted: int32 (B, G), draft tokens judged, by place in the draft.
        accepted: int32 (B, G), draft tokens kept, by place in the draft.
        hits: int32 (B,), draft tokens that held, or would have, had any been asked for.
        misses: int32 (B,), steps in which one did not, or none was found.
    """

    steps: jax.Array
    drafted: jax.Array
    accepted: jax.Array
    hits: jax.Array
    misses: jax.Array


class Judged(NamedTuple):
    """The drafts of a chunk's steps, as the rule saw them; for those who want a record.

    Attributes:
        target_log_probs: float32 (STEPS_PER_CHUNK, B, G), of each draft token.
        draft_log_probs: The same, under the law it was drawn from; 0 for deterministic drafts.
        lengths: int32 (STEPS_PER_CHUNK, B), how many draft tokens there were.
        accepted: int32 (STEPS_PER_CHUNK, B), how many were kept.
    """

    target_log_probs: jax.Array
    draft_log_probs: jax.Array
    lengths: jax.Array
    accepted: jax.Array


class Report(NamedTuple):
    """What the host reads after a chunk: the parts of `State` it shows, and the chunk's counts.

    `judged` is None unless it was asked for.
    """

    tokens: jax.Array
    accepted: jax.Array
    lengths: jax.Array
    live: jax.Array
    failed: jax.Array
    counts: Counts
    judged: Judged | None


@partial(jax.jit, static_argnames=("network", "num_slots"))
def prefill(
    params: Any,
    drafter: Any,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    limits: jax.Array,
    *,
    network: LanguageModel,
    num_slots: int,
) -> State:
    """Read all but the last token of each prompt.

    Args:
        params: The model's parameters.
        drafter: The drafter as a pytree, or None.
        prompts: int32 (B, S), each row filled from the left.
        prompt_lengths: int32 (B,), at least 1.
        limits: int32 (B,), the length each row may reach.
        network: The model; static.
        num_slots: Cache slots a row; static.
    """
    batch, known = prompts.shape[0], prompt_lengths - 1
    cache = network.init_cache(batch, num_slots)
    cache, hidden = read_missing(network, params, cache, jnp.zeros_like(known), prompts, known)
    proposer = from_pytree(drafter)
    return State(
        tokens=prompts,
        accepted=jnp.zeros(prompts.shape, bool),
        lengths=prompt_lengths,
        live=prompt_lengths < limits,
        failed=jnp.zeros((batch,), bool),
        cache=network.keep(cache, known),
        hidden=hidden,
        drafter=None if proposer is None else proposer.init(prompts, prompt_lengths),
    )


@partial(
    jax.jit,
    static_argnames=("network", "rule", "width", "is_sampled", "is_recorded"),
    donate_argnames=("state",),
)
def decode_chunk(
    params: Any,
    drafter: Any,
    state: State,
    requests: Requests,
    draft_lengths: jax.Array,
    num_steps: jax.Array,
    *,
    network: LanguageModel,
    rule: Rule,
    width: int,
    is_sampled: bool,
    is_recorded: bool = False,
) -> tuple[State, Report]:
    """Run `num_steps` steps, or fewer if no row is live any more.

    Args:
        params: The model's parameters.
        drafter: The drafter as a pytree, None for plain decoding.
        state: Given away: its buffers are reused.
        requests: What the rows ask for.
        draft_lengths: int32 (B,), how many tokens to draft for each row, at most `width`.
        num_steps: int32 (), at most `STEPS_PER_CHUNK` if they are recorded.
        network: The model; static.
        rule: The rule that judges drafts; static.
        width: How many draft tokens the compiled step has room for; static.
        is_sampled: Whether any row has a temperature above 0; static.
        is_recorded: Whether to report the probabilities of the draft tokens; static.
    """
    zeros = jnp.zeros_like(state.lengths)
    by_place = jnp.zeros((*zeros.shape, width), jnp.int32)

    def is_unfinished(carry: tuple) -> jax.Array:
        return (carry[0] < num_steps) & jnp.any(carry[1].live)

    def run_step(carry: tuple) -> tuple:
        i, state, counts, judged = carry
        state, new_counts, new = step(state)
        judged = jax.tree.map(lambda all, one: all.at[i].set(one), judged, new)
        return i + 1, state, jax.tree.map(jnp.add, counts, new_counts), judged

    def step(state: State) -> tuple[State, Counts, Judged | None]:
        """One round: draft, score, verify, cut, commit."""
        lengths = state.lengths
        round = Round(
            tokens=state.tokens,
            lengths=lengths,
            draft_length=max(width, 1),  # one at least: to learn whether drafting would pay
            target=Target(network, params, state.cache, state.hidden),
            temperature=requests.temperature if is_sampled else None,
            uniforms=_uniforms(requests.seeds, lengths, PROPOSAL, max(width, 1)),
            seeds=requests.seeds if rule.is_coupled else None,
            needs_laws=rule.reads_draft,
        )
        proposal, drafter_state = _propose(from_pytree(drafter), state.drafter, round)
        room = requests.limits - lengths - 1  # the last place is the drawn token's
        asked = jnp.clip(jnp.minimum(draft_lengths, room), 0, width)
        draft = Draft(
            ids_below(network.vocab_size, proposal.tokens[:, :width]),
            jnp.clip(proposal.lengths, 0, asked),
            proposal.probs if width else None,
        )

        tokens = jnp.concatenate([round.pending[:, None], jnp.maximum(draft.tokens, 0)], axis=1)
        place = jnp.arange(width + 1, dtype=jnp.int32)[None]
        hidden, cache = network.score(params, tokens, lengths[:, None] - 1 + place, state.cache)
        law = _law(network.head(params, hidden), requests, is_sampled)
        verdict = _verify(rule, draft, law, requests, lengths, is_sampled)
        verdict, live, failed = _cut(verdict, state, requests)
        judged = _judged(draft, law, verdict) if is_recorded else None

        kept = verdict["num_accepted"]
        emitted = jnp.sum(verdict["tokens"] != NO_TOKEN, axis=1, dtype=jnp.int32)
        new_state = State(
            tokens=write_rows(state.tokens, verdict["tokens"], lengths),
            accepted=write_rows(state.accepted, place < kept[:, None], lengths),
            lengths=lengths + emitted,
            live=live,
            failed=failed,
            cache=network.keep(cache, lengths + emitted - 1),
            hidden=pick_position(hidden, jnp.maximum(emitted - 1, 0)),
            drafter=drafter_state,
        )
        return new_state, _count(state.live, proposal, draft, asked, verdict, emitted), judged

    blank = jnp.zeros((STEPS_PER_CHUNK, *by_place.shape), jnp.float32)
    none = jnp.zeros(blank.shape[:2], jnp.int32)
    judged = Judged(blank, blank, none, none) if is_recorded else None
    counts = Counts(zeros, by_place, by_place, zeros, zeros)
    carry = jnp.int32(0), state, counts, judged
    _, state, counts, judged = jax.lax.while_loop(is_unfinished, run_step, carry)
    shown = (state.tokens, state.accepted, state.lengths, state.live, state.failed)
    return state, Report(*shown, counts, judged)


def _propose(drafter: Any, state: Any, round: Round) -> tuple[Draft, Any]:
    if drafter is None:
        nothing = jnp.zeros_like(round.lengths)
        return Draft(nothing[:, None], nothing), state
    proposal, state = drafter.propose(state, round)
    shape = round.lengths.shape[0], round.draft_length
    _check_proposal(proposal, shape, round.target.network.vocab_size)
    return proposal, state


def _check_proposal(proposal: Draft, shape: tuple[int, int], vocab_size: int) -> None:
    """A drafter is other people's code; a wrong shape could broadcast into a wrong draft."""
    probs = proposal.probs
    wanted = (*shape, vocab_size)
    if isinstance(probs, Law) and probs.ids is not None:
        wanted = (*shape, probs.size)
    given = proposal.tokens.shape, proposal.lengths.shape, None if probs is None else probs.shape
    if given[:2] != (shape, shape[:1]) or given[2] not in (None, wanted):
        raise ValueError(
            f"the drafter must propose tokens of shape {shape}, lengths of shape {shape[:1]} and "
            f"probs of shape {(*shape, vocab_size)} or None, got {given[0]}, {given[1]} and "
            f"{given[2]}; draft round.draft_length tokens, and give probs over the target's "
            "vocabulary, or a Law with ids."
        )


def _law(logits: jax.Array, requests: Requests, is_sampled: bool) -> Law:
    """The target's laws (B, G+1, V) under the requests' settings."""
    return law_from_logits(logits, temperature=requests.temperature if is_sampled else 0.0)


def _verify(
    rule: Rule,
    draft: Draft,
    law: Law,
    requests: Requests,
    lengths: jax.Array,
    is_sampled: bool,
) -> Verdict:
    """Judge the drafts by the target's laws."""
    num_drafts = draft.tokens.shape[1]
    if not is_sampled and rule.becomes_greedy:
        rule = RULES["greedy"]
    if rule.is_keyed and not rule.is_coupled:
        noise = _keyed_uniforms(requests.seeds, lengths, num_drafts + 1)
        own = jnp.take_along_axis(noise, draft.lengths[:, None], axis=1)
        accept_uniforms, sample_uniforms = noise[:, :num_drafts], own[:, 0]
    else:
        accept_uniforms = _uniforms(requests.seeds, lengths, ACCEPTANCE, num_drafts)
        sample_uniforms = _uniforms(requests.seeds, lengths, DRAW, 1)[:, 0]
    step = Step(draft.tokens, draft.lengths, accept_uniforms, sample_uniforms)
    return rule.judge(step, draft, law, Keys(requests.seeds, lengths.astype(jnp.uint32)))


def _judged(draft: Draft, law: Law, verdict: Verdict) -> Judged:
    padded = jnp.pad(draft.tokens, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
    target = log_probs(law, padded).after[:, :-1]
    own = jnp.zeros_like(target)
    if draft.probs is not None:
        own = log_probs(draft.probs, draft.tokens).after
    return Judged(target, own, draft.lengths, verdict["num_accepted"])


def _cut(
    verdict: Verdict, state: State, requests: Requests
) -> tuple[Verdict, jax.Array, jax.Array]:
    """The verdict up to the row's end, which rows stay live, and which failed."""
    tokens, num_accepted = verdict["tokens"], verdict["num_accepted"]
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    is_made = tokens != NO_TOKEN
    is_eos = jnp.any(tokens[:, :, None] == requests.eos_ids[None, None], axis=2) & is_made
    num_made = jnp.sum(is_made, axis=1, dtype=jnp.int32)
    first_eos = jnp.argmax(is_eos, axis=1).astype(jnp.int32)
    to_eos = jnp.where(jnp.any(is_eos, axis=1), first_eos + 1, tokens.shape[1] + 1)
    end = jnp.minimum(jnp.minimum(num_made, to_eos), requests.limits - state.lengths)
    end = jnp.where(state.live, end, 0).astype(jnp.int32)

    failed = state.live & (num_made == num_accepted) & (num_made < to_eos)
    is_over = (end == to_eos) | (state.lengths + end >= requests.limits) | failed
    verdict = {
        "num_accepted": jnp.minimum(num_accepted, end),
        "tokens": jnp.where(place < end[:, None], tokens, NO_TOKEN),
    }
    return verdict, state.live & ~is_over, state.failed | failed


def _count(
    live: jax.Array,
    proposal: Draft,
    draft: Draft,
    asked: jax.Array,
    verdict: Verdict,
    emitted: jax.Array,
) -> Counts:
    """What happened in a step, in the rows that were live.

    Where drafts were asked for, hits are those kept, and a miss is a test that failed or a draft
    that came back empty. Where none was, the proposal counts as if one had been.
    """
    kept, first = verdict["num_accepted"], verdict["tokens"][:, 0]
    would_hold = (proposal.lengths > 0) & (proposal.tokens[:, 0] == first)
    hits = jnp.where(asked > 0, kept, would_hold.astype(jnp.int32))
    was_missed = jnp.where(asked > 0, (kept < draft.lengths) | (draft.lengths == 0), ~would_hold)
    # A row that ended inside its accepted drafts was not judged on the rest.
    judged = jnp.where(emitted > kept, draft.lengths, jnp.minimum(draft.lengths, kept))
    place = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)[None]
    counts = Counts(
        steps=jnp.ones_like(kept),
        drafted=place < judged[:, None],
        accepted=place < kept[:, None],
        hits=hits,
        misses=was_missed,
    )
    return jax.tree.map(
        lambda x: jnp.where(live.reshape((-1,) + (1,) * (x.ndim - 1)), x.astype(jnp.int32), 0),
        counts,
    )


def _uniforms(seeds: jax.Array, lengths: jax.Array, stream: int, count: int) -> jax.Array:
    """float32 (B, count) in [0, 1), multiples of 2**-24."""

    def draw(seed: jax.Array, length: jax.Array) -> jax.Array:
        key = jax.random.key(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, length), stream)
        bits = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32))(
            jnp.arange(count, dtype=jnp.uint32)
        )
        return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)

    return jax.vmap(draw)(seeds, lengths)


def _keyed_uniforms(seeds: jax.Array, starts: jax.Array, count: int) -> jax.Array:
    """float32 (B, count) in [0, 1), each a function of seed and position alone."""
    places = jnp.arange(count, dtype=jnp.int32)
    draw = jax.vmap(lambda i: _uniforms(seeds, starts + i, POSITION, 1)[:, 0], out_axes=1)
    return draw(places)
