"""Which known mistake a generation loop makes.

Where chance has no say, results are compared; what is left over is told apart by the laws of texts,
counted and compared by chi-square.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.chi_square import p_value, survival
from speculax.conformance.generate import mutants
from speculax.conformance.generate.acceptance import watch
from speculax.conformance.generate.call import Call, run
from speculax.conformance.generate.form import CAPS, PROMPTS, make_call
from speculax.conformance.generate.law import counted, draw_texts, exact, test
from speculax.conformance.generate.laws import EQUAL, MIXED, UNLIKE, as_ids
from speculax.conformance.generate.scripts import LENGTH, OTHER, PLAIN, Script, chains, stopping
from speculax.conformance.kind import as_candidate, fault_of
from speculax.conformance.matching import SURE, Seen, differ
from speculax.conformance.report import Diagnosis, Level

WIDTH, FAILED = 40, -9
FEWEST = 3  # probes that tell a mutant, for it to be named
NUM_TEXTS, NAMED_BY = 1200, (UNLIKE, MIXED)
OTHER_SEEDS = 1_000_000  # mutants get noise of their own
WRONG, SAME = 1e-4, 1e-3  # p-values: below the one laws differ, above the other they may be one


def diagnose(candidate: Candidate, rule: str, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right, or like no other."""
    del rule
    length = draft_length(candidate)
    own = without_chance(candidate, level)
    right = _known(mutants.Loop, length, level)
    texts = _draw(candidate, 0)
    if texts is not None and any((found == found[0]).all() for found in texts):
        texts = None  # the same text each time: it cannot be told by its law
    if not differ(own, right).any() and (texts is None or _is_right(texts)):
        return None
    contexts = contexts_of(candidate)
    best: tuple[tuple[float, ...], Diagnosis] | None = None
    for mutant in mutants.MUTANTS.values():
        theirs = _known(mutant, length, level)
        match = Match(differ(own, right), differ(theirs, right), ~differ(own, theirs))
        score, distance = match.score(), 0.0
        if score is not None and texts is not None:
            others = _texts(mutant, length)
            if others is None:
                continue
            found, distance = compare(texts, others)
            match = match.and_more(found)
        if score is None or match.score() is None or match.tells.sum() < FEWEST:
            continue
        agreed, probes = int((match.same & match.tells).sum()), int(match.tells.sum())
        diagnosis = Diagnosis(mutant.__name__, fault_of(mutant()), agreed, probes)
        rank = (round(score, 2), contexts == _contexts(mutant, length), -distance)
        if best is None or rank > best[0]:
            best = rank, diagnosis
    return None if best is None else best[1]


