"""Laws by their definition: float64, sorted, one row at a time. Shares no code with `speculax`.

A row of settings is a `Settings`. Where arithmetic in float32 may decide either way, the oracle
says so: a `RowLaw` names the tokens that must be kept and those that may be.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

Order = Literal["sequential", "joint"]

MASS_SLACK = 1e-6  # how close to top-p a mass must be for either side to be right
LARGEST_UNIFORM = 1 - 2.0**-24
TINY = 1e-36  # weights that float32 may well take for zero


class Settings(NamedTuple):
    """What a row asks for; the defaults are neutral. See `speculax.law_from_logits`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None


class RowLaw(NamedTuple):
    """The law of one row, and how sure of it anyone working in float32 can be.

    Attributes:
        logs: float64 (V,), log-weights; -inf without mass, 0 for the likeliest.
        scores: float64 (V,), what the cut-offs go by.
        must: bool (V,), the tokens that must be kept.
        may: bool (V,), the tokens that may be kept.
        slack: float64 (V,), relative, of the weights in float32.
    """

    logs: np.ndarray
    scores: np.ndarray
    must: np.ndarray
    may: np.ndarray
    slack: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """Probabilities without cut-offs."""
        return normalized(np.exp(self.logs))

    @property
    def after(self) -> np.ndarray:
        """Probabilities with them."""
        return normalized(np.where(self.must, np.exp(self.logs), 0.0))


def normalized(weights: np.ndarray) -> np.ndarray:
    """Weights whose rows sum to one."""
    return weights / weights.sum(-1, keepdims=True)


def as64(values: Any) -> np.ndarray:
    """What float32 makes of numbers, in float64."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


def row_scores(row: Any, settings: Settings, is_logits: bool) -> np.ndarray:
    """Masked and biased logits or probabilities: sums are those of float32, as documented."""
    row = np.asarray(row).astype(np.float32)
    with np.errstate(all="ignore"):
        if not is_logits:
            row = np.maximum(row, np.float32(0)).astype(np.float64)
        if settings.bias is not None:
            bias = np.asarray(settings.bias).astype(np.float32)
            row = row + bias if is_logits else row * np.exp(bias.astype(np.float64))
    row = row.astype(np.float64)
    nothing = -np.inf if is_logits else 0.0
    return row if settings.mask is None else np.where(settings.mask, row, nothing)


def is_usable(scores: np.ndarray, settings: Settings, is_logits: bool) -> bool:
    """Whether a row has a law at all."""
    t, k, p, m = settings[:4]
    in_range = 0 <= t < np.inf and k >= 0 and 0 < p <= 1 and 0 <= m <= 1
    top = scores.max()
    return bool(in_range and np.isfinite(top) and (is_logits or top > 0))


def top_k_kept(scores: np.ndarray, k: int) -> np.ndarray:
    """The k highest and all that tie with the last of them."""
    return scores >= np.sort(scores)[::-1][min(k, len(scores)) - 1]


def top_p_kept(
    scores: np.ndarray, weights: np.ndarray, subset: np.ndarray, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """(must, may): the smallest set of mass p or more, tokens of one score together."""
    ids = np.flatnonzero(subset)
    ids = ids[np.argsort(-scores[ids], kind="stable")]
    ends = np.append(scores[ids][1:] != scores[ids][:-1], True)
    masses = np.cumsum(weights[ids])[ends] / weights[ids].sum()
    lowest = scores[ids][ends]
    # A set is right if its mass reaches p, and without its last score does not, give or take.
    first = np.argmax(np.append(masses[:-1] >= p - MASS_SLACK, True))
    last = np.argmax(np.append(masses[:-1] >= p + MASS_SLACK, True))
    return scores >= lowest[first], scores >= lowest[last]


def row_law(
    row: Any, settings: Settings, order: Order = "sequential", is_logits: bool = True
) -> RowLaw | None:
    """The law of one row as a `RowLaw`; None if it has none."""
    scores = row_scores(row, settings, is_logits)
    if not is_usable(scores, settings, is_logits):
        return None
    top, size = scores.max(), len(scores)
    if settings.temperature == 0:
        point = np.arange(size) == np.argmax(scores)
        logs = np.where(point, 0.0, -np.inf)
        return RowLaw(logs, logs, point, point, np.zeros(size))
    temperature, top_p, min_p = as64([settings.temperature, settings.top_p, settings.min_p])
    with np.errstate(divide="ignore"):
        logs = (scores - top if is_logits else np.log(scores / top)) / temperature
    weights, has_mass = np.exp(logs), logs > -np.inf
    # Roundings: the difference or ratio of scores, the division by the temperature, exp, the sum.
    slack = 2.0**-20 + 2.0**-22 * np.abs(logs, where=has_mass, out=np.zeros(size))
    if not is_logits:
        slack += 2.0**-22 / temperature
    must, may = has_mass.copy(), has_mass.copy()
    if settings.top_k > 0:
        must &= top_k_kept(scores, settings.top_k)
        may &= must
    if top_p < 1:
        subset = has_mass if order == "joint" else must
        low, high = top_p_kept(scores, weights, subset, top_p)
        must, may = must & low, may & high
    if min_p > 0:
        if is_logits:
            shift = temperature * np.log(min_p)
            lowest, rounding = top + shift, 2.0**-22 * (abs(top) + abs(shift))
        else:
            lowest = top * min_p**temperature
            rounding = lowest * (2.0**-24 if temperature == 1 else 2.0**-18)
        must, may = must & (scores >= lowest + rounding), may & (scores >= lowest - rounding)
    must |= scores == top
    faint = (weights < TINY) | ((scores < TINY) | (scores / top < TINY) if not is_logits else False)
    return RowLaw(logs, scores, must & ~faint, may, slack)


def failures(probs: Any, law: RowLaw | None) -> list[str]:
    """What is wrong with probabilities (V,) that should follow a `RowLaw`; a list of words."""
    probs = np.asarray(probs, np.float64)
    if law is None:
        return [] if np.isnan(probs).all() else ["a law where there is none"]
    if not np.all(np.isfinite(probs) & (probs >= 0)):
        return ["no probabilities"]
    kept, wrong = probs > 0, []
    for words, ids in (("lacks", law.must & ~kept), ("should leave out", kept & ~law.may)):
        if ids.any():
            some = np.flatnonzero(ids)
            wrong.append(f"{words} {len(some)} tokens, such as {some[0]}")
    weights = np.exp(law.logs)
    lowest = law.scores[kept & (weights >= TINY)].min(initial=law.scores.max())
    if ((law.scores >= lowest) & ~kept).any():
        wrong.append("parts tokens of equal score, or of a higher one")
    if wrong:
        return wrong
    want = normalized(np.where(kept, weights, 0.0))
    limit = want * (2 * law.slack + 2.0**-20) + 1e-30
    if (np.abs(probs - want) > limit).any():
        worst = np.argmax(np.abs(probs - want) / limit)
        wrong.append(f"token {worst} has {probs[worst]!r} for {want[worst]!r}")
    return wrong


def draw(weights: Any, uniform: float) -> int:
    """The smallest id whose cumulative weight exceeds the uniform's share of the whole."""
    uniform = 0.0 if np.isnan(uniform) else min(max(float(uniform), 0.0), LARGEST_UNIFORM)
    cumulative = np.cumsum(np.asarray(weights, np.float64))
    return int(np.argmax(cumulative > uniform * cumulative[-1]))
