"""The decoding loop on device: draft, score, verify, commit, for rows that go their own ways.

It knows models and drafters only as protocols. The host calls `prefill` once for each request and
`decode_chunk` until no row is live; a chunk is a number of steps without a word to the host.

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
from speculax.drafting import Round, Target
from speculax.judged import Judged, blank_judged, look_into
from speculax.laws import Law
from speculax.log_probs import log_probs, top_log_probs
from speculax.make_law import law_from_logits
from speculax.opaque import from_pytree
from speculax.prefill import pick_position, read_missing
from speculax.rules import RULES, Keys, Rule
from speculax.settings import History, RowSettings, adjust, begin_history, extend_history
from speculax.types import NO_TOKEN, Draft, LanguageModel, Verdict
from speculax.verify.step import Step, ids_below

MOST_STEPS = 64  # of a chunk
PROPOSAL, ACCEPTANCE, DRAW, POSITION = range(4)  # streams of noise


class Requests(NamedTuple):
    """What the rows ask for.

    Attributes:
        limits: int32 (B,), the length a row may reach, its prompt included.
        seeds: uint32 (B,).
        settings: What they ask of laws, and what ends them.
    """

    limits: jax.Array
    seeds: jax.Array
    settings: RowSettings


class Plan(NamedTuple):
    """How a chunk is compiled; static.

    Attributes:
        rule: The rule that judges drafts.
        width: How many draft tokens a step has room for.
        step_width: How many tokens the model reads in each step, at least `width` + 1, so that
            all round alike; None for `width` + 1.
        is_recorded: Whether to report the probabilities of the draft tokens.
        num_top: How many of the likeliest tokens to report at each position; None for no
            log-probabilities at all.
    """

    rule: Rule
    width: int
    step_width: int | None = None
    is_recorded: bool = False
    num_top: int | None = None


class State(NamedTuple):
    """What the next step needs. Every array has rows as its first axis.

    Attributes:
        tokens: int32 (B, S), the committed tokens of each row, prompt included.
        lengths: int32 (B,), how many there are.
        live: bool (B,), which rows go on.
        failed: bool (B,), which rows stopped because their law could not be drawn from.
        history: What penalties and masks know of the committed tokens.
        cache: The model's, with all but the last committed token.
        hidden: (B, D), its hidden states at the last token in the cache.
        drafter: The drafter's own state.
    """

    tokens: jax.Array
    lengths: jax.Array
    live: jax.Array
    failed: jax.Array
    history: History
    cache: Any
    hidden: jax.Array
    drafter: Any


class TokenLogProbs(NamedTuple):
    """Log-probabilities of tokens under the target, natural logarithms.

    Results have NumPy arrays with one axis of tokens in place of `...`.

    Attributes:
        model: float32 (...), of each token under the model's own law: temperature 1, no settings.
        sampled: float32 (...), under the law it was drawn from, all settings applied; 0 for greedy
            requests.
        top_tokens: int32 (..., T), the likeliest tokens in its place by the model's own law, the
            likeliest first.
        top: float32 (..., T), their log-probabilities under it.
    """

    model: Any
    sampled: Any
    top_tokens: Any
    top: Any


class Steps(NamedTuple):
    """What happened in a step; of a chunk with another axis, of steps, in front.

    Attributes:
        live: bool (B,), whether the row took part.
        tokens: int32 (B, G+1), what it emitted, then -1: first the accepted drafts.
        drafted: int32 (B,), how many draft tokens it had.
        accepted: int32 (B,), how many of them it emitted.
        log_probs: Of the emitted tokens; None if not asked for.
        judged: None if not asked for.
    """

    live: jax.Array
    tokens: jax.Array
    drafted: jax.Array
    accepted: jax.Array
    log_probs: TokenLogProbs | None
    judged: Judged | None


class Report(NamedTuple):
    """What the host reads after a chunk.

    Attributes:
        live: bool (B,), which rows go on.
        failed: bool (B,), which rows stopped because their law could not be drawn from.
        hits: int32 (B,), draft tokens that held, or would have, had any been asked for.
        misses: int32 (B,), steps in which one did not, or none was found.
        steps: Step by step, `MOST_STEPS` of them; rows are live in those that were run.
    """

    live: jax.Array
    failed: jax.Array
    hits: jax.Array
    misses: jax.Array
    steps: Steps


@partial(jax.jit, static_argnames=("network", "num_slots"))
def prefill(
    params: Any,
    drafter: Any,
    prompts: jax.Array,
    prompt_lengths: jax.Array,
    requests: Requests,
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
        requests: What the rows ask for.
        network: The model; static.
        num_slots: Cache slots a row; static.
    """
    batch, known = prompts.shape[0], prompt_lengths - 1
    cache = network.init_cache(batch, num_slots)
    cache, hidden = read_missing(network, params, cache, jnp.zeros_like(known), prompts, known)
    proposer = from_pytree(drafter)
    return State(
        tokens=prompts,
        lengths=prompt_lengths,
        live=prompt_lengths < requests.limits,
        failed=jnp.zeros((batch,), bool),
        history=begin_history(requests.settings, prompts, prompt_lengths, network.vocab_size),
        cache=network.keep(cache, known),
        hidden=hidden,
        drafter=None if proposer is None else proposer.init(prompts, prompt_lengths),
    )


