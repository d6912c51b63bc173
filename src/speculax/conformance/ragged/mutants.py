"""Ragged verifiers that are wrong on purpose, most of them named after a fault seen in public.

`Ragged` is right: it pads, lets a padded rule judge, and reports. A mutant replaces one of its
parts, or the rule. NumPy, float64.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from speculax.conformance.verifier import mutants as padded
from speculax.conformance.verifier.edges import LARGEST


class Ragged:
    """A ragged verifier, correct."""

    rule: padded.Rule = padded.CONTROLS["token"]

    def __call__(
        self,
        draft_tokens: np.ndarray,
        draft_lengths: np.ndarray,
        draft_probs: np.ndarray | None,
        target_probs: np.ndarray,
        bonus_probs: np.ndarray,
        accept_uniforms: np.ndarray,
        sample_uniforms: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """See `verify_ragged`; tokens are T + 1 wide."""
        a = SimpleNamespace(
            ids=draft_tokens,
            lengths=draft_lengths.astype(np.int64),
            draft=draft_probs,
            target=target_probs,
            bonus=bonus_probs,
            accept=accept_uniforms,
            sample=sample_uniforms,
            total=len(draft_tokens),
            batch=len(draft_lengths),
        )
        lengths = np.clip(self.lengths(a), 0, a.total)
        i = np.arange(lengths.max() + 1)[None]
        places = self.within(a, self.starts(a)[:, None] + i)
        is_draft = i < lengths[:, None]
        rows = np.where(is_draft, places, a.total + self.bonus_rows(a)[:, None])
        places = places[:, :-1]
        result = self.rule(
            a.ids[places],
            None if a.draft is None else a.draft[places],
            np.concatenate([a.target, a.bonus])[rows],
            a.accept[self.noise_places(a, places)],
            self.sample_uniforms(a),
            draft_lengths=lengths,
        )
        n, tokens = result["num_accepted"], result["tokens"]
        tokens = np.pad(tokens, ((0, 0), (0, a.total + 1 - tokens.shape[1])), constant_values=-1)
        return {"num_accepted": n, "tokens": tokens}

    def lengths(self, a: Any) -> np.ndarray:
        """How many drafts each request has, (B,)."""
        return a.lengths

    def starts(self, a: Any) -> np.ndarray:
        """Where the drafts of each request begin, (B,)."""
        return np.cumsum(a.lengths) - a.lengths

    def within(self, a: Any, places: np.ndarray) -> np.ndarray:
        """Places of the flat arrays, those outside moved to the nearest inside."""
        return np.clip(places, 0, max(a.total - 1, 0))

    def bonus_rows(self, a: Any) -> np.ndarray:
        """Which bonus row each request has, (B,)."""
        return np.arange(a.batch)

    def noise_places(self, a: Any, places: np.ndarray) -> np.ndarray:
        """Where the accept uniforms of drafts are, (B, G)."""
        return places

    def sample_uniforms(self, a: Any) -> np.ndarray:
        """The uniforms of the draws, (B,)."""
        return a.sample


def control(rule: str) -> Ragged:
    """The right one for a rule."""
    ragged = Ragged()
    ragged.rule = padded.CONTROLS[rule]
    return ragged


# --- Where a request begins


class StartsAtItsOwnEnd(Ragged):
    """Offsets are sums that include the request's own length."""

    def starts(self, a: Any) -> np.ndarray:
        return np.cumsum(a.lengths)


class FirstRequestReadsTheLastSum(Ragged):
    """Request 0 begins at sums[0 - 1], which is the last sum (vllm-ascend #16215)."""

    def starts(self, a: Any) -> np.ndarray:
        sums = np.cumsum(a.lengths)
        return sums[np.arange(a.batch) - 1]


class OffByOne(Ragged):
    """Every request but the first begins one row too early."""

    def starts(self, a: Any) -> np.ndarray:
        return np.maximum(super().starts(a) - 1, 0)


class CountsBonusRows(Ragged):
    """Offsets count a bonus row for each request, though those rows are apart."""

    def starts(self, a: Any) -> np.ndarray:
        return super().starts(a) + np.arange(a.batch)


