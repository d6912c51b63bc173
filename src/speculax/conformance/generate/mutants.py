"""Generation loops that are wrong on purpose, most of them named after a fault seen in public.

`Loop` is right, and its parts are small: draft, score, count, draw, cut. A mutant replaces one of
them. Plain Python and NumPy, float64; noise is derived from the seed and the number of tokens at
the start of a step, so that no number is used in two steps.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from speculax.conformance.generate.call import Row


@dataclass
class Step:
    """What one step knows.

    Attributes:
        context: The tokens before it.
        start: How many of them are the prompt.
        coins: Uniforms (3, G + 1): of proposals, of tests, of draws.
        drafts: The draft tokens.
        draft: The drafter's row for each.
        target: The target's rows, one more.
    """

    context: list[int]
    start: int
    coins: np.ndarray
    drafts: list[int] = field(default_factory=list)
    draft: list[np.ndarray] = field(default_factory=list)
    target: list[np.ndarray] = field(default_factory=list)


class Loop:
    """Speculative generation by the token rule, correct."""

    def __init__(self, draft_length: int = 3):
        self.draft_length = draft_length

    def __call__(
        self,
        target: Row,
        drafter: Row,
        prompt: list[int],
        max_new_tokens: int,
        eos: int | None,
        seed: int,
    ) -> list[int]:
        """The new tokens; see the kind."""
        text, start = list(prompt), len(prompt)
        end = self.end(start, max_new_tokens)
        while len(text) < end:
            step = Step(text, start, self.noise(seed, text, start))
            self.propose(step, drafter)
            self.score(step, target)
            run, is_done = self.cut(step, self.judge(step), end - len(text), eos)
            text = text + run
            if is_done:
                break
        return self.finish(text[start:], eos)

    def end(self, start: int, max_new_tokens: int) -> int:
        """The length a text may reach, its prompt included."""
        return start + max_new_tokens

    def noise(self, seed: int, text: list[int], start: int) -> np.ndarray:
        """Uniforms (3, G + 1) of the step that begins after `text`."""
        rng = np.random.default_rng((seed, len(text) - start))
        return rng.random((3, self.draft_length + 1))

    def propose(self, step: Step, drafter: Row) -> None:
        """Draw the draft tokens, one after another."""
        for i in range(self.draft_length):
            row = self.draft_row(step, drafter)
            step.draft.append(row)
            step.drafts.append(self.draft_token(row, step.coins[0, i]))

    def draft_row(self, step: Step, drafter: Row) -> np.ndarray:
        """The drafter's law of the next draft token."""
        return drafter(self.draft_context(step) + step.drafts)

    def draft_context(self, step: Step) -> list[int]:
        """The text that the drafter continues."""
        return step.context

    def draft_token(self, row: np.ndarray, coin: float) -> int:
        """A draft token of a law."""
        return draw(row, coin)

    def score(self, step: Step, target: Row) -> None:
        """Ask the target for its rows."""
        for i in range(self.draft_length + 1):
            step.target.append(target(step.context + step.drafts[:i]))

    def judge(self, step: Step) -> list[int]:
        """The accepted draft tokens, and one more."""
        return self.run(step, self.count(step))

    def count(self, step: Step) -> int:
        """How many draft tokens are accepted."""
        for i in range(len(step.drafts)):
            if not self.passes(step, i):
                return i
        return len(step.drafts)

    def passes(self, step: Step, i: int) -> bool:
        """Whether draft token i passes its test."""
        token = step.drafts[i]
        row = self.judging_row(step, i)
        return bool(self.test_coin(step, i) * step.draft[i][token] < row[token])

    def judging_row(self, step: Step, i: int) -> np.ndarray:
        """The target's row that draft token i is judged by."""
        return step.target[i]

    def test_coin(self, step: Step, i: int) -> float:
        """The uniform of a test."""
        return step.coins[1, i]

    def run(self, step: Step, n: int) -> list[int]:
        """What the step emits before it is cut."""
        return [*step.drafts[:n], draw(self.weights(step, n), self.draw_coin(step, n))]

    def weights(self, step: Step, n: int) -> np.ndarray:
        """What the token after n accepted ones is drawn from."""
        if n == len(step.drafts):
            return step.target[n]
        rest = np.maximum(step.target[n] - step.draft[n], 0)
        return rest if rest.sum() > 0 else step.target[n]

    def draw_coin(self, step: Step, n: int) -> float:
        """The uniform of the draw."""
        return step.coins[2, 0]

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        """What is kept of a run, and whether the text is done."""
        run = run[:room]
        if eos is not None and eos in run:
            return run[: run.index(eos) + 1], True
        return run, False

    def finish(self, new: list[int], eos: int | None) -> list[int]:
        """What is returned."""
        return new


def draw(weights: np.ndarray, coin: float) -> int:
    """The smallest id whose cumulative weight is greater than the uniform's share."""
    cumulative = np.cumsum(weights)
    token = int(np.searchsorted(cumulative, coin * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(weights)[-1]))


