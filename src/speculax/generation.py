"""Generation as people call it: prompts in, results out; the work is done by the loop on device."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from speculax.clock import Clock
from speculax.draft_length import DraftLength, draft_widths
from speculax.drafting import Drafter, as_pytree, check_drafter
from speculax.loop import STEPS_PER_CHUNK, Report, Requests, decode_chunk, prefill
from speculax.models.model import Model
from speculax.request import Prompt, Request, is_single, read_eos_ids, read_requests
from speculax.rules import Rule, as_rule
from speculax.stats import Stats

CHUNK_SECONDS, MOST_STEPS = 0.02, 64  # chunks grow until they take so long, or have so many steps


class NewTokens(NamedTuple):
    """Tokens that one request got in a chunk.

    Attributes:
        request: Its place in the list of prompts.
        tokens: The token ids.
        accepted: For each, whether it is an accepted draft (else the target drew it).
    """

    request: int
    tokens: list[int]
    accepted: list[bool]


class Record(NamedTuple):
    """The draft tokens of each step as the rule saw them, those after the first refused included.

    Attributes:
        target_probs: float32 (steps, G), under the target; 0 behind a draft's end.
        draft_probs: float32 (steps, G), under the law each was drawn from, 1 for deterministic
            drafts and where the rule does not ask for the law; 0 behind a draft's end.
        accepted: int32 (steps,), how many were kept.
    """

    target_probs: np.ndarray
    draft_probs: np.ndarray
    accepted: np.ndarray


@dataclass(frozen=True, eq=False)
class Generation:
    """What became of one request.

    Attributes:
        text: The new text, without the prompt; None if the model has no tokenizer.
        tokens: int32 (N,), the new tokens, an end token included.
        accepted: bool (N,), which of them are accepted drafts (else the target drew them).
        stop_reason: "eos", "length", or "interrupted" if it was cut short.
        seed: The seed, for making the same tokens again.
        stats: Counts, rates and times.
        record: The probabilities of the draft tokens, if they were asked for.
    """

    text: str | None
    tokens: np.ndarray
    accepted: np.ndarray
    stop_reason: str
    seed: int
    stats: Stats
    record: Record | None = None


@overload
def generate(
    model: Model,
    prompt: str | Sequence[int] | np.ndarray | jax.Array,
    *,
    drafter: Drafter | None = None,
    verify: str | Callable[..., Any] = "token",
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int | None = None,
    eos_ids: Sequence[int] | None = None,
    record: bool = False,
) -> Generation: ...


@overload
def generate(
    model: Model,
    prompt: list[str] | list[list[int]] | list[np.ndarray],
    *,
    drafter: Drafter | None = None,
    verify: str | Callable[..., Any] = "token",
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
    record: bool = False,
) -> list[Generation]: ...


def generate(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    verify: str | Callable[..., Any] = "token",
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
    record: bool = False,
) -> Generation | list[Generation]:
    """Continue prompts with a model, faster if a drafter guesses well.

    Under a lossless rule the new tokens follow the model's law at the given temperature exactly,
    whatever the drafter proposes; greedy rows (temperature 0) get the tokens of plain greedy
    decoding, up to rounding where two logits are a tie. The loop runs on device and shows the host
    a few steps at a time. What a request gets depends on its own prompt and settings alone, not on
    its neighbours.

    The first call for a number of prompts and a range of lengths compiles; later ones do not.

    Args:
        model: What `speculax.load` returns, or a `Model` of your own.
        prompt: A string, token ids, or a list of either.
        drafter: What proposes tokens, for example `NGram()` or `DraftModel(load("demo-draft"))`;
            None for plain decoding.
        verify: The rule that judges drafts: "token", "block", "coupled", "sampled" or "greedy"; a
            lossy one by its full name, such as "lossy_typical"; or one of the `verify_*` functions,
            with settings by `functools.partial`. A function of your own with the signature of
            `verify_token`, `draft_lengths` included, is given float32 arrays. Greedy rows get the
            same text under any lossless rule. Under "coupled" and "sampled" a text is a function of
            its seed, whatever the drafter, up to rounding.
        max_new_tokens: The most tokens to make; one number, or one a request.
        temperature: 0 for greedy, 1 for the model's own law; one number, or one a request.
        seed: An integer in [0, 2**32) that fixes all sampling; one for all requests (equal prompts
            then get equal texts), or one a request. None takes fresh ones; results hold them.
        eos_ids: Tokens that end a text; None for the model's own, () for none.
        record: Also report the probabilities of all draft tokens; this costs reading all laws.

    Returns:
        A `Generation` for one prompt, a list of them for a list.

    Raises:
        ValueError: If an argument is out of range, or prompt and new tokens exceed the context.
        FloatingPointError: If the model's law at some position has NaN, infinity or no mass.
    """
    run = stream(
        model,
        prompt,
        drafter=drafter,
        verify=verify,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        eos_ids=eos_ids,
        record=record,
    )
    for _ in run:
        pass
    results = run.results()
    return results[0] if is_single(prompt) else results


def stream(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    verify: str | Callable[..., Any] = "token",
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
    record: bool = False,
) -> "Stream":
    """Like `generate`, but hand out tokens as they are made.

    Takes the same arguments and raises the same errors; those about arguments at once.

    Returns:
        A `Stream`: iterate over it for lists of `NewTokens`, then ask it for `results()`.
    """
    prompts = [prompt] if is_single(prompt) else list(prompt)
    requests = read_requests(model, prompts, max_new_tokens, temperature, seed)
    rule = as_rule(verify)
    if rule.is_greedy and any(request.temperature > 0 for request in requests):
        raise ValueError(
            "verify='greedy' makes greedy texts, so temperature must be 0; to sample choose "
            "another rule, such as 'token'."
        )
    if drafter is not None:
        check_drafter(drafter, model)
    return Stream(model, requests, drafter, rule, read_eos_ids(model, eos_ids), record)


class Stream:
    """A generation under way; made by `stream`. Iterate over it for lists of `NewTokens`.

    Iterating can be broken off and resumed; `results` holds what has been made so far.
    """

    def __init__(
        self,
        model: Model,
        requests: list[Request],
        drafter: Drafter | None,
        rule: Rule,
        eos_ids: tuple[int, ...],
        record: bool,
    ) -> None:
        widths = _widths(drafter)
        self._model, self._eos_ids = model, eos_ids
        self._rows = [_Row(request, widths) for request in requests]
        self._chunks = _run(model, self._rows, drafter, rule, widths, eos_ids, record)

    def __iter__(self) -> Iterator[list[NewTokens]]:
        return self._chunks

    def results(self) -> list[Generation]:
        """What has been made of each request so far."""
        return [row.result(self._model, self._eos_ids) for row in self._rows]


def _run(
    model: Model,
    rows: list["_Row"],
    drafter: Drafter | None,
    rule: Rule,
    widths: tuple[int, ...],
    eos_ids: tuple[int, ...],
    record: bool,
) -> Iterator[list[NewTokens]]:
    """The chunks of a stream; no method, lest an abandoned stream hold on to its cache."""
    if not any(row.is_live for row in rows):
        return
    num_slots = _bucket(max(row.limit for row in rows) + widths[-1] + 1)
    prompts = np.zeros((len(rows), num_slots), np.int32)
    for row, ids in zip(rows, prompts, strict=True):
        ids[: row.length] = row.request.prompt
    temperature = [row.request.temperature for row in rows]
    requests = Requests(
        limits=jnp.asarray([row.limit for row in rows], jnp.int32),
        temperature=jnp.asarray(temperature, jnp.float32),
        seeds=jnp.asarray([row.request.seed for row in rows], jnp.uint32),
        eos_ids=jnp.asarray(eos_ids, jnp.int32),
    )
    proposer = as_pytree(drafter)
    with Clock() as clock:
        state = prefill(
            model.params,
            proposer,
            jnp.asarray(prompts),
            jnp.asarray([row.length for row in rows], jnp.int32),
            requests.limits,
            network=model.network,
            num_slots=num_slots,
        )
        clock.wait_for(state.lengths)
    for row in rows:
        row.spend(clock, is_prefill=True)
    num_steps = STEPS_PER_CHUNK
    while any(row.is_live for row in rows):
        live = {i: row for i, row in enumerate(rows) if row.is_live}
        with Clock() as clock:
            lengths = [row.draft_length.current if row.is_live else 0 for row in rows]
            state, report = decode_chunk(
                model.params,
                proposer,
                state,
                requests,
                jnp.asarray(lengths, jnp.int32),
                jnp.int32(num_steps),
                network=model.network,
                rule=rule,
                width=min(width for width in widths if width >= max(lengths)),
                is_sampled=max(temperature) > 0,
                is_recorded=record,
            )
            report = clock.wait_for(report)
            new = [row.take(i, report) for i, row in live.items()]
        for row in live.values():
            row.spend(clock)
        # Longer chunks save the host's time, but draft lengths adapt between them.
        if len(widths) == 1 and not record and clock.seconds < CHUNK_SECONDS:
            num_steps = min(2 * num_steps, MOST_STEPS)
        if report.failed.any():
            i = int(np.argmax(report.failed))
            raise FloatingPointError(
                f"request {i}: the model's law at position {rows[i].length} has NaN, infinity "
                "or no mass, so no token can be drawn there; check the weights and the prompt."
            )
        yield [tokens for tokens in new if tokens.tokens]


class _Row:
    """A request under way, as the host sees it."""

    def __init__(self, request: Request, widths: tuple[int, ...]) -> None:
        self.request = request
        self.length = len(request.prompt)
        self.limit = self.length + request.max_new_tokens
        self.is_live = request.max_new_tokens > 0
        self.draft_length = DraftLength(widths)
        self._tokens: list[int] = []
        self._accepted: list[bool] = []
        self._steps = 0
        self._judged: list[list[np.ndarray]] = []  # a chunk's log-probabilities and lengths
        self._by_place = np.zeros((2, widths[-1]), int)  # drafted, accepted
        self._prefill = self._decode = self._compile = self._host = 0.0
        self._first_token = math.nan

    def take(self, i: int, report: Report) -> NewTokens:
        """Take over what a chunk made of row `i`."""
        end = int(report.lengths[i])
        new = NewTokens(
            i,
            report.tokens[i, self.length : end].tolist(),
            report.accepted[i, self.length : end].tolist(),
        )
        self._tokens += new.tokens
        self._accepted += new.accepted
        self.length, self.is_live = end, bool(report.live[i])
        counts, steps = report.counts, int(report.counts.steps[i])
        self._steps += steps
        if report.judged is not None:
            self._judged.append([np.asarray(part[:steps, i]) for part in report.judged])
        width = counts.drafted.shape[1]
        self._by_place[:, :width] += counts.drafted[i], counts.accepted[i]
        self.draft_length.update(int(counts.hits[i]), int(counts.misses[i]))
        return new

    def spend(self, clock: Clock, is_prefill: bool = False) -> None:
        """Note the time that the prompt or a chunk took."""
        self._compile += clock.compile_seconds
        if is_prefill:
            self._prefill += clock.seconds
            return
        self._decode += clock.seconds
        self._host += clock.seconds - clock.blocked_seconds
        if math.isnan(self._first_token):
            self._first_token = self._prefill + self._decode

    def result(self, model: Model, eos_ids: tuple[int, ...]) -> Generation:
        drafted, accepted = self._by_place.tolist()
        if self._tokens and self._tokens[-1] in eos_ids:
            reason = "eos"
        else:
            reason = "length" if self.length == self.limit else "interrupted"
        return Generation(
            text=None if model.tokenizer is None else model.tokenizer.decode(self._tokens),
            tokens=np.asarray(self._tokens, np.int32),
            accepted=np.asarray(self._accepted, bool),
            stop_reason=reason,
            seed=self.request.seed,
            stats=Stats(
                steps=self._steps,
                drafted=sum(drafted),
                accepted=sum(accepted),
                emitted=len(self._tokens),
                drafted_by_position=tuple(drafted),
                accepted_by_position=tuple(accepted),
                prefill_seconds=self._prefill,
                decode_seconds=self._decode,
                compile_seconds=self._compile,
                host_seconds=self._host,
                time_to_first_token=self._first_token,
            ),
            record=self._record() if self._judged else None,
        )

    def _record(self) -> Record:
        num_places = self._by_place.shape[1]

        def widen(logs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            is_draft = np.arange(logs.shape[1]) < lengths[:, None]
            probs = np.where(is_draft, np.exp(logs), 0.0).astype(np.float32)
            return np.pad(probs, ((0, 0), (0, num_places - logs.shape[1])))

        parts = [
            (widen(target, lengths), widen(draft, lengths), accepted)
            for target, draft, lengths, accepted in self._judged
        ]
        return Record(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _widths(drafter: Drafter | None) -> tuple[int, ...]:
    """The numbers of draft tokens that a step may have room for."""
    if drafter is None:
        return (0,)
    length = drafter.draft_length
    return (length,) if getattr(drafter, "always_drafts", False) else draft_widths(length)


def _bucket(num_slots: int) -> int:
    """Round up, so that lengths that are close together share their compiled programs."""
    step = 256 if num_slots <= 2048 else 1024
    return -(-num_slots // step) * step