class Match(NamedTuple):
    """How a function compares with a mutant on probes, bool arrays.

    Attributes:
        is_wrong: Where the function differs from what is right.
        tells: Where the mutant does.
        same: Where they may be the same.
    """

    is_wrong: np.ndarray
    tells: np.ndarray
    same: np.ndarray

    def and_more(self, other: "Match") -> "Match":
        """With further probes."""
        return Match(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def score(self) -> float | None:
        """From 0 to 2 how well one explains the other; None if not well."""
        agreed, explained = (
            float(self.same[where].mean()) if where.any() else 1.0
            for where in (self.tells, self.is_wrong)
        )
        return agreed + explained if min(agreed, explained) >= SURE else None


def draft_length(candidate: Candidate, at_most: int = 8) -> int:
    """How many tokens a loop drafts in a step; 3 if it does not draft."""
    call = Script(PLAIN, OTHER, LENGTH, None, PLAIN).call()
    asked = ""

    def target(ids: Sequence[int]) -> np.ndarray:
        nonlocal asked
        asked += "t"
        return call.target(ids)

    def drafter(ids: Sequence[int]) -> np.ndarray:
        nonlocal asked
        asked += "d"
        return call.drafter(ids)

    if _run(candidate, call._replace(target=target, drafter=drafter)) is None or "d" not in asked:
        return 3
    return min(max(len(series) for series in asked.split("t")), at_most)


# --- Where chance has no say


@cache
def _known(mutant: type[mutants.Loop], length: int, level: Level) -> list[Seen]:
    return without_chance(as_candidate(mutant(length)), level)


def without_chance(candidate: Candidate, level: Level) -> list[Seen]:
    """What a loop does, one row a probe."""
    found = [_texts_of(candidate, script) for script in _scripts(level)]
    found += [_row(chain.text() == _run(candidate, chain.call())) for chain in chains(level)]
    found += [_row(len(_run(candidate, make_call(p, cap)) or ())) for p in PROMPTS for cap in CAPS]
    found += list(_habits(candidate))
    return found


def _scripts(level: Level) -> Iterator[Script]:
    for scripts in stopping(level).values():
        yield from scripts


def _habits(candidate: Candidate) -> Iterator[Seen]:
    """What the seed does, what becomes of the caller's prompt, and of drafts that are sure."""
    for prompt in PROMPTS[:2] * 2:
        call = make_call(prompt, 12)
        texts = [_run(candidate, call._replace(seed=seed)) for seed in (1, 1, 2, 3)]
        yield _row(texts[0] == texts[1])
        yield _row(texts[1] == texts[2] == texts[3])
        given = list(prompt)
        try:
            candidate(*call._replace(prompt=given))
        except Exception:
            given = []
        yield _row(given == prompt)
    try:
        seen = watch(candidate, EQUAL, range(100))
        refuses = seen.refused > 0 and not seen.is_chance
    except Exception:
        refuses = FAILED
    yield from [_row(refuses)] * FEWEST  # no single text would tell


def _run(candidate: Candidate, call: Call) -> list[int] | None:
    try:
        return run(candidate, call)
    except Exception:
        return None


def _texts_of(candidate: Candidate, script: Script) -> Seen:
    text = _run(candidate, script.call())
    row = np.full((1, WIDTH), FAILED if text is None else -1)
    if text is not None:
        row[0, : len(text)] = text[:WIDTH]
    return Seen(row)


def _row(value: int) -> Seen:
    return Seen(np.array([[int(value)]]))


# --- Who is asked about what


@cache
def _contexts(mutant: type[mutants.Loop], length: int) -> frozenset[str]:
    return contexts_of(as_candidate(mutant(length)))


def contexts_of(candidate: Candidate) -> frozenset[str]:
    """What is peculiar to the texts that the drafter is asked about."""
    found = set()
    for seed in range(20):
        call = make_call([0, 1], LENGTH, seed)
        asked = []

        def target(ids: Sequence[int], asked: list = asked) -> np.ndarray:
            asked.append(("target", as_ids(ids)))
            return EQUAL.target(ids)

        def drafter(ids: Sequence[int], asked: list = asked) -> np.ndarray:
            asked.append(("drafter", as_ids(ids)))
            return EQUAL.drafter(ids)

        _run(candidate, call._replace(target=target, drafter=drafter))
        series = [[ids for _, ids in group] for _, group in groupby(asked, lambda one: one[0])]
        for drafted, judged in zip(series[::2], series[1::2], strict=False):
            if drafted[0] != judged[0]:
                found.add("the drafter begins elsewhere than the target")
            if any(longer[:-1] != ids for ids, longer in pairwise(drafted)):
                found.add("a draft token is not drawn after those before it")
    return frozenset(found)


# --- Laws


@cache
def _texts(mutant: type[mutants.Loop], length: int) -> list[np.ndarray] | None:
    return _draw(as_candidate(mutant(length)), OTHER_SEEDS)


def _draw(candidate: Candidate, first: int) -> list[np.ndarray] | None:
    """Texts of `NAMED_BY`; None if there are none to count."""
    try:
        return [draw_texts(candidate, laws, first, NUM_TEXTS) for laws in NAMED_BY]
    except Exception:
        return None


def _is_right(texts: list[np.ndarray]) -> bool:
    """Whether texts follow the target's laws."""
    laws = zip(texts, NAMED_BY, strict=True)
    return all(p >= WRONG for found, one in laws for p in test(found, one))


def compare(texts: list[np.ndarray], others: list[np.ndarray]) -> tuple[Match, float]:
    """How the laws of texts of a function and a mutant compare, and how far they are apart.

    The distance is in deviations of what chance makes of equal laws.
    """
    is_wrong, tells, same, distances = [], [], [], []
    for own, theirs, laws in zip(texts, others, NAMED_BY, strict=True):
        for places, law in exact(laws.name):
            a, b = counted(own, places), counted(theirs, places)
            is_wrong.append(p_value(a, law) < WRONG)
            tells.append(p_value(b, law) < WRONG)
            statistic, degrees = _two_samples(a, b)
            same.append(survival(statistic, degrees) > SAME)
            distances.append((statistic - degrees) / np.sqrt(2 * degrees))
    return Match(*map(np.array, (is_wrong, tells, same))), float(np.mean(distances))


def _two_samples(some: np.ndarray, others: np.ndarray) -> tuple[float, int]:
    """Chi-square for as many counts of each, if one law is behind both; its degrees of freedom."""
    both = some + others
    seen = both > 0
    statistic = ((some - others)[seen] ** 2 / both[seen]).sum()
    return float(statistic), max(int(seen.sum()) - 1, 1)