class BlockLoop(Loop):
    """Speculative generation by block verification, correct."""

    def count(self, step: Step) -> int:
        """The longest prefix that is held, whatever the shorter ones are."""
        held = [i for i in range(1, len(step.drafts) + 1) if self.holds(step, i)]
        return max(held, default=0)

    def holds(self, step: Step, i: int) -> bool:
        """Whether the first i draft tokens pass their test."""
        ratio = self.ratio(step, i)
        bound = ratio
        if i < len(step.drafts) and ratio < 1:
            mass = np.maximum(ratio * step.target[i] - step.draft[i], 0).sum()
            bound = mass / (mass + 1 - ratio)
        return bool(self.test_coin(step, i - 1) < bound)

    def ratio(self, step: Step, i: int) -> float:
        """The running ratio of the first i draft tokens, at most 1."""
        ratio = 1.0
        for token, target, draft in zip(step.drafts[:i], step.target, step.draft, strict=False):
            ratio = min(1.0, ratio * target[token] / draft[token])
        return ratio

    def weights(self, step: Step, n: int) -> np.ndarray:
        """What the token after n accepted ones is drawn from."""
        if n == len(step.drafts):
            return step.target[n]
        rest = np.maximum(self.ratio(step, n) * step.target[n] - step.draft[n], 0)
        return rest if rest.sum() > 0 else step.target[n]


class PlainLoop(Loop):
    """Plain sampling, correct: the drafter has no say."""

    def propose(self, step: Step, drafter: Row) -> None:
        """No drafts."""

    def score(self, step: Step, target: Row) -> None:
        """The one row that is needed."""
        step.target.append(target(step.context))


# --- Where texts end


