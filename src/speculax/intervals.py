"""How far a ratio of sums may be off."""

from typing import NamedTuple

import numpy as np

_RESAMPLES, _CONFIDENCE = 2000, 0.95


class Estimate(NamedTuple):
    """A number, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def ratio_of_sums(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """The sum of the numerators (N,) over that of the denominators (N,).

    The interval has the percentiles over resampled entries.
    """
    size = len(numerators)
    picks = np.random.default_rng(0).integers(0, size, (_RESAMPLES, size))
    ratios = numerators[picks].sum(axis=1) / denominators[picks].sum(axis=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Estimate(float(numerators.sum() / denominators.sum()), float(low), float(high))
