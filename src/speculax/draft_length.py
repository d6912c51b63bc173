"""How many tokens to draft for a row, from what became of its earlier drafts.

If each draft token holds with probability a, a draft of G tokens makes 1 + a + ... + a^G tokens
(Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1). Divided by the cost of scoring G+1 tokens
at once, the best G follows; it is 0 where drafting does not pay.
"""

from collections.abc import Callable
from dataclasses import dataclass

FORGETTING = 0.7  # weight of older chunks, per chunk
PRIOR_HITS, PRIOR_MISSES = 1.0, 1.0


def draft_widths(draft_length: int) -> tuple[int, ...]:
    """The draft widths worth compiling, up to `draft_length`: 0, 3, 7, 15, ..."""
    widths = [0, 3]
    while widths[-1] < draft_length:
        widths.append(2 * widths[-1] + 1)
    return tuple(sorted({min(width, draft_length) for width in widths}))


def step_cost(width: int) -> float:
    """Time of scoring `width` drafts, in units of a plain step.

    Fitted to the 270M Gemma 3 in float32 on two CPU cores, one row. Wide steps are cheap there
    because reading the weights dominates; so they are on accelerators.
    """
    return 1.0 if width == 0 else 1.0 + 0.064 * (width + 1)


@dataclass(frozen=True)
class StepCosts:
    """What steps with so many draft tokens cost; `speculax.tune` measures them.

    Attributes:
        widths: Numbers of draft tokens, rising, from 0.
        seconds: The time of a step with each, drafting included.

    Raises:
        ValueError: If the widths do not rise from 0, or a time is not above 0.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        widths, seconds = tuple(self.widths), tuple(self.seconds)
        if (
            len(widths) != len(seconds)
            or widths[:1] != (0,)
            or list(widths) != sorted(set(widths))
            or not all(0 < one < float("inf") for one in seconds)
        ):
            raise ValueError(
                f"costs must be of widths that rise from 0, with a time above 0 for each, got "
                f"{widths} and {seconds}."
            )

    def of(self, width: int) -> float:
        """The time of a step of one of the widths, in units of a plain step."""
        return self.seconds[self.widths.index(width)] / self.seconds[0]


class DraftLength:
    """The draft length of one row.

    Attributes:
        current: How many tokens to draft for the row in the next chunk; one of the widths.

    Args:
        widths: Those to choose from, rising.
        cost: The time of a step with each.
        rest: If no drafts pay, for how many chunks not even to ask whether they would again.
    """

    def __init__(
        self, widths: tuple[int, ...], cost: Callable[[int], float] = step_cost, rest: int = 0
    ) -> None:
        self._widths, self._cost = widths, cost
        self._rest, self._rested = rest, rest
        self._hits, self._misses = PRIOR_HITS, PRIOR_MISSES
        self.current = self._best()

    @property
    def is_resting(self) -> bool:
        """Whether the row does without a drafter in the next chunk, and learns nothing from it."""
        return self._rested < self._rest

    def update(self, hits: int, misses: int) -> None:
        """Learn from a chunk in which `hits` draft tokens held and `misses` did not."""
        if self.is_resting:
            self._rested += 1
            return
        self._hits = FORGETTING * self._hits + hits
        self._misses = FORGETTING * self._misses + misses
        self.current = self._best()
        self._rested = self._rest if self.current else 0

    def _best(self) -> int:
        held = self._hits / (self._hits + self._misses)

        def tokens_per_cost(width: int) -> float:
            return sum(held**i for i in range(width + 1)) / self._cost(width)

        return max(self._widths, key=tokens_per_cost)