class EmitsPastEos(Loop):
    """An EOS within a run ends the text, but the rest of the run stays (koboldcpp #1276)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return run[:room], super().cut(step, run, room, eos)[1]


class GoesOnAfterEos(Loop):
    """Only the last token of a run can be an EOS: text goes on (transformers #47912)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return run[:room], eos is not None and run[:room][-1] == eos


class EosDropped(Loop):
    """The EOS itself is not part of the text."""

    def finish(self, new: list[int], eos: int | None) -> list[int]:
        return new[:-1] if eos is not None and new[-1:] == [eos] else new


class DraftEosEndsText(Loop):
    """An EOS that the draft proposed ends the text, refused or not (openvino.genai #3293)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        run, is_done = super().cut(step, run, room, eos)
        return run, is_done or eos in step.drafts


class RunBeforeEosLost(Loop):
    """Of a run with an EOS only the EOS is kept (vllm #26027)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        run, is_done = super().cut(step, run, room, eos)
        return run[-1:] if is_done else run, is_done


class LimitBeforeEos(Loop):
    """A run that reaches the limit is not looked through for an EOS (sglang #31599)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return (run[:room], True) if len(run) >= room else super().cut(step, run, room, eos)


class EosZeroIsNone(Loop):
    """`if eos and ...`: a text never ends with an EOS of id 0."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return super().cut(step, run, room, eos or None)


class NeedsEos(Loop):
    """Without an EOS it breaks down (transformers #46790)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        if eos is None:
            raise TypeError("eos must be an int")
        return super().cut(step, run, room, eos)


class PromptEosEndsText(Loop):
    """The whole text is looked through for an EOS, the prompt too."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        run, is_done = super().cut(step, run, room, eos)
        return run, is_done or eos in step.context


class LastRunNotCut(Loop):
    """The last run reaches beyond max_new_tokens (lattice #242)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return super().cut(step, run, len(run), eos)


class OneTooMany(Loop):
    """Drafts are cut at the limit, then a token is drawn all the same (transformers #46993)."""

    def cut(self, step: Step, run: list[int], room: int, eos: int | None) -> tuple[list[int], bool]:
        return super().cut(step, run, room + 1, eos)


class StopsOneShort(Loop):
    """One token fewer than asked for."""

    def end(self, start: int, max_new_tokens: int) -> int:
        return start + max(max_new_tokens - 1, 0)


class AtLeastOne(Loop):
    """Asked for no tokens, it gives one: the limit is looked at after a step."""

    def end(self, start: int, max_new_tokens: int) -> int:
        return start + max(max_new_tokens, 1)


class KeepsLastOfRun(Loop):
    """Only the last token of each run is handed on (vllm #26027)."""

    def run(self, step: Step, n: int) -> list[int]:
        return super().run(step, n)[-1:]


# --- The call


class PromptReturned(Loop):
    """The prompt comes back in front of the new tokens."""

    def __call__(self, target: Row, drafter: Row, prompt: list[int], *rest: Any) -> list[int]:
        return prompt + super().__call__(target, drafter, prompt, *rest)


class PromptExtended(Loop):
    """The caller's list is written into."""

    def __call__(self, target: Row, drafter: Row, prompt: list[int], *rest: Any) -> list[int]:
        new = super().__call__(target, drafter, prompt, *rest)
        prompt += new
        return new


class SeedIgnored(Loop):
    """Noise comes from a state that calls share: the seed has no say (vllm #6038)."""

    calls = 0

    def noise(self, seed: int, text: list[int], start: int) -> np.ndarray:
        self.calls += 1
        return super().noise(self.calls, text, start)


class OneSeedForAll(Loop):
    """Every call uses the same seed (TensorRT-LLM #17599)."""

    def noise(self, seed: int, text: list[int], start: int) -> np.ndarray:
        return super().noise(0, text, start)


# --- Noise


class NoiseRepeatedEachStep(Loop):
    """Every step begins its numbers anew, and uses the same ones."""

    def noise(self, seed: int, text: list[int], start: int) -> np.ndarray:
        return super().noise(seed, text[:start], start)


class BlockNoiseByPosition(BlockLoop):
    """Numbers belong to positions: those that block verification saw beyond its stop come again."""

    def noise(self, seed: int, text: list[int], start: int) -> np.ndarray:
        places = range(len(text) - start, len(text) - start + self.draft_length + 1)
        return np.stack([np.random.default_rng((seed, i)).random(3) for i in places], axis=1)


class AcceptNoiseDraws(Loop):
    """The number that refused a token draws the one in its place (vllm-ascend #16370)."""

    def draw_coin(self, step: Step, n: int) -> float:
        return step.coins[1, min(n, len(step.drafts) - 1)]


class ProposalNoiseDraws(Loop):
    """The number that proposed a token draws the one in its place (vllm #54282)."""

    def draw_coin(self, step: Step, n: int) -> float:
        return step.coins[0, min(n, len(step.drafts) - 1)]


class ProposalNoiseJudges(Loop):
    """The number that proposed a token judges it too (vllm #47386)."""

    def test_coin(self, step: Step, i: int) -> float:
        return step.coins[0, i]


# --- Rows and contexts


class TargetRowShifted(Loop):
    """Row i + 1 of the target judges draft i (transformers #28166)."""

    def judging_row(self, step: Step, i: int) -> np.ndarray:
        return step.target[i + 1]


class DraftContextLacksLast(Loop):
    """The drafter never sees the last token of the text, the bonus token say (vllm #9730)."""

    def draft_context(self, step: Step) -> list[int]:
        return step.context[:-1]


class TargetForgetsPrompt(Loop):
    """The target sees the new tokens only."""

    def score(self, step: Step, target: Row) -> None:
        super().score(replace(step, context=step.context[step.start :]), target)


class DraftsAfterTextOnly(Loop):
    """Every draft token of a step is drawn from the same row, whatever the others are."""

    def draft_row(self, step: Step, drafter: Row) -> np.ndarray:
        return drafter(self.draft_context(step))


# --- Verification


class FirstDraftNeverVerified(Loop):
    """The first draft token is taken on trust (lattice #243)."""

    def passes(self, step: Step, i: int) -> bool:
        return i == 0 or super().passes(step, i)


class AcceptsEverything(Loop):
    """No test at all."""

    def passes(self, step: Step, i: int) -> bool:
        return True


class CountsBeyondFirstFailure(Loop):
    """The number of matches instead of the matching prefix (transformers #28508)."""

    def count(self, step: Step) -> int:
        return sum(self.passes(step, i) for i in range(len(step.drafts)))


class CorrectionFromTarget(Loop):
    """The correction token comes from the target law (vllm #8320)."""

    def weights(self, step: Step, n: int) -> np.ndarray:
        return step.target[n]


class ArgmaxDraftAsSampled(Loop):
    """Drafts are the drafter's favourites, judged as if they were sampled (transformers #32867)."""

    def draft_token(self, row: np.ndarray, coin: float) -> int:
        return int(np.argmax(row))


class DraftLawNotTheSampled(Loop):
    """Drafts come from a row cut to likely tokens, the whole row judges (transformers #47932)."""

    def draft_token(self, row: np.ndarray, coin: float) -> int:
        return draw(np.where(row >= np.sort(row)[-2], row, 0), coin)


class LastDraftDrawnAnew(Loop):
    """When all drafts are accepted the last is drawn anew in place of a bonus token."""

    def run(self, step: Step, n: int) -> list[int]:
        return super().run(step, min(n, len(step.drafts) - 1))


class KeepsOneDraft(Loop):
    """After the first accepted draft token the others are thrown away (aprender #2014)."""

    def count(self, step: Step) -> int:
        return min(super().count(step), 1)

    def weights(self, step: Step, n: int) -> np.ndarray:
        return step.target[1] if n == 1 else super().weights(step, n)


RIGHT = (Loop, BlockLoop, PlainLoop)
MUTANTS = {
    wrong.__name__: wrong for loop in RIGHT for wrong in loop.__subclasses__() if wrong not in RIGHT
}
