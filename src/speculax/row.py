"""A request under way, as the host sees it: what it was given, and where it stops."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from speculax.clock import Clock
from speculax.draft_length import DraftLength
from speculax.judged import Judged, blank_judged
from speculax.loop import Report, TokenLogProbs
from speculax.models.model import Model
from speculax.models.tokenizer import text_stream
from speculax.request import Request
from speculax.stats import Stats
from speculax.stop_strings import StopStrings
from speculax.types import NO_TOKEN


class NewTokens(NamedTuple):
    """What one request got in a chunk.

    Attributes:
        request: Its place in the list of prompts.
        tokens: The token ids.
        accepted: For each, whether it is an accepted draft (else the target drew it).
        pieces: For each, the text that it makes certain, which a character of several tokens or the
            beginning of a stop string keeps waiting; at the end perhaps one more. None if the model
            has no tokenizer.
        log_probs: If they were asked for.
        stop_reason: Why the request ended; None while it goes on. Each request that ends says so
            once, those without tokens too.
    """

    request: int
    tokens: list[int]
    accepted: list[bool]
    pieces: list[str] | None = None
    log_probs: TokenLogProbs | None = None
    stop_reason: str | None = None

    @property
    def text(self) -> str | None:
        """The text that is now certain; all of it together is that of the result."""
        return None if self.pieces is None else "".join(self.pieces)


class Record(NamedTuple):
    """The steps as the rule saw them, draft tokens after the first refused included.

    Attributes:
        draft_tokens: int32 (steps, G), -1 behind a draft's end.
        target_probs: float32 (steps, G), under the target; 0 behind a draft's end.
        draft_probs: float32 (steps, G), under the law each was drawn from, 1 for deterministic
            drafts and where the rule does not ask for the law; 0 behind a draft's end.
        accept_uniforms: float32 (steps, G), the noise of the tests; NaN if the rule has none, as
            the coupled and the greedy one.
        sample_uniforms: float32 (steps,), the noise of the draw; NaN if it is not of one uniform,
            or nothing was drawn.
        accepted: int32 (steps,), how many were kept.
        candidates: int32 (steps, K), the tokens likeliest to be drawn after those that were kept,
            the likeliest first; K is 8, or V. -1 where the text ended at an accepted draft token,
            so that nothing was drawn, and probabilities are 0.
        candidate_draw_probs: float32 (steps, K), in the law that the rule draws from: a residual,
            or the target's; NaN for a function of somebody's own.
        candidate_target_probs: float32 (steps, K), under the target.
        candidate_draft_probs: float32 (steps, K), under the draft; 0 behind its end.
    """

    draft_tokens: np.ndarray
    target_probs: np.ndarray
    draft_probs: np.ndarray
    accept_uniforms: np.ndarray
    sample_uniforms: np.ndarray
    accepted: np.ndarray
    candidates: np.ndarray
    candidate_draw_probs: np.ndarray
    candidate_target_probs: np.ndarray
    candidate_draft_probs: np.ndarray


@dataclass(frozen=True, eq=False)
class Generation:
    """What became of one request.

    Tokens, log-probabilities, record and counts all end at the same token; the text ends before a
    stop string.

    Attributes:
        text: The new text, without the prompt; None if the model has no tokenizer. While a request
            goes on it may have a little more than was streamed, which could become a stop string.
        tokens: int32 (N,), the new tokens, an end token included.
        accepted: bool (N,), which of them are accepted drafts (else the target drew them).
        stop_reason: "eos" for an end token, "stop" for a stop id or string, "length", "cancelled",
            "error", or "interrupted" if the stream was left.
        seed: The seed, for making the same tokens again.
        stats: Counts, rates and times.
        error: What went wrong, in one sentence; else None.
        log_probs: Of the tokens, if they were asked for.
        record: The probabilities of the draft tokens, if they were asked for.
    """

    text: str | None
    tokens: np.ndarray
    accepted: np.ndarray
    stop_reason: str
    seed: int
    stats: Stats
    error: str | None = None
    log_probs: TokenLogProbs | None = None
    record: Record | None = None


class Reported(NamedTuple):
    """What rows report besides tokens.

    Attributes:
        most_drafts: The most draft tokens of a step, G.
        num_top: How many of the likeliest tokens; None for no log-probabilities.
        is_recorded: Whether there is a record.
        vocab_size: V.
    """

    most_drafts: int
    num_top: int | None
    is_recorded: bool
    vocab_size: int

    def no_log_probs(self) -> list[TokenLogProbs]:
        """Those of no tokens, if there are to be any."""
        if self.num_top is None:
            return []
        tokens = _none(self.num_top, dtype=np.int32)
        return [TokenLogProbs(_none(), _none(), tokens, _none(self.num_top))]


class Row:
    """A request under way.

    Attributes:
        request: What was asked for.
        stop_reason: Why it ended; None before that.
        error: What went wrong, if anything did.
        draft_length: How many tokens to draft for it.
    """

    def __init__(
        self,
        number: int,
        request: Request,
        model: Model,
        eos_ids: tuple[int, ...],
        draft_length: DraftLength,
        reported: Reported,
    ) -> None:
        self.request = request
        self.draft_length = draft_length
        self.error: str | None = None
        self.stop_reason = None if request.max_new_tokens else "length"
        self._number, self._eos_ids = number, eos_ids
        self._decoder = None if model.tokenizer is None else text_stream(model.tokenizer)
        self._stops = StopStrings(request.stop)
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._accepted: list[bool] = []
        self._has_ended = False
        self._num_steps = 0
        self._by_place = np.zeros((3, reported.most_drafts), int)  # drafted, accepted, tested
        self._log_probs = reported.no_log_probs()
        self._records: list[Record] = []
        if reported.is_recorded:
            blank = blank_judged(_none, reported.most_drafts, reported.vocab_size)
            no_steps = _none(dtype=np.int32)
            self._records = [self._record(blank, no_steps, no_steps, no_steps > 0)]
        self._prefill = self._decode = self._compile = self._host = 0.0
        self._first_token = math.nan

    @property
    def length(self) -> int:
        """How long prompt and text are."""
        return len(self.request.prompt) + len(self._tokens)

    @property
    def all_tokens(self) -> np.ndarray:
        """Prompt and text, int32 (N,)."""
        return np.append(self.request.prompt, np.asarray(self._tokens, np.int32))

    def take(self, i: int, report: Report) -> NewTokens:
        """Take over what a chunk made of the row, which is row `i` of the batch."""
        steps = report.steps
        took_part = steps.live[:, i]
        tokens = steps.tokens[took_part, i]
        is_made = tokens >= 0
        places = np.arange(tokens.shape[1])
        given = tokens[is_made].tolist()
        new, pieces = self._read(given, bool(report.live[i]), bool(report.failed[i]))

        emitted = is_made.sum(axis=1)
        left = np.clip(len(new) - np.cumsum(emitted) + emitted, 0, emitted)  # of each step
        num_steps = len(left)
        if len(new) < len(given):  # the steps after the one with the last token never were
            num_steps = int(np.argmax(np.cumsum(emitted) >= len(new))) + 1
        accepted = np.minimum(steps.accepted[took_part, i], left)[:num_steps]
        # A row that ended inside its accepted drafts was not judged on the rest.
        drafted = np.asarray(steps.drafted[took_part, i])[:num_steps]
        judged = np.where(left[:num_steps] > accepted, drafted, np.minimum(drafted, accepted))
        self._num_steps += num_steps
        tested = np.minimum(judged, accepted + 1)
        for counts, numbers in zip(self._by_place, (judged, accepted, tested), strict=True):
            counts[: len(places) - 1] += (places[:-1] < numbers[:, None]).sum(axis=0)

        flags = (places < steps.accepted[took_part, i][:, None])[is_made][: len(new)].tolist()
        log_probs = None
        if steps.log_probs is not None:
            parts = (
                np.asarray(part[took_part, i])[is_made][: len(new)] for part in steps.log_probs
            )
            log_probs = TokenLogProbs(*parts)
            self._log_probs.append(log_probs)
        if steps.judged is not None:
            seen = Judged(*(np.asarray(x)[took_part, i][:num_steps] for x in steps.judged))
            has_drawn = left[:num_steps] > accepted
            self._records.append(self._record(seen, drafted, accepted, has_drawn))
        self._tokens += new
        self._accepted += flags
        self._text += pieces
        self.draft_length.update(int(report.hits[i]), int(report.misses[i]))
        shown = None if self._decoder is None else pieces
        self._has_ended = self.stop_reason is not None
        return NewTokens(self._number, new, flags, shown, log_probs, self.stop_reason)

    def end(self) -> list[NewTokens]:
        """The last word of a row that ended without a chunk, if it has not been said."""
        if self._has_ended:
            return []
        self._has_ended = True
        pieces = None
        if self._decoder is not None:
            pieces = [self._stops.flush()]
            self._text += pieces
        return [NewTokens(self._number, [], [], pieces, None, self.stop_reason)]

    def _read(self, given: list[int], is_live: bool, has_failed: bool) -> tuple[list[int], list]:
        """The tokens up to where the row stops, which it notes, and the text they make certain."""
        pieces: list[str] = []
        if self._decoder is not None:
            for i, token in enumerate(given):
                text, is_over = self._stops.push(self._decoder.push(token))
                pieces.append(text)
                if is_over:
                    self.stop_reason = "stop"
                    return given[: i + 1], pieces
        if not is_live:
            self.stop_reason = self._why(given, has_failed)
            if self._decoder is not None:
                text, is_over = self._stops.push(self._decoder.flush())
                pieces.append(text + self._stops.flush())
                if is_over:
                    self.stop_reason = "stop"
        return given, pieces

    def _why(self, given: list[int], has_failed: bool) -> str:
        if has_failed:
            self.error = (
                f"request {self._number}: the model's law at position {self.length + len(given)} "
                "has NaN, infinity or no mass, so no token can be drawn there; check the weights, "
                "the prompt and the settings, a token mask among them."
            )
            return "error"
        last = given[-1] if given else None
        if last in self._eos_ids:
            return "eos"
        return "stop" if last in self.request.stop_ids else "length"

    def _record(
        self, seen: Any, drafted: np.ndarray, accepted: np.ndarray, has_drawn: np.ndarray
    ) -> Record:
        num_places = self._by_place.shape[1]
        is_draft = np.arange(seen.draft_tokens.shape[1]) < drafted[:, None]

        def widen(values: np.ndarray, beyond: int = 0) -> np.ndarray:
            values = np.where(is_draft, values, values.dtype.type(beyond))
            missing = num_places - values.shape[1]
            return np.pad(values, ((0, 0), (0, missing)), constant_values=beyond)

        return Record(
            draft_tokens=widen(seen.draft_tokens, NO_TOKEN),
            target_probs=widen(np.exp(seen.target_log_probs)),
            draft_probs=widen(np.exp(seen.draft_log_probs)),
            accept_uniforms=widen(seen.accept_uniforms),
            sample_uniforms=np.where(has_drawn, seen.sample_uniforms, np.float32(np.nan)),
            accepted=accepted,
            candidates=np.where(has_drawn[:, None], seen.candidates, np.int32(NO_TOKEN)),
            candidate_draw_probs=np.where(has_drawn[:, None], seen.draw_probs, 0),
            candidate_target_probs=np.where(has_drawn[:, None], seen.target_probs, 0),
            candidate_draft_probs=np.where(has_drawn[:, None], seen.draft_probs, 0),
        )

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

    def result(self) -> Generation:
        """What has been made so far."""
        drafted, accepted, tested = self._by_place.tolist()
        text = "".join(self._text)
        text += self._stops.pending  # of a row that has not ended: more may have come
        return Generation(
            text=None if self._decoder is None else text,
            tokens=np.asarray(self._tokens, np.int32),
            accepted=np.asarray(self._accepted, bool),
            stop_reason=self.stop_reason or "interrupted",
            seed=self.request.seed,
            stats=Stats(
                steps=self._num_steps,
                drafted=sum(drafted),
                accepted=sum(accepted),
                emitted=len(self._tokens),
                drafted_by_position=tuple(drafted),
                accepted_by_position=tuple(accepted),
                tested_by_position=tuple(tested),
                prefill_seconds=self._prefill,
                decode_seconds=self._decode,
                compile_seconds=self._compile,
                host_seconds=self._host,
                time_to_first_token=self._first_token,
            ),
            error=self.error,
            log_probs=_join(self._log_probs),
            record=_join(self._records),
        )


def _none(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros((0, *shape), dtype)


def _join(parts: list[Any]) -> Any:
    """NamedTuples of arrays as one; None of none."""
    if not parts:
        return None
    return type(parts[0])(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