@partial(jax.jit, donate_argnums=0)
def insert(state: State, one: State, row: jax.Array) -> State:
    """The state with a row, int32 (), taken over by that of a single request."""
    return jax.tree.map(lambda rows, new: rows.at[row].set(new[0]), state, one)


@partial(jax.jit, static_argnames=("network", "plan"), donate_argnames=("state",))
def decode_chunk(
    params: Any,
    drafter: Any,
    state: State,
    requests: Requests,
    goes_on: jax.Array,
    draft_lengths: jax.Array,
    num_steps: jax.Array,
    *,
    network: LanguageModel,
    plan: Plan,
) -> tuple[State, Report]:
    """Run `num_steps` steps, or fewer if no row is live any more.

    Args:
        params: The model's parameters.
        drafter: The drafter as a pytree, None for plain decoding.
        state: Given away: its buffers are reused.
        requests: What the rows ask for.
        goes_on: bool (B,), which live rows the host wants to go on.
        draft_lengths: int32 (B,), how many tokens to draft for each row, at most the width.
        num_steps: int32 (), at most `MOST_STEPS`.
        network: The model; static.
        plan: How to compile it; static.
    """
    settings, width = requests.settings, plan.width
    state = state._replace(live=state.live & goes_on)

    def is_unfinished(carry: tuple) -> jax.Array:
        return (carry[0] < num_steps) & jnp.any(carry[1].live)

    def run_step(carry: tuple) -> tuple:
        i, state, learnt, log = carry
        state, (new, entry) = step(state)
        log = jax.tree.map(lambda all, one: all.at[i].set(one), log, entry)
        return i + 1, state, jax.tree.map(jnp.add, learnt, new), log

    def step(state: State) -> tuple[State, tuple[tuple[jax.Array, jax.Array], Steps]]:
        """One round: draft, score, verify, cut, commit."""
        lengths = state.lengths
        draft_length = max(width, 1)  # one at least: to learn whether drafting would pay
        round = Round(
            tokens=state.tokens,
            lengths=lengths,
            draft_length=draft_length,
            target=Target(network, params, state.cache, state.hidden),
            settings=settings,
            history=state.history,
            uniforms=_uniforms(requests.seeds, lengths, PROPOSAL, draft_length),
            seeds=requests.seeds if plan.rule.is_coupled else None,
            needs_laws=plan.rule.reads_draft,
        )
        proposal, drafter_state = _propose(from_pytree(drafter), state.drafter, round)
        room = requests.limits - lengths - 1  # the last place is the drawn token's
        asked = jnp.clip(jnp.minimum(draft_lengths, room), 0, width)
        draft = Draft(
            ids_below(network.vocab_size, proposal.tokens[:, :width]),
            jnp.clip(proposal.lengths, 0, asked),
            proposal.probs if width else None,
        )

        hidden, cache, logits = _score(network, params, round, draft, state.cache, plan)
        law = settings.law(adjust(settings, state.history, logits, draft.tokens))
        rule = plan.rule
        if settings.is_greedy and rule.becomes_greedy:
            rule = RULES["greedy"]
        verdict, seen = _verify(rule, draft, law, requests, lengths)
        judged = None
        if plan.is_recorded:
            judged = look_into(rule, seen, draft, law, verdict["num_accepted"])
        verdict, live, failed = _cut(verdict, state, requests)

        kept = verdict["num_accepted"]
        emitted = jnp.sum(verdict["tokens"] != NO_TOKEN, axis=1, dtype=jnp.int32)
        new_state = State(
            tokens=write_rows(state.tokens, verdict["tokens"], lengths),
            lengths=lengths + emitted,
            live=live,
            failed=failed,
            history=extend_history(settings, state.history, verdict["tokens"]),
            cache=network.keep(cache, lengths + emitted - 1),
            hidden=pick_position(hidden, jnp.maximum(emitted - 1, 0)),
            drafter=drafter_state,
        )
        entry = Steps(
            live=state.live,
            tokens=verdict["tokens"],
            drafted=draft.lengths,
            accepted=kept,
            log_probs=_log_probs(logits, law, verdict["tokens"], plan.num_top),
            judged=judged,
        )
        return new_state, (_learn(state.live, proposal, draft, asked, verdict), entry)

    nothing = jnp.zeros_like(state.lengths)
    carry = (
        jnp.int32(0),
        state,
        (nothing, nothing),
        _blank_steps(len(nothing), network.vocab_size, plan),
    )
    _, state, learnt, log = jax.lax.while_loop(is_unfinished, run_step, carry)
    return state, Report(state.live, state.failed, *learnt, log)


