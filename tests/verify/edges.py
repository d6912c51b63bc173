"""The edge table of the design as data: one entry of `EDGES` a row of the table.

Every case is one row of a batch with G = 2 and V = 4 (so that all share one compiled program) and
the tokens it must emit. All numbers are exact in float32 and, unless a case is about rounding, so
are the comparisons.
"""

from typing import NamedTuple

import numpy as np

# The settings that the lossy rules are tested with.
SETTINGS = {
    "typical": {"epsilon": 0.25, "delta": 0.5},
    "thresholds": {"threshold_single": 0.375, "threshold_acc": 0.5},
    "top_k": {"k": 2},
    "synthetic": {"rates": 0.75},
}

INF, NAN = float("inf"), float("nan")
LARGEST = 1 - 2.0**-24
FLAT = [0.25] * 4
NANS = [NAN] * 4
ZERO = [0.0] * 4


class Case(NamedTuple):
    emitted: list  # the accepted tokens and the extra one: n + 1 of them
    ids: list
    draft: list | None
    target: list
    accept: list
    sample: float
    length: int | None


def case(
    emitted,
    ids=(0, 0),
    draft=(FLAT, FLAT),
    target=(FLAT, FLAT, FLAT),
    accept=(0.5, 0.5),
    sample=0.5,
    length=None,
):
    return Case(emitted, ids, draft, target, accept, sample, length)


def one_hot(token):
    return [float(i == token) for i in range(4)]


def first(emitted, draft, target, ids=0, accept=0.5, sample=0.5, **rest):
    """A case about position 0; later rows are NaN, and position 1 must not matter."""
    return case(
        emitted,
        (ids, 3),
        None if draft is None else (draft, NANS),
        (target, NANS, NANS),
        (accept, NAN),
        sample,
        **rest,
    )


def bonus(token, target, sample, **rest):
    """A case about the bonus token: both drafts have mass one in both laws."""
    law = (one_hot(1), one_hot(2))
    return case([1, 2, token], (1, 2), law, (*law, target), sample=sample, **rest)


# Refusing token 3 by its missing target mass leaves the residual [1/4, 1/4, 0, 0].
HALF, LEAN = [0.5, 0.5, 0, 0], FLAT

