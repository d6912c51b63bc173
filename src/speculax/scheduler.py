"""Requests in, rows of a batch out: which are under way, and what to run next."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.ask import ask
from speculax.clock import Clock
from speculax.draft_length import DraftLength, StepCosts, draft_widths, step_cost
from speculax.drafting import Drafter
from speculax.loop import MOST_STEPS, Plan, Requests, State, decode_chunk, insert, prefill
from speculax.models.model import Model
from speculax.opaque import as_pytree
from speculax.request import Request
from speculax.row import NewTokens, Reported, Row
from speculax.rules import Rule

STEPS_PER_CHUNK = 4  # of the first chunks
REST = 8  # chunks without a drafter that costs something and did not pay, before it is tried again
CHUNK_SECONDS = 0.02  # chunks grow until they take so long, or have as many steps as they can


class Options(NamedTuple):
    """How to run requests; see `speculax.stream`.

    Attributes:
        drafter: What proposes tokens.
        rule: The rule that judges them.
        eos_ids: Tokens that end a text.
        slots: The rows of the batch, B.
        step_width: How many tokens every step reads; None for what its drafts need.
        max_length: The most tokens a row has room for; None for what the longest request needs.
        num_top: How many of the likeliest tokens to report; None for no log-probabilities.
        record: Whether to report the probabilities of draft tokens.
        is_adaptive: Whether the draft lengths of requests follow what becomes of their drafts.
        costs: What steps cost; None for what was fitted once.
    """

    drafter: Drafter | None
    rule: Rule
    eos_ids: tuple[int, ...]
    slots: int
    step_width: int | None
    max_length: int | None
    num_top: int | None
    record: bool
    is_adaptive: bool
    costs: StepCosts | None


def make_rows(model: Model, requests: Sequence[Request], options: Options) -> list[Row]:
    """The requests as what `run` takes."""
    widths = _widths(options)
    cost = step_cost if options.costs is None or len(widths) == 1 else options.costs.of
    rest = REST if getattr(options.drafter, "always_drafts", False) else 0
    report = Reported(widths[-1], options.num_top, options.record, model.network.vocab_size)
    return [
        Row(i, request, model, options.eos_ids, DraftLength(widths, cost, rest), report)
        for i, request in enumerate(requests)
    ]


def run(model: Model, rows: Sequence[Row], options: Options) -> Iterator[list[NewTokens]]:
    """What each chunk makes, until all rows have ended; one that ends makes way for the next."""
    batch = _Batch(model, rows, options)
    while True:
        while ended := batch.fill():  # whoever looks at it may cancel those that took their place
            yield ended
        if not batch.is_live:
            return
        yield [new for new in batch.run_chunk() if new.tokens or new.stop_reason]


class _Batch:
    """The rows under way, and their state on device."""

    def __init__(self, model: Model, rows: Sequence[Row], options: Options) -> None:
        self._model, self._options, self._widths = model, options, _widths(options)
        self._requests = [row.request for row in rows]
        longest = options.max_length or max((one.limit for one in self._requests), default=0)
        self._num_slots = _bucket(longest + (options.step_width or self._widths[-1] + 1))
        self._drafter: Any = options.drafter
        self._waiting = iter(rows)
        self._rows: list[Row | None] = [None] * options.slots
        self._state: State | None = None
        self._asked: Requests | None = None
        self._num_steps = STEPS_PER_CHUNK

    @property
    def is_live(self) -> bool:
        """Whether any requests are under way."""
        return any(row is not None for row in self._rows)

    def fill(self) -> list[NewTokens]:
        """Let waiting requests take the place of those that ended.

        Those that ended without a chunk, as they were cancelled or ask for nothing, are given back.
        """
        taken, ended = {}, []
        for i, old in enumerate(self._rows):
            if old is not None and old.stop_reason is None:
                continue
            for row in chain([] if old is None else [old], self._waiting):
                if row.stop_reason is None:
                    taken[i] = row
                    break
                ended += row.end()
            self._rows[i] = taken.get(i)
        if taken:
            with Clock() as clock:
                if self._state is None and self._options.step_width is None:
                    self._state = self._read_prompts(self._rows)
                else:  # one at a time: it rounds alike whoever comes at the same time
                    for i, row in taken.items():
                        one = self._read_prompts([row])
                        self._state = _place(self._state, one, i, self._options.slots)
                assert self._state is not None
                clock.wait_for(self._state.lengths)
            self._asked = self._ask(self._rows)
            for row in taken.values():
                row.spend(clock, is_prefill=True)
        return ended

    def run_chunk(self) -> list[NewTokens]:
        """Run some steps, and see what each row under way got."""
        assert self._state is not None
        assert self._asked is not None
        rows, options = self._rows, self._options
        live = {i: row for i, row in enumerate(rows) if row is not None}
        with Clock() as clock:
            lengths = [0 if row is None else row.draft_length.current for row in rows]
            width = min(width for width in self._widths if width >= max(lengths))
            # Where no draft pays a drafter is asked all the same, to learn whether one would; but
            # not in every chunk, if that costs something.
            is_resting = all(row.draft_length.is_resting for row in live.values())
            self._state, report = decode_chunk(
                self._model.params,
                None if is_resting else as_pytree(self._drafter),
                self._state,
                self._asked,
                jnp.asarray([row is not None for row in rows]),
                jnp.asarray(lengths, jnp.int32),
                jnp.int32(self._num_steps),
                network=self._model.network,
                plan=Plan(options.rule, width, options.step_width, options.record, options.num_top),
            )
            report = clock.wait_for(report)
            new = [row.take(i, report) for i, row in live.items()]
        for row in live.values():
            row.spend(clock)
            if row.stop_reason is not None and hasattr(self._drafter, "remember"):
                self._drafter = self._drafter.remember(row.all_tokens)
        # Longer chunks save the host's time, but draft lengths adapt between them.
        if len(self._widths) == 1 and clock.seconds < CHUNK_SECONDS:
            self._num_steps = min(2 * self._num_steps, MOST_STEPS)
        return new

    def _ask(self, rows: Sequence[Row | None]) -> Requests:
        given = [None if row is None else row.request for row in rows]
        is_deterministic = self._options.step_width is not None
        vocab_size = self._model.network.vocab_size
        return ask(given, self._requests, self._options.eos_ids, vocab_size, is_deterministic)

    def _read_prompts(self, rows: Sequence[Row | None]) -> State:
        prompts = np.zeros((len(rows), self._num_slots), np.int32)
        lengths = [1 if row is None else row.length for row in rows]
        for prompt, row in zip(prompts, rows, strict=True):
            if row is not None:
                prompt[: row.length] = row.request.prompt
        return prefill(
            self._model.params,
            as_pytree(self._drafter),
            jnp.asarray(prompts),
            jnp.asarray(lengths, jnp.int32),
            self._ask(rows),
            network=self._model.network,
            num_slots=self._num_slots,
        )


def _place(state: State | None, one: State, i: int, num_rows: int) -> State:
    """The state of the batch with row `i` taken over by a single request."""
    if num_rows == 1:
        return one
    if state is None:
        blank = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape[1:]), x.dtype), one)
        state = blank._replace(lengths=jnp.ones_like(blank.lengths))  # idle rows have a token too
    assert state is not None
    return insert(state, one, jnp.int32(i))


def _widths(options: Options) -> tuple[int, ...]:
    """The numbers of draft tokens that a step may have room for."""
    drafter, step_width = options.drafter, options.step_width
    if drafter is None:
        return (0,)
    length = drafter.draft_length
    if step_width is not None:  # all steps cost the same
        return (min(length, step_width - 1),)
    if not options.is_adaptive:
        return (length,)
    if options.costs is None:
        return draft_widths(length)
    return tuple(width for width in options.costs.widths if width <= length)


def _bucket(num_slots: int) -> int:
    """Round up, so that lengths that are close together share their compiled programs."""
    step = 256 if num_slots <= 2048 else 1024
    return -(-num_slots // step) * step
