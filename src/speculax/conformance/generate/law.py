"""The law of the text over several steps: many seeds, counted, against exact probabilities."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.chi_square import p_value
from speculax.conformance.explain import explain
from speculax.conformance.generate.call import Call, run, snippet
from speculax.conformance.generate.laws import LAWS, VOCAB, Laws
from speculax.conformance.report import Failure, Level, Outcome

# The chance that a right function is refused, all tests of the stage together; each gets an equal
# share. Seeds are fixed, so that a function that passes goes on passing.
FALSE_ALARM = 1e-6
NUM_TEXTS, LENGTH = 1200, 6  # texts a law, and tokens a text: two steps and more
PROMPT = [0]

Places = tuple[int, ...]
PLACES: list[Places] = [
    *combinations(range(LENGTH), 2),
    *((i, i + 1, i + 2) for i in range(LENGTH - 2)),
]


def check_law(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """The joint laws of any two tokens and of any three in a row, by chi-square."""
    del rule, level
    limit = FALSE_ALARM / (len(PLACES) * len(LAWS))
    checks = 0
    for laws in LAWS:
        try:
            texts = draw_texts(candidate, laws)
        except Exception as error:
            return Outcome(checks + 1, [explain(candidate, error, laws.about)])
        p_values = dict(zip(PLACES, test(texts, laws), strict=True))
        checks += len(PLACES)
        places = min(p_values, key=lambda places: p_values[places])
        if p_values[places] < limit:
            return Outcome(checks, [_failure(candidate, laws, texts, places, p_values[places])])
    note = f"law: {NUM_TEXTS} texts of {LENGTH} tokens were counted for {len(LAWS)} drafters; "
    note += f"a right loop is refused with a chance of {FALSE_ALARM:g}"
    return Outcome(checks, notes=[note])


def make_call(laws: Laws, seed: int) -> Call:
    """One text of a law."""
    return Call(laws.target, laws.drafter, PROMPT, LENGTH, None, seed)


def draw_texts(
    candidate: Candidate, laws: Laws, first: int = 0, count: int = NUM_TEXTS
) -> np.ndarray:
    """Texts of the seeds from `first` on, int (count, LENGTH).

    Raises:
        Exception: Whatever the function raises, or if a text is not `LENGTH` tokens long.
    """
    texts = [run(candidate, make_call(laws, seed)) for seed in range(first, first + count)]
    found = np.array(texts)
    if found.shape != (count, LENGTH) or found.min() < 0 or found.max() >= VOCAB:
        raise ValueError(f"there are texts that are not {LENGTH} ids below {VOCAB}")
    return found


def test(texts: np.ndarray, laws: Laws) -> list[float]:
    """The p-value of each of `PLACES`."""
    return [p_value(counted(texts, places), law) for places, law in exact(laws.name)]


def counted(texts: np.ndarray, places: Places) -> np.ndarray:
    """How often each combination stands at these places, int (V ** places,)."""
    shape = (VOCAB,) * len(places)
    cells = np.ravel_multi_index(tuple(texts[:, list(places)].T), shape)
    return np.bincount(cells, minlength=VOCAB ** len(places))


@cache
def exact(name: str) -> list[tuple[Places, np.ndarray]]:
    """For each of `PLACES` the law of what stands there, float64 (V ** places,)."""
    laws = next(laws for laws in LAWS if laws.name == name)
    return list(_marginals(laws.joint(PROMPT, LENGTH)))


def _marginals(joint: np.ndarray) -> Iterator[tuple[Places, np.ndarray]]:
    for places in PLACES:
        others = tuple(axis for axis in range(LENGTH) if axis not in places)
        yield places, joint.sum(axis=others).ravel()


def _failure(
    candidate: Candidate, laws: Laws, texts: np.ndarray, places: Places, p: float
) -> Failure:
    """The combination that is the farthest off."""
    law = dict(exact(laws.name))[places] * len(texts)
    seen = counted(texts, places)
    cell = int(np.argmax((seen - law) ** 2 / np.maximum(law, 1e-3)))
    ids = [int(i) for i in np.unravel_index(cell, (VOCAB,) * len(places))]
    numbers = " and ".join(str(place + 1) for place in places)
    return Failure(
        f"{laws.about}: the text follows another law than the target's (p = {p:.1g})",
        f"tokens {numbers} are {ids} in {law[cell]:.0f} of {len(texts)} texts",
        f"in {seen[cell]} of them",
        snippet(candidate, laws.lines(), make_call(laws, 0)),
        "The first token tells of the test and the correction, later ones of how steps follow each "
        "other: rows, contexts, and numbers that are used twice.",
    )
