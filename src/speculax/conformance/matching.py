"""A function matched with known-wrong ones by what they do on probes."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from speculax.conformance.report import Diagnosis

SURE = 0.9  # of the probes that tell a mutant from the rule, and of those where the function fails


class Bounds(NamedTuple):
    """When numbers are the same.

    Attributes:
        apart: Not if they are further apart than this,
        rare: or if one is zero and the other is larger than this.
    """

    apart: float
    rare: float = np.inf


class Seen(NamedTuple):
    """What a function does on probes of one sort.

    Attributes:
        numbers: float64 (probes, numbers).
        bounds: How far apart they may be and be the same.
    """

    numbers: np.ndarray
    bounds: Bounds = Bounds(0)

    def differs(self, other: "Seen") -> np.ndarray:
        """Of each probe, whether two functions do not do the same, bool (probes,)."""
        some, off = self.numbers, np.abs(self.numbers - other.numbers)
        is_only_one = ((some == 0) != (other.numbers == 0)) & (off > self.bounds.rare)
        return ((off > self.bounds.apart) | is_only_one).any(axis=1)


def differ(some: list[Seen], other: list[Seen]) -> np.ndarray:
    """Of all probes, whether two functions differ."""
    return np.concatenate([a.differs(b) for a, b in zip(some, other, strict=True)])


def nearest(
    own: list[Seen],
    right: list[Seen],
    mutants: Mapping[str, tuple[str, list[Seen]]],
    fewest: int = 1,
) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is like no other.

    Args:
        own: What the function does.
        right: What a right one does.
        mutants: The fault of each, and what it does.
        fewest: How many probes must tell a mutant from what is right.
    """
    is_wrong = differ(own, right)
    best: tuple[float, int, Diagnosis] | None = None
    for name, (fault, theirs) in mutants.items():
        tells = differ(theirs, right)
        if tells.sum() < fewest or not is_wrong.any():
            continue
        same = ~differ(own, theirs)
        agreed, total = int((same & tells).sum()), int(tells.sum())
        explained = int((same & is_wrong).sum()) / int(is_wrong.sum())
        if agreed < SURE * total or explained < SURE:
            continue
        found = agreed / total + explained, total, Diagnosis(name, fault, agreed, total)
        if best is None or found[:2] > best[:2]:
            best = found
    return None if best is None else best[2]