class EqualShares(Ragged):
    """Request b begins at b * (T // B), as if all drafts were equally long."""

    def starts(self, a: Any) -> np.ndarray:
        return np.arange(a.batch) * (a.total // a.batch)


# --- Where it ends


class IgnoresLengths(Ragged):
    """Every request gets as many drafts as the longest, out of its neighbours' (vllm #26498)."""

    def lengths(self, a: Any) -> np.ndarray:
        return np.full(a.batch, a.lengths.max())


class LengthOfTheFirst(Ragged):
    """Every request is as long as the first."""

    def lengths(self, a: Any) -> np.ndarray:
        return np.full(a.batch, a.lengths[0])


class LastTakesPadding(Ragged):
    """The last request owns all that is left, padding too (flashinfer #879)."""

    def lengths(self, a: Any) -> np.ndarray:
        before = a.lengths[:-1]
        return np.append(before, a.total - before.sum())


class DraftlessJudgesOne(Ragged):
    """A request without drafts is given its neighbour's first (vllm #7508)."""

    def lengths(self, a: Any) -> np.ndarray:
        return np.maximum(a.lengths, 1)


# --- The bonus


class BonusOfNextRequest(Ragged):
    """The bonus row is that of the request after."""

    def bonus_rows(self, a: Any) -> np.ndarray:
        return np.minimum(np.arange(a.batch) + 1, a.batch - 1)


class BonusOfFirstRequest(Ragged):
    """All requests draw their bonus from row 0."""

    def bonus_rows(self, a: Any) -> np.ndarray:
        return np.zeros(a.batch, np.int64)


class BonusSkipsDraftless(Ragged):
    """Bonus rows are numbered among the requests that have drafts (vllm #7508)."""

    def bonus_rows(self, a: Any) -> np.ndarray:
        return np.maximum(np.cumsum(a.lengths > 0) - 1, 0)


# --- The noise


class NoiseByPlaceInDraft(Ragged):
    """Accept uniforms are taken by the place in the draft: requests share them (vllm #9441)."""

    def noise_places(self, a: Any, places: np.ndarray) -> np.ndarray:
        return self.within(a, np.arange(places.shape[1])[None] + 0 * places)


class OneUniformForAll(Ragged):
    """Every request draws with the uniform of request 0 (vllm #9441)."""

    def sample_uniforms(self, a: Any) -> np.ndarray:
        return np.full(a.batch, a.sample[0])


class DraftlessTakesNoUniform(Ragged):
    """Uniforms of draws are numbered among the requests that have drafts."""

    def sample_uniforms(self, a: Any) -> np.ndarray:
        return a.sample[np.maximum(np.cumsum(a.lengths > 0) - 1, 0)]


# --- The judgement


class _RunsOn(padded.TokenRule):
    def count(self, a: Any, passed: np.ndarray) -> np.ndarray:
        n = super().count(a, passed)
        stopped = np.cumsum(n < a.lengths) - (n < a.lengths) > 0
        return np.where(stopped, 0, n)


class CountRunsOn(Ragged):
    """The prefix is not begun anew: a refusal in one request refuses all that follow."""

    rule = _RunsOn()


class CountsBeyondFirstFailure(Ragged):
    """The number of matches of a request in place of its matching prefix (transformers #28508)."""

    rule = padded.CountsBeyondFirstFailure()


class _FirstRow(padded.TokenRule):
    def target_row(self, a: Any, n: np.ndarray) -> np.ndarray:
        return super().target_row(a, np.where(n < a.lengths, 0, n))

    def draft_row(self, a: Any, n: np.ndarray) -> np.ndarray:
        return super().draft_row(a, np.where(n < a.lengths, 0, n))


class CorrectionFromFirstRow(Ragged):
    """The correction token comes from the first row of its request (TensorRT-LLM #17890)."""

    rule = _FirstRow()


class CorrectionFromTarget(Ragged):
    """The correction token comes from the target law (vllm #8320)."""

    rule = padded.CorrectionFromTarget()


class AcceptsEverything(Ragged):
    """No test at all."""

    rule = padded.AcceptsEverything()


class AcceptsPlaceholders(Ragged):
    """An id of -1 reads the last entry of a row, and may be accepted (vllm #46533)."""

    rule = padded.WrapsIds()


class UniformOfOneDrawsFirst(Ragged):
    """A uniform of 1, which some generators give, draws as 0 (FlashInfer's lie in (0, 1])."""

    def sample_uniforms(self, a: Any) -> np.ndarray:
        return np.where(a.sample > LARGEST, 0, a.sample)


MUTANTS = {wrong.__name__: wrong() for wrong in Ragged.__subclasses__()}