def _blank_steps(batch: int, vocab_size: int, plan: Plan) -> Steps:
    """The log of a chunk before its first step."""

    def zeros(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.zeros((MOST_STEPS, batch, *shape), dtype)

    log_probs = judged = None
    places = plan.width + 1
    if plan.num_top is not None:
        top = zeros(places, plan.num_top)
        log_probs = TokenLogProbs(zeros(places), zeros(places), top.astype(jnp.int32), top)
    if plan.is_recorded:
        judged = blank_judged(zeros, plan.width, vocab_size)
    return Steps(
        live=zeros(dtype=bool),
        tokens=zeros(places, dtype=jnp.int32),
        drafted=zeros(dtype=jnp.int32),
        accepted=zeros(dtype=jnp.int32),
        log_probs=log_probs,
        judged=judged,
    )


def _propose(drafter: Any, state: Any, round: Round) -> tuple[Draft, Any]:
    if drafter is None:
        nothing = jnp.zeros_like(round.lengths)
        return Draft(nothing[:, None], nothing), state
    proposal, state = drafter.propose(state, round)
    if not isinstance(proposal, Draft):
        raise TypeError(
            f"the drafter's propose must return a Draft and a state, got {type(proposal).__name__} "
            "first; return speculax.Draft(tokens, lengths, probs), state."
        )
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


def _score(
    network: LanguageModel, params: Any, round: Round, draft: Draft, cache: Any, plan: Plan
) -> tuple[jax.Array, Any, jax.Array]:
    """The model's hidden states (B, G+1, D), cache, and logits (B, G+1, V)."""
    num_used = plan.width + 1
    num_read = plan.step_width or num_used
    tokens = jnp.concatenate([round.pending[:, None], jnp.maximum(draft.tokens, 0)], axis=1)
    tokens = jnp.pad(tokens, ((0, 0), (0, num_read - num_used)))
    positions = round.lengths[:, None] - 1 + jnp.arange(num_read, dtype=jnp.int32)[None]
    hidden, cache = network.score(params, tokens, positions, cache)
    logits = network.head(params, hidden)
    if plan.step_width is not None:
        # Lest the compiler see that not all are used, and make the product a smaller one.
        logits = jax.lax.optimization_barrier(logits)[:, :num_used]
    return hidden, cache, logits


def _verify(
    rule: Rule, draft: Draft, law: Law, requests: Requests, lengths: jax.Array
) -> tuple[Verdict, Step]:
    """Judge the drafts by the target's laws; also what was judged, with its noise."""
    num_drafts = draft.tokens.shape[1]
    if rule.is_keyed and not rule.is_coupled:
        noise = _keyed_uniforms(requests.seeds, lengths, num_drafts + 1)
        own = jnp.take_along_axis(noise, draft.lengths[:, None], axis=1)
        accept_uniforms, sample_uniforms = noise[:, :num_drafts], own[:, 0]
    else:
        accept_uniforms = _uniforms(requests.seeds, lengths, ACCEPTANCE, num_drafts)
        sample_uniforms = _uniforms(requests.seeds, lengths, DRAW, 1)[:, 0]
    step = Step(draft.tokens, draft.lengths, accept_uniforms, sample_uniforms)
    keys = Keys(requests.seeds, lengths.astype(jnp.uint32))
    return rule.judge(step, draft, law, keys), step


def _log_probs(
    logits: jax.Array, law: Law, tokens: jax.Array, num_top: int | None
) -> TokenLogProbs | None:
    if num_top is None:
        return None
    own = law_from_logits(logits)
    return TokenLogProbs(
        log_probs(own, tokens).after, log_probs(law, tokens).after, *top_log_probs(own, num_top)
    )


def _cut(
    verdict: Verdict, state: State, requests: Requests
) -> tuple[Verdict, jax.Array, jax.Array]:
    """The verdict up to the row's end, which rows stay live, and which failed."""
    tokens, num_accepted = verdict["tokens"], verdict["num_accepted"]
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    is_made = tokens != NO_TOKEN
    ends = requests.settings.stop_ids
    is_end = jnp.any(tokens[:, :, None] == ends[:, None], axis=2) & is_made
    num_made = jnp.sum(is_made, axis=1, dtype=jnp.int32)
    first_end = jnp.argmax(is_end, axis=1).astype(jnp.int32)
    to_end = jnp.where(jnp.any(is_end, axis=1), first_end + 1, tokens.shape[1] + 1)
    end = jnp.minimum(jnp.minimum(num_made, to_end), requests.limits - state.lengths)
    end = jnp.where(state.live, end, 0).astype(jnp.int32)

    failed = state.live & (num_made == num_accepted) & (num_made < to_end)
    is_over = (end == to_end) | (state.lengths + end >= requests.limits) | failed
    verdict = {
        "num_accepted": jnp.minimum(num_accepted, end),
        "tokens": jnp.where(place < end[:, None], tokens, NO_TOKEN),
    }
    return verdict, state.live & ~is_over, state.failed | failed


def _learn(
    live: jax.Array, proposal: Draft, draft: Draft, asked: jax.Array, verdict: Verdict
) -> tuple[jax.Array, jax.Array]:
    """Hits and misses of a step, int32 (B,), in the rows that were live.

    Where drafts were asked for, hits are those kept, and a miss is a test that failed or a draft
    that came back empty. Where none was, the proposal counts as if one had been.
    """
    kept, first = verdict["num_accepted"], verdict["tokens"][:, 0]
    would_hold = (proposal.lengths > 0) & (proposal.tokens[:, 0] == first)
    hits = jnp.where(asked > 0, kept, would_hold.astype(jnp.int32))
    was_missed = jnp.where(asked > 0, (kept < draft.lengths) | (draft.lengths == 0), ~would_hold)
    return jnp.where(live, hits, 0), (live & was_missed).astype(jnp.int32)


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