RATIO = {
    "tests run in order, each with its own rows": [
        case([1], (0, 1), (FLAT, FLAT), (one_hot(1), one_hot(1), FLAT)),
        case([1], (0, 2), (FLAT, FLAT), (one_hot(1), FLAT, FLAT), (0.0, 0.0)),
        # Row 1 alone refuses the second draft, and only row 1 of the draft may be subtracted.
        case([0, 1], (0, 3), (HALF, [0.5, 0, 0, 0.5]), (HALF, HALF, one_hot(3)), sample=0.25),
        case([3, 0], (3, 3), (FLAT, FLAT), (one_hot(3), HALF, one_hot(3)), sample=0.25),
        case([3], (1, 3), (LEAN, FLAT), (one_hot(3), one_hot(3), HALF)),
    ],
    "zero target mass is never accepted": [
        first([2], [0.25, 0.5, 0.25, 0], [0.25, 0, 0.75, 0], ids=1, accept=0.0),
        first([2], [0.25, 0.5, 0.25, 0], [0.25, 0, 0.75, 0], ids=1, accept=-1.0),
        first([2], [0.5, 0, 0.25, 0.25], [0.5, 0, 0.5, 0], ids=1, accept=0.0),
        first([2], [0.5, 0, 0.25, 0.25], [0.5, 0, 0.5, 0], ids=1, accept=0.5),
        first([2], None, [0.5, 0, 0.5, 0], ids=1, accept=0.0, sample=0.75),
    ],
    "zero draft mass with target mass is accepted": [
        case(
            [1, 0, 3],
            (1, 0),
            ([0.5, 0, 0.5, 0], [0, 0, 0, 1]),
            ([0.5, 2.0**-20, 0.5, 0], [2.0**-30, 0, 0, 1], one_hot(3)),
            (u, u),
        )
        for u in (0.0, 0.5, LARGEST)
    ],
    "the comparison is strict": [
        first([1], [0.5, 0, 0, 0.5], [0.25, 0.5, 0.25, 0], accept=0.5, sample=0.0),
        first([1], [0.5, 0, 0, 0.5], [0.25, 0.5, 0.25, 0], accept=0.5 + 2.0**-24, sample=0.0),
        case(
            [0, 1, 3],
            (0, 1),
            ([0.5, 0, 0, 0.5], [0, 1, 0, 0]),
            ([0.25, 0.5, 0.25, 0], [0.5, 0.5, 0, 0], one_hot(3)),
            (0.5 - 2.0**-25, 0.5 - 2.0**-25),
        ),
        first([0], None, [0.25, 0, 0, 0.75], ids=3, accept=0.75, sample=0.5),
    ],
    "equal rows accept everything": [
        case([x, y, 3], (x, y), (law, FLAT), (law, FLAT, one_hot(3)), (u, u))
        for law, x, y in [
            ([0.5, 0.25, 0.25, 0], 0, 1),
            ([1.0, 1e-30, 0, 0], 1, 2),
            ([1.0, 3e-38, 0, 0], 1, 3),
            ([0.1, 0.2, 0.3, 0.4], 2, 0),
            ([0.7, 1e-8, 0.3, 1e-3], 3, 1),
            ([0.7, 1e-8, 0.3, 1e-3], 1, 1),
        ]
        for u in (0.0, 0.5, LARGEST)
    ],
    "cumulative probability meets the uniform exactly": [
        bonus(0, [0.25, 0.25, 0, 0.5], 0.25 - 2.0**-26),
        bonus(1, [0.25, 0.25, 0, 0.5], 0.25),
        bonus(1, [0.25, 0.25, 0, 0.5], 0.5 - 2.0**-25),
        bonus(3, [0.25, 0.25, 0, 0.5], 0.5),
        bonus(3, [0.5, 0, 0, 0.5], 0.5),
        first([0], LEAN, HALF, ids=3, sample=0.5 - 2.0**-25),
        first([1], LEAN, HALF, ids=3, sample=0.5),
        first([2], None, [0.25, 0.5, 0.25, 0], ids=1, accept=0.75, sample=0.5),
    ],
    "uniforms outside [0, 1)": [
        *(
            case([1, 2, 3], (1, 2), (FLAT, HALF[::-1]), (FLAT, HALF[::-1], one_hot(3)), (u, u))
            for u in (1.0, 1.5, INF)
        ),
        *(
            case([1, 2, 3], (1, 2), (FLAT, FLAT), ([0, 2.0**-24, 1, 0], FLAT, one_hot(3)), (u, u))
            for u in (-(2.0**-24), -3.0, -INF)
        ),
        first([2], [0.5, 0.25, 0.25, 0], [0.5, 0, 0.5, 0], ids=0, accept=NAN),
        first([1], None, [0, 1, 0, 0], ids=1, accept=NAN),
        case([1, 3], (1, 0), (FLAT, FLAT), (FLAT, HALF[::-1], NANS), (0.5, NAN)),
        *(bonus(2, [0, 0.5, 0.5, 0], s) for s in (1.0, 7.0, INF)),
        # Clipped to no less than 1 - 2**-24.
        *(bonus(3, [0, LARGEST, 0, 2.0**-24], s) for s in (LARGEST, 1.0, INF)),
        *(first([0], one_hot(1), [2.0**-24, LARGEST, 0, 0], 1, u) for u in (LARGEST, 1.0, INF)),
        *(bonus(1, [0, 0.5, 0.5, 0], s) for s in (-1.0, -INF, NAN)),
        *(first([1], LEAN, HALF, ids=3, sample=s) for s in (1.0, 7.0, INF)),
        *(first([0], LEAN, HALF, ids=3, sample=s) for s in (-1.0, -INF, NAN)),
    ],
    "a residual of zero mass draws from the target row": [
        *(
            first([y], [0, 0.50000006, 0.5, 0], [0, 0.5, 0.5, 0], ids=1, accept=LARGEST, sample=s)
            for y, s in [(1, 0.0), (1, 0.25), (2, 0.5), (2, LARGEST)]
        ),
        first([3], [0.5, 0, 0, 0.5], [0.25, 0, 0, 0.25], accept=0.75, sample=0.75),
        first([0], [0.5, 0, 0, 0.5], [0.25, 0, 0, 0.25], accept=0.75, sample=0.25),
        first([1], None, [0, 0.75, 0, 0], ids=1, accept=0.875),
        first([2], [0, 0, 1, 0], [0, 0, 0.5, 0], ids=2, accept=0.5),
    ],
    "tokens of zero weight are never returned": [
        bonus(2, [0, 0, 0.5, 0.5], 0.0),
        bonus(1, [0.5, 0.5, 0, 0], LARGEST),
        bonus(2, one_hot(2), 0.0),
        bonus(2, one_hot(2), LARGEST),
        first([2], [0.25, 0.75, 0, 0], [0.25, 0, 0.75, 0], ids=1, sample=0.0),
        first([2], [0.25, 0.75, 0, 0], [0.25, 0, 0.75, 0], ids=1, sample=LARGEST),
        first([1], None, [0.5, 0.5, 0, 0], ids=0, accept=0.5, sample=0.0),
        first([0], None, [0.5, 0.5, 0, 0], ids=1, accept=0.5, sample=LARGEST),
    ],
    "draft ids outside the vocabulary": [
        # The target row puts 1/2 on token 0, the residual nothing; a wrapped -1 finds 1/4.
        *(
            first([0], draft, [0.5, 0.25, 0, 0.25], ids=x, accept=0.0, sample=0.25)
            for x in (-1, -2, -7, 4, 5, 2**31 - 1, -(2**31))
            for draft in ([0.75, 0, 0, 0.25], NANS, None)
        ),
        # A clamped or wrapped id meets nearly all of the mass.
        first([1], FLAT, [0, 0.0625, 0, 0.9375], ids=-1, accept=0.0, sample=0.0),
        first([1], FLAT, [0.9375, 0.0625, 0, 0], ids=-1, accept=0.0, sample=LARGEST),
        first([1], None, [0, 0.0625, 0, 0.9375], ids=4, accept=0.0, sample=0.0),
        case([1, 0], (1, -1), (FLAT, LEAN), (FLAT, HALF, NANS), sample=0.25),
        case([1, 1], (1, 4), None, (one_hot(1), HALF, NANS), sample=0.5),
        case([2], (-1, 2), (FLAT, FLAT), (one_hot(2), one_hot(2), FLAT), (0.0, 0.0)),
    ],
    "NaN in the entries a test reads": [
        first([0], [NAN, 0.25, 0.25, 0.5], HALF, ids=0, accept=0.0, sample=0.25),
        first([1], [NAN, 0.25, 0.25, 0.5], HALF, ids=0, accept=0.0, sample=0.5),
        first([1], NANS, HALF, ids=0, accept=0.0, sample=0.5),
        first([-1], FLAT, [NAN, 0.25, 0.25, 0.5], ids=0, accept=0.0),
        first([-1], None, [NAN, 0.25, 0.25, 0.5], ids=0, accept=0.0),
        case([1, 0], (1, 0), (FLAT, [NAN, 0.5, 0.25, 0.25]), (FLAT, HALF, NANS), sample=0.25),
    ],
    "NaN in the draft row that is subtracted": [
        # Token 0 keeps its half only if nothing is subtracted.
        first([0], [0.5, 0, NAN, 0.5], HALF, ids=3, sample=0.25),
        first([0], [0.5, NAN, 0, 0.5], HALF, ids=3, sample=0.25),
        first([1], [0.5, 0, NAN, 0.5], HALF, ids=3, sample=0.5),
        case([1, 0], (1, 3), (FLAT, [0.5, 0, NAN, 0.5]), (FLAT, HALF, NANS), sample=0.25),
        # The test passes, so nothing is subtracted and nobody looks.
        case(
            [0, 1, 2],
            (0, 1),
            ([0.5, NAN, NAN, NAN], [NAN, 0.5, NAN, NAN]),
            (HALF, HALF, one_hot(2)),
        ),
    ],
    "a target row that cannot be drawn from gives -1": [
        *(
            bonus(-1, row, s)
            for row in (
                NANS,
                ZERO,
                [0.5, 0.5, 0, NAN],
                [NAN, 0.5, 0.5, 0],
                [0.5, INF, 0, 0],
                [-1, -0.5, 0, 0],
            )
            for s in (0.0, 0.25, LARGEST)
        ),
        first([-1], FLAT, ZERO, ids=0, accept=0.0),
        first([-1], FLAT, ZERO, ids=-1, accept=0.0),
        first([-1], NANS, ZERO, ids=2),
        first([-1], None, ZERO, ids=2, accept=0.0),
        first([-1], FLAT, [0.5, 0, 0.5, NAN], ids=1, sample=0.0),
        first([-1], FLAT, [0.5, 0, INF, 0], ids=1, sample=0.0),
        first([-1], FLAT, [INF, 0, 0.5, 0], ids=1, sample=LARGEST),
        first([-1], FLAT, NANS, ids=-1, sample=0.0),
        first([-1], None, [0.5, 0, 0.5, NAN], ids=1, sample=0.0),
        case([1, -1], (1, 2), (FLAT, FLAT), (FLAT, ZERO, FLAT), (0.0, 0.0)),
    ],
    "rows that are not needed are not read": [
        case([1], (0, 1), (one_hot(0), NANS), (one_hot(1), NANS, NANS), (0.5, NAN)),
        case([1, 1], (1, 0), (FLAT, one_hot(0)), (FLAT, one_hot(1), NANS)),
        # Of the rows of accepted tokens only one entry is read.
        case(
            [0, 1, 2],
            (0, 1),
            ([0.25, NAN, INF, -1], [NAN, 0.25, NAN, NAN]),
            ([0.25, NAN, NAN, NAN], [INF, 0.25, NAN, -1], one_hot(2)),
        ),
        case([0, 1, 2], (0, 1), None, ([0.75, NAN, 0, 0], [NAN, 0.75, 0, 0], one_hot(2))),
        bonus(3, one_hot(3), 0.5),
    ],
    "negative entries count as zero": [
        bonus(1, [-1, 0.5, 0.5, 0], 0.0),
        bonus(2, [-1, 0.5, 0.5, 0], 0.5),
        bonus(3, [0.5, -0.25, 0.25, 0.25], 0.75),
        first([1], [-0.25, 0.25, 0.25, 0.75], [0.25, 0.5, 0.25, 0], ids=3, sample=0.5),
        first([2], [0.5, 0.25, 0, 0.25], [0, 0.25, 0.5, -0.25], ids=3, accept=0.0, sample=0.0),
        first([2], FLAT, [0.25, -0.125, 0.5, 0], ids=1, accept=0.0),
        first([2], [0.25, -0.5, 0.25, 0], [0.25, 0, 0.5, 0], ids=1, accept=0.5),
        first([2], [0.25, -0.5, 0.25, 0], [0.25, -0.125, 0.5, 0], ids=1, accept=0.5),
        case([0, 0, 2], (0, 0), ([-1, 1, 0, 0],) * 2, (FLAT, FLAT, one_hot(2)), (LARGEST,) * 2),
    ],
    "rows that sum to one only roughly are normalised": [
        bonus(1, [0.225] * 4, 0.48),
        bonus(3, [0.225] * 4, 0.95),
        bonus(1, [0.2510] * 4, 0.4999),
        bonus(0, [0.5, 0.5, 0.5, 0.5], 0.24),
        bonus(2, [0.5, 0.5, 0.5, 0.5], 0.5),
        bonus(3, [2.0**-30] * 4, 0.75),
        first([0], LEAN, HALF, ids=3, sample=0.375),
        first([1], LEAN, HALF, ids=3, sample=0.75),
        first([3], FLAT, [0.375, 0, 0.375, 0.5], ids=1, sample=0.5),
        # The test itself compares what it is given: 0.75 * 0.25 < 0.2.
        case([0, 1, 3], (0, 1), (FLAT, FLAT), ([0.2] * 4, [0.2] * 4, one_hot(3)), (0.75, 0.75)),
    ],
    "draft_lengths": [
        case([0], (-7, -7), (NANS, NANS), (one_hot(0), NANS, NANS), (NAN, NAN), length=0),
        case([1, 2], (1, -7), (FLAT, NANS), (FLAT, one_hot(2), NANS), (0.5, NAN), length=1),
        case([3], (1, -7), (FLAT, NANS), (one_hot(3), NANS, NANS), (0.5, NAN), length=1),
        case([1, 2, 3], (1, 2), (FLAT, FLAT), (FLAT, FLAT, one_hot(3)), length=2),
        case([0], (0, 1), (FLAT, FLAT), (one_hot(0), one_hot(1), one_hot(2)), length=-3),
        case([0, 1, 2], (0, 1), (FLAT, FLAT), (one_hot(0), one_hot(1), one_hot(2)), length=99),
        # The whole target row, although the draft token beyond would have passed or failed.
        case([1], (0, 0), (HALF, HALF), (HALF, FLAT, FLAT), (0.5, 0.5), sample=0.5, length=0),
        case([0, 0], (0, 3), (FLAT, HALF), (FLAT, HALF, FLAT), (0.5, 0.5), 0.25, length=1),
        case([0], (-7, -7), None, (one_hot(0), NANS, NANS), (NAN, NAN), length=0),
        case([1, 0], (1, 0), None, (one_hot(1), HALF, NANS), (0.5, NAN), 0.25, length=1),
        case([1, -1], (1, 0), (FLAT, FLAT), (FLAT, NANS, FLAT), length=1),
    ],
    "a missing draft law is a point mass": [
        case([1, 2, 3], (1, 2), None, ([0.25, 0.75, 0, 0], one_hot(2), one_hot(3))),
        first([0], None, [0.25, 0.5, 0.25, 0], ids=1, accept=0.5, sample=0.25),
        first([2], None, [0.25, 0.5, 0.25, 0], ids=1, accept=0.5, sample=0.5),
        first([3], None, [0.125, 0.5, 0.125, 0.25], ids=1, accept=0.625, sample=0.5),
        case([1, 0], (1, 1), None, (one_hot(1), HALF, NANS), (LARGEST, 0.5), sample=LARGEST),
    ],
}


