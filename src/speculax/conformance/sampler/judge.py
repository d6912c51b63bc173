"""What was found of a sampler's rows, beside their laws by definition."""

from typing import NamedTuple

import numpy as np

from speculax.conformance import chi_square
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level
from speculax.conformance.sampler.call import Rows, counting, in_words, snippet, together
from speculax.conformance.sampler.measure import Measured, measure
from speculax.conformance.sampler.oracle import Order, RowLaw, row_law

# Chance that a stage accuses a right sampler that takes a key; shared by all its rows.
FALSE_ALARM = 1e-6
# How far an exact mass may be from its place: sums of float32 are off by 1e-6, of float16 by 1e-3.
MASS_BOUND = {"contract": 2e-3, "robust": 1e-4, "strict": 1e-5}
LEAST_SHOWN = 1e-3  # of mass


class Group(NamedTuple):
    """Rows that are about one thing.

    Attributes:
        name: What.
        rows: The rows, the easiest to read first.
        why: Why it matters, or what to do.
    """

    name: str
    rows: Rows
    why: str


def judge_groups(
    candidate: Candidate, order: Order, level: Level, groups: list[Group], num_tests: int = 0
) -> tuple[int, list[Failure]]:
    """How many rows were looked at, and the first that is wrong of each group.

    The groups must have one vocabulary: all their rows share batches.

    Args:
        candidate: The sampler.
        order: Of the filters.
        level: How much is demanded.
        groups: The rows.
        num_tests: By how many chi-squares the chance of a false alarm is shared; 0 for one a row.
    """
    rows = together([group.rows for group in groups])
    try:
        measured = measure(candidate, rows)
    except Exception as error:
        return 1, [explain(candidate, error, f"rows of {rows.logits.shape[1]} tokens")]
    false_alarm = FALSE_ALARM / (num_tests or len(rows.logits))
    failures, start = [], 0
    for group in groups:
        for r in range(len(group.rows.logits)):
            law = row_law(group.rows.logits[r], group.rows.settings(r), order)
            wrong = _wrong(measured, start + r, law, level, false_alarm)
            if wrong is not None:
                row = group.rows.take(slice(r, r + 1))
                failures.append(_failure(candidate, group, row, law, measured, start + r, *wrong))
                break
        start += len(group.rows.logits)
    return len(rows.logits), failures


def _wrong(
    measured: Measured, r: int, law: RowLaw | None, level: Level, false_alarm: float
) -> tuple[str, int | None] | None:
    """What is wrong with a row, and the column of an id that should not come out at all."""
    probs = measured.probs[r]
    size = len(probs) - 2
    if law is None:
        column = int(probs.argmax())
        return None if probs[-2] == 1 else ("a token comes out and not -1", column)
    for column in (size, size + 1):
        if probs[column]:
            return "an id outside the vocabulary comes out", column
    forbidden = np.flatnonzero((probs[:size] > 0) & ~law.may).tolist()
    if forbidden:
        return f"token {forbidden[0]} comes out, {_reason(law, forbidden[0])}", forbidden[0]
    if measured.draws:
        counts = np.rint(probs[:size] * measured.draws).astype(int)
        p_value = chi_square.p_value(counts, law.after)
        return None if p_value >= false_alarm else (f"another law (p-value {p_value:.1g})", None)
    bound = MASS_BOUND[level]
    missing = np.flatnonzero((probs[:size] == 0) & law.must & (law.after > bound))
    if len(missing):
        return f"token {missing[0]} never comes out, and should", None
    off = np.abs(probs[:size] - law.after)
    if off.max() > bound:
        return f"the mass of token {off.argmax()} is off by {off.max():.2g}", None
    return None


def _reason(law: RowLaw, token: int) -> str:
    if law.logs[token] > -np.inf:
        return "which the settings leave out"
    if not law.slack.any():  # greedy
        return f"and the likeliest is {law.must.argmax()}"
    return "which has no mass"


def _failure(
    candidate: Candidate,
    group: Group,
    row: Rows,
    law: RowLaw | None,
    measured: Measured,
    r: int,
    wrong: str,
    column: int | None,
) -> Failure:
    probs = measured.probs[r]
    size = len(probs) - 2
    want = "-1" if law is None else shown(law.after, size)
    actual, pasted = shown(probs, size), counting(candidate, row)
    if column is not None and measured.uniforms is not None:
        uniform = measured.uniforms[r, column]
        actual += f"; the uniform {uniform!s} gives {_NAMES.get(column - size, column)}"
        pasted = snippet(candidate, row, measured.uniforms[r, column : column + 1])
    return Failure(
        f"{group.name}: {wrong}",
        f"{want}, with {in_words(row.settings(0))}",
        actual,
        pasted,
        group.why,
    )


_NAMES = {0: "-1", 1: "an id outside"}  # by how far they are behind the vocabulary


def shown(probs: np.ndarray, size: int, most: int = 8) -> str:
    """The likeliest tokens of a law, for people; entries from `size` on are ids outside."""
    some = np.flatnonzero(probs >= LEAST_SHOWN)
    some = np.sort(some[np.argsort(-probs[some], kind="stable")][:most])
    return ", ".join(f"{_NAMES.get(token - size, token)}: {probs[token]:.4f}" for token in some)
