"""Generation as people call it: prompts in, results out; the work is done by the loop on device."""

import math
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.draft_length import DraftLength, draft_widths
from speculax.loop import Report, Requests, decode_chunk, prefill
from speculax.models.model import Model
from speculax.stats import Stats
from speculax.types import Drafter

Prompt = str | Sequence[int] | np.ndarray | jax.Array


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
    """

    text: str | None
    tokens: np.ndarray
    accepted: np.ndarray
    stop_reason: str
    seed: int
    stats: Stats


def generate(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
) -> Generation | list[Generation]:
    """Continue prompts with a model, faster if a drafter guesses well.

    Lossless: the new tokens follow the model's law at the given temperature exactly, whatever the
    drafter proposes; greedy rows (temperature 0) get the tokens of plain greedy decoding, up to
    rounding where two logits are a tie. The loop runs on device and shows the host a few steps at a
    time. What a request gets depends on its own prompt and settings alone, not on its neighbours.

    The first call for a number of prompts and a range of lengths compiles; later ones do not.

    Args:
        model: What `speculax.load` returns, or a `Model` of your own.
        prompt: A string, token ids, or a list of either.
        drafter: What proposes tokens, for example `NGram()`; None for plain decoding.
        max_new_tokens: The most tokens to make; one number, or one a request.
        temperature: 0 for greedy, 1 for the model's own law; one number, or one a request.
        seed: An integer in [0, 2**32) that fixes all sampling; one for all requests (equal prompts
            then get equal texts), or one a request. None takes fresh ones; results hold them.
        eos_ids: Tokens that end a text; None for the model's own, () for none.

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
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        eos_ids=eos_ids,
    )
    for _ in run:
        pass
    results = run.results()
    return results[0] if _is_single(prompt) else results


def stream(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
) -> "Stream":
    """Like `generate`, but hand out tokens as they are made.

    Takes the same arguments and raises the same errors; those about arguments at once.

    Returns:
        A `Stream`: iterate over it for lists of `NewTokens`, then ask it for `results()`.
    """
    prompts = [prompt] if _is_single(prompt) else list(prompt)
    num = len(prompts)
    requests = [
        _Request(ids, cap, warmth, chosen)
        for ids, cap, warmth, chosen in zip(
            [_to_ids(model, i, one) for i, one in enumerate(prompts)],
            _one_each("max_new_tokens", max_new_tokens, num, int, 0),
            _one_each("temperature", temperature, num, float, 0),
            [secrets.randbits(32) for _ in prompts]
            if seed is None
            else _one_each("seed", seed, num, int, 0, 2**32 - 1),
            strict=True,
        )
    ]
    context = model.network.context_length
    for i, request in enumerate(requests):
        if (wanted := len(request.prompt) + request.max_new_tokens) > context:
            raise ValueError(
                f"request {i} has a prompt of {len(request.prompt)} tokens and asks for "
                f"{request.max_new_tokens} new ones, {wanted} in all, but {model.name} has a "
                f"context of {context}; shorten the prompt or lower max_new_tokens."
            )
    return Stream(model, requests, drafter, model.eos_ids if eos_ids is None else tuple(eos_ids))


class Stream:
    """A generation under way; made by `stream`. Iterate once, for lists of `NewTokens`."""

    def __init__(
        self,
        model: Model,
        requests: list["_Request"],
        drafter: Drafter | None,
        eos_ids: tuple[int, ...],
    ) -> None:
        self._model, self._drafter, self._eos_ids = model, drafter, eos_ids
        self._widths = draft_widths(0 if drafter is None else drafter.draft_length)
        self._rows = [_Row(request, self._widths) for request in requests]

    def __iter__(self) -> Iterator[list[NewTokens]]:
        if not self._rows:
            return
        num_slots = _bucket(max(row.limit for row in self._rows) + self._widths[-1] + 1)
        prompts = np.zeros((len(self._rows), num_slots), np.int32)
        for row, ids in zip(self._rows, prompts, strict=True):
            ids[: row.length] = row.request.prompt
        limits = jnp.asarray([row.limit for row in self._rows], jnp.int32)
        requests = Requests(
            limits=limits,
            temperature=jnp.asarray([r.request.temperature for r in self._rows], jnp.float32),
            seeds=jnp.asarray([r.request.seed for r in self._rows], jnp.uint32),
            eos_ids=jnp.asarray(self._eos_ids, jnp.int32),
        )
        parts = {"network": self._model.network, "drafter": self._drafter}
        with _Clock() as clock:
            state = prefill(
                self._model.params,
                jnp.asarray(prompts),
                jnp.asarray([row.length for row in self._rows], jnp.int32),
                limits,
                num_slots=num_slots,
                **parts,
            )
            clock.wait_for(state.lengths)
        for row in self._rows:
            row.prefilled(clock)
        while any(row.is_live for row in self._rows):
            with _Clock() as clock:
                lengths = [row.draft_length.current if row.is_live else 0 for row in self._rows]
                state, report = decode_chunk(
                    self._model.params,
                    state,
                    requests,
                    jnp.asarray(lengths, jnp.int32),
                    width=min(width for width in self._widths if width >= max(lengths)),
                    is_sampled=any(row.request.temperature > 0 for row in self._rows),
                    **parts,
                )
                report = clock.wait_for(report)
            new = [row.take(i, report, clock) for i, row in enumerate(self._rows) if row.is_live]
            yield [tokens for tokens in new if tokens.tokens]

    def results(self) -> list[Generation]:
        """What has been made of each request so far."""
        return [row.result(self._model, self._eos_ids) for row in self._rows]