def chain(emitted, target, ids=(1, 2), **rest):
    """A greedy case whose draft laws and uniforms are NaN: nobody asks for them."""
    return case(emitted, ids, (NANS, NANS), target, **{"accept": (NAN, NAN), **rest})


LEAD1, LEAD2, LEAD3 = [0.25, 0.5, 0.25, 0], [0.25, 0.25, 0.375, 0.125], [0, 0.25, 0, 0.75]

GREEDY = {
    "the matching prefix of the argmax": [
        chain([1, 2, 3], (LEAD1, LEAD2, LEAD3)),
        chain([1, 3], (LEAD1, LEAD3, NANS)),
        chain([3], (LEAD3, LEAD2, NANS)),
        chain([2], (LEAD2, LEAD2, LEAD3)),
        case([1, 2, 3], (1, 2), None, (LEAD1, LEAD2, LEAD3)),
        case([3], (1, 2), None, (LEAD3, LEAD2, LEAD3)),
    ],
    "equal probabilities go to the lowest id": [
        chain([1, 2, 0], ([0.25, 0.375, 0, 0.375], [0.2, 0.2, 0.3, 0.3], FLAT)),
        chain([0], (FLAT, LEAD2, LEAD3)),
        chain([1, 1], ([0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], LEAD3)),
    ],
    "uniforms outside [0, 1)": [
        chain([1, 2, 3], (LEAD1, LEAD2, LEAD3), accept=(u, u), sample=u)
        for u in (-1.0, 0.0, LARGEST, 1.0, INF, -INF, NAN)
    ],
    "tokens of zero weight are never returned": [
        chain([1, 2, 2], (one_hot(1), one_hot(2), one_hot(2))),
        chain([3], (one_hot(3), one_hot(2), one_hot(0)), ids=(0, 2)),
    ],
    "draft ids outside the vocabulary": [
        *(
            chain([y], (one_hot(y), one_hot(2), one_hot(0)), ids=(x, 2))
            for x in (-1, -4, -7, 4, 5, 2**31 - 1, -(2**31))
            for y in (0, 3)
        ),
        chain([1, 3], (LEAD1, LEAD3, NANS), ids=(1, -1)),
        chain([1, 3], (LEAD1, LEAD3, NANS), ids=(1, 4)),
    ],
    "a target row that cannot be drawn from gives -1": [
        *(
            chain([1, 2, -1], (LEAD1, LEAD2, row))
            for row in (
                NANS,
                ZERO,
                [0.5, 0.5, 0, NAN],
                [NAN, 0.5, 0.5, 0],
                [0.5, INF, 0, 0],
                [-1, -0.5, 0, 0],
            )
        ),
        chain([-1], (ZERO, LEAD2, LEAD3), ids=(0, 2)),
        chain([-1], (NANS, LEAD2, LEAD3), ids=(0, 2)),
        chain([-1], ([0.5, 0, NAN, 0], LEAD2, LEAD3), ids=(0, 2)),
        chain([-1], ([0.5, 0, NAN, 0], LEAD2, LEAD3), ids=(2, 2)),
        chain([-1], ([-1, -0.5, 0, -2], LEAD2, LEAD3), ids=(2, 2)),
        chain([-1], (NANS, LEAD2, LEAD3), ids=(-1, 2)),
        chain([-1], (ZERO, LEAD2, LEAD3), ids=(-1, 2)),
        chain([1, -1], (LEAD1, NANS, LEAD3), ids=(1, -1)),
    ],
    "rows that are not needed are not read": [
        chain([3], (LEAD3, NANS, NANS)),
        chain([1, 3], (LEAD1, LEAD3, NANS)),
    ],
    "negative entries count as zero": [
        chain([1, 2, 3], ([-9, 0.5, 0.25, 0], [-9, -9, 0.5, -9], [-0.5, 0, 0, 0.25])),
    ],
    "rows that sum to one only roughly are normalised": [
        chain([1, 2, 3], tuple([x * scale for x in row] for row in (LEAD1, LEAD2, LEAD3)))
        for scale in (0.5, 1.0078125, 2.0**-30)
    ],
    "draft_lengths": [
        chain([0], (one_hot(0), NANS, NANS), ids=(-7, -7), length=0),
        chain([1], (LEAD1, LEAD2, LEAD3), length=0),
        chain([1, 2], (LEAD1, LEAD2, LEAD3), length=1),
        chain([1, 3], (LEAD1, LEAD3, NANS), ids=(1, -7), length=1),
        chain([3], (LEAD3, NANS, NANS), ids=(1, -7), length=1),
        chain([1, 2, 3], (LEAD1, LEAD2, LEAD3), length=2),
        chain([1], (LEAD1, LEAD2, LEAD3), length=-3),
        chain([1, 2, 3], (LEAD1, LEAD2, LEAD3), length=99),
        chain([1, -1], (LEAD1, NANS, LEAD3), length=1),
    ],
}

