"""How surprising counts are, and how surely that shows that a law is another.

The statistic is that of the likelihood ratio, with Williams' correction (Biometrika 63, 1976). It
follows chi-square as far out as 1e-9, within a factor of two; Pearson's does not, where few are
expected: there it is a hundred times as often that large.
"""

from math import erfc, exp, lgamma, log, sqrt

import numpy as np

LEAST_EXPECTED = 10.0  # cells of which fewer are expected are put together


def survival(statistic: float, degrees: int) -> float:
    """The chance that chi-square with so many degrees of freedom is larger."""
    half = statistic / 2
    if half <= 0 or degrees == 0:
        return 1.0
    is_odd = degrees % 2
    start = 0.5 if is_odd else 0.0
    total = erfc(sqrt(half)) if is_odd else 0.0
    for i in range(degrees // 2):
        total += exp((i + start) * log(half) - lgamma(i + start + 1) - half)
    return min(total, 1.0)


def limit(false_alarm: float, degrees: int) -> float:
    """The statistic that is exceeded with this chance."""
    low, high = 0.0, 1.0
    while survival(high, degrees) > false_alarm:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, degrees) > false_alarm else (low, middle)
    return high


def pool(expected: np.ndarray) -> np.ndarray:
    """The group of each cell, int: cells with mass, the rarest put together; -1 without mass."""
    groups = np.full(len(expected), -1)
    group, filled = 0, 0.0
    for cell in np.argsort(expected, kind="stable"):
        if expected[cell] <= 0:
            continue
        groups[cell] = group
        filled += expected[cell]
        if filled >= LEAST_EXPECTED:
            group, filled = group + 1, 0.0
    if filled > 0 and group > 0:  # what is left at the end goes with the cell before it
        groups[groups == group] = group - 1
    return groups


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """How likely counts are that differ as much from a law; 0 where the impossible was counted.

    Args:
        counts: int (cells,).
        probs: float64 (cells,), summing to one.
    """
    expected = probs * counts.sum()
    groups = pool(expected)
    if counts[groups < 0].any():
        return 0.0
    kept = groups >= 0
    seen = np.bincount(groups[kept], counts[kept])
    wanted = np.bincount(groups[kept], expected[kept])
    if len(wanted) < 2:
        return 1.0
    some = seen > 0
    ratio = 2 * (seen[some] * np.log(seen[some] / wanted[some])).sum()
    correction = 1 + ((1 / wanted).sum() - 1 / wanted.sum()) / (6 * (len(wanted) - 1))
    return survival(float(ratio / correction), len(wanted) - 1)


def power(probs: np.ndarray, other: np.ndarray, count: int, false_alarm: float) -> float:
    """The chance to refuse `other` for the law `probs`, nearly: by noncentral chi-square.

    Args:
        probs: float64 (cells,), the law that is tested for.
        other: float64 (cells,), the law that is counted; what is missing to one is impossible.
        count: How many are counted.
        false_alarm: The chance to refuse the law itself.
    """
    groups = pool(probs * count)
    kept = groups >= 0
    impossible = max(1 - other[kept].sum(), 0.0)
    found = 1 - (1 - impossible) ** count if impossible > 1e-12 else 0.0
    law, seen = (np.bincount(groups[kept], x[kept]) for x in (probs, other))
    shift = float(count * ((seen - law) ** 2 / law).sum())
    return max(found, _noncentral(shift, len(law) - 1, false_alarm))


def _noncentral(shift: float, degrees: int, false_alarm: float) -> float:
    """The chance that noncentral chi-square exceeds the limit of the central one."""
    if degrees == 0:
        return 0.0
    most = limit(false_alarm, degrees)
    if shift > 4 * most + 200:  # some ten deviations beyond
        return 1.0
    half, total = max(shift / 2, 1e-300), 0.0
    for k in range(int(half + 10 * sqrt(half + 1) + 20)):  # a Poisson number of pairs of degrees
        weight = exp(k * log(half) - lgamma(k + 1) - half)
        total += weight * survival(most, degrees + 2 * k)
    return min(total, 1.0)