class _Request(NamedTuple):
    prompt: np.ndarray
    max_new_tokens: int
    temperature: float
    seed: int


class _Row:
    """A request under way, as the host sees it."""

    def __init__(self, request: _Request, widths: tuple[int, ...]) -> None:
        self.request = request
        self.length = len(request.prompt)
        self.limit = self.length + request.max_new_tokens
        self.is_live = request.max_new_tokens > 0
        self.draft_length = DraftLength(widths)
        self._tokens: list[int] = []
        self._accepted: list[bool] = []
        self._steps = 0
        self._by_place = np.zeros((2, widths[-1]), int)  # drafted, accepted
        self._prefill = self._decode = self._compile = self._host = 0.0
        self._first_token = math.nan

    def prefilled(self, clock: "_Clock") -> None:
        self._prefill += clock.seconds
        self._compile += clock.compile_seconds

    def take(self, i: int, report: Report, clock: "_Clock") -> NewTokens:
        """Take over what the chunk made of row `i`."""
        end = int(report.lengths[i])
        if report.failed[i]:
            raise FloatingPointError(
                f"request {i}: the model's law at position {end} has NaN, infinity or no mass, so "
                "no token can be drawn there; check the weights and the prompt."
            )
        new = NewTokens(
            i,
            report.tokens[i, self.length : end].tolist(),
            report.accepted[i, self.length : end].tolist(),
        )
        self._tokens += new.tokens
        self._accepted += new.accepted
        self.length, self.is_live = end, bool(report.live[i])
        counts = report.counts
        self._steps += int(counts.steps[i])
        width = counts.drafted.shape[1]
        self._by_place[:, :width] += counts.drafted[i], counts.accepted[i]
        self.draft_length.update(int(counts.hits[i]), int(counts.misses[i]))
        self._decode += clock.seconds
        self._compile += clock.compile_seconds
        self._host += clock.seconds - clock.blocked_seconds
        if math.isnan(self._first_token):
            self._first_token = self._prefill + self._decode
        return new

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
        )


class _Clock:
    """Wall time of a block of code, with what went into compiling and into waiting apart.

    Attributes:
        seconds: Wall time, compiling apart.
        compile_seconds: Time spent tracing and compiling.
        blocked_seconds: Time spent waiting for the device.
    """

    def __enter__(self) -> "_Clock":
        self.compile_seconds = self.blocked_seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start - self.compile_seconds
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def wait_for(self, arrays: Any) -> Any:
        """The arrays as NumPy arrays of their own, as soon as the device has made them."""
        start = time.perf_counter()
        jax.block_until_ready(arrays)
        self.blocked_seconds += time.perf_counter() - start
        return jax.tree.map(np.array, arrays)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.compile_seconds += duration_secs


def _is_single(prompt: Any) -> bool:
    """Whether this is one prompt, not a list of them."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray | jax.Array):
        return prompt.ndim < 2
    return len(prompt) > 0 and all(isinstance(one, int | np.integer) for one in prompt)


def _to_ids(model: Model, i: int, prompt: Any) -> np.ndarray:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ValueError(
                f"prompt {i} is a string but {model.name} has no tokenizer; pass token ids."
            )
        prompt = model.tokenizer.encode(prompt)
    ids = np.asarray(prompt)
    vocab_size = model.network.vocab_size
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"prompt {i} must be a string or a row of at least one integer token id, got "
            f"{ids.dtype} of shape {ids.shape}; an empty text still has its first token (BOS)."
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"prompt {i} must have ids from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}; "
            "check that the tokenizer belongs to the model."
        )
    return ids.astype(np.int32)


def _one_each(
    name: str, values: Any, num: int, kind: type, least: float, most: float = sys.float_info.max
) -> list:
    """One value for each request, from one value or a list of them."""
    if np.ndim(values) == 0:
        values = [values] * num
    if len(values) != num:
        raise ValueError(
            f"{name} must be one value or one for each of {num} prompts, got {len(values)} values; "
            "match their numbers."
        )
    for value in values:
        if not _is_between(value, kind, least, most):
            what = "an integer" if kind is int else "a finite number"
            between = (
                f"from {least} to {most}" if most < sys.float_info.max else f"at least {least}"
            )
            raise ValueError(f"{name} must be {what} {between}, got {value}; change it.")
    return [kind(value) for value in values]


def _is_between(value: Any, kind: type, least: float, most: float) -> bool:
    try:
        return bool(least <= value <= most) and kind(value) == value
    except (TypeError, ValueError):  # not a number at all
        return False


def _bucket(num_slots: int) -> int:
    """Round up, so that lengths that are close together share their compiled programs."""
    step = 256 if num_slots <= 2048 else 1024
    return -(-num_slots // step) * step