EDGES = {"ratio": RATIO, "greedy": GREEDY}


# --- Running cases


def arrays(cases):
    """Cases stacked into the arguments of one call; all of them with or all without draft laws."""
    draft = None
    if cases[0].draft is not None:
        draft = np.array([c.draft for c in cases], np.float32)
    arguments = (
        np.array([c.ids for c in cases], np.int32),
        draft,
        np.array([c.target for c in cases], np.float32),
        np.array([c.accept for c in cases], np.float32),
        np.array([c.sample for c in cases], np.float32),
    )
    if all(c.length is None for c in cases):
        return arguments, {}
    lengths = [len(c.ids) if c.length is None else c.length for c in cases]
    return arguments, {"draft_lengths": np.array(lengths, np.int32)}


# Neighbours that must not be noticed: ordinary rows, and rows with all that can go wrong.
NEIGHBOURS = [
    case([], (0, 1), (FLAT, HALF), (FLAT, HALF, FLAT), (0.1, 0.2), 0.3),
    case([], (3, 3), (NANS, NANS), (NANS, NANS, NANS), (NAN, NAN), NAN),
    case([], (-1, 7), (FLAT, FLAT), (ZERO, ZERO, ZERO), (2.0, -2.0), 5.0),
    case([], (3, 2), (LEAN, FLAT), (HALF, FLAT, FLAT), (0.9, 0.1), LARGEST, length=1),
    case([], (2, 2), ([INF] * 4, [-1.0] * 4), ([INF] * 4, FLAT, FLAT), (0.0, 0.0), 0.0),
    case([], (1, 1), (FLAT, FLAT), (FLAT, FLAT, FLAT), (LARGEST, LARGEST), 0.7, length=0),
    case([], (0, 0), (ZERO, ZERO), (FLAT, FLAT, FLAT), (0.5, 0.5), 0.2),
]


def alone(verifier, one):
    arguments, extra = arrays([one])
    return verifier(*arguments, **extra), 0


def among_others(verifier, one, slot):
    others = [
        c._replace(
            draft=None if one.draft is None else c.draft,
            length=None if one.length is None else c.length,
        )
        for c in NEIGHBOURS
    ]
    arguments, extra = arrays([*others[:slot], one, *others[slot:]])
    return verifier(*arguments, **extra), slot


def failures(verifier, cases, place=alone):
    """What the verifier gets wrong, a line a case; `place` puts a case into a batch."""
    wrong = []
    for number, one in enumerate(cases):
        slots = () if place is alone else (number % (len(NEIGHBOURS) + 1),)
        result, row = place(verifier, one, *slots)
        want = one.emitted + [-1] * (len(one.ids) + 1 - len(one.emitted))
        got = np.asarray(result["tokens"])[row].tolist()
        n = int(np.asarray(result["num_accepted"])[row])
        if got != want or n != len(one.emitted) - 1:
            wrong.append(f"{one}: got n = {n}, tokens = {got}, expected tokens = {want}")
    return wrong
