"""The edge table of the design as data: one entry of `EDGES` a row of the table.

Every case is one row of a batch with G = 2 and V = 4 (so that all share one compiled program) and
the tokens it must emit. All numbers are exact in float32 and, unless a case is about rounding, so
are the comparisons.
"""

# pyright: reportMissingParameterType=false

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
    """One row of a batch.

    Attributes:
        emitted: The accepted tokens and the extra one: n + 1 of them.
        ids: The draft tokens.
        draft: Their laws; None for point masses.
        target: The target's laws.
        accept: The accept uniforms.
        sample: The sample uniform.
        length: How many draft tokens there are; None for all.
    """

    emitted: list
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
    """A case, its parts ordinary if they are not given."""
    return Case(emitted, ids, draft, target, accept, sample, length)


def one_hot(token):
    """All mass on one token."""
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
UNDRAWABLE = [
    NANS,
    ZERO,
    [0.5, 0.5, 0, NAN],
    [NAN, 0.5, 0.5, 0],
    [0.5, INF, 0, 0],
    [-1, -0.5, 0, 0],
]

# Every rule but the greedy one.
DRAW = {
    "cumulative probability meets the uniform exactly": [
        bonus(0, [0.25, 0.25, 0, 0.5], 0.25 - 2.0**-26),
        bonus(1, [0.25, 0.25, 0, 0.5], 0.25),
        bonus(1, [0.25, 0.25, 0, 0.5], 0.5 - 2.0**-25),
        bonus(3, [0.25, 0.25, 0, 0.5], 0.5),
        bonus(3, [0.5, 0, 0, 0.5], 0.5),
    ],
    "uniforms outside [0, 1)": [
        *(bonus(2, [0, 0.5, 0.5, 0], s) for s in (1.0, 7.0, INF)),
        # Clipped to no less than 1 - 2**-24.
        *(bonus(3, [0, LARGEST, 0, 2.0**-24], s) for s in (LARGEST, 1.0, INF)),
        *(bonus(1, [0, 0.5, 0.5, 0], s) for s in (-1.0, -INF, NAN)),
    ],
    "tokens of zero weight are never returned": [
        bonus(2, [0, 0, 0.5, 0.5], 0.0),
        bonus(1, [0.5, 0.5, 0, 0], LARGEST),
        bonus(2, one_hot(2), 0.0),
        bonus(2, one_hot(2), LARGEST),
    ],
    "draft ids outside the vocabulary": [
        # A clamped or wrapped id meets nearly all of the mass.
        first([1], FLAT, [0, 0.0625, 0, 0.9375], ids=-1, accept=0.0, sample=0.0),
        first([1], None, [0, 0.0625, 0, 0.9375], ids=4, accept=0.0, sample=0.0),
        case([1, 1], (1, 4), None, (one_hot(1), HALF, NANS), sample=0.5),
        case([2], (-1, 2), (FLAT, FLAT), (one_hot(2), one_hot(2), FLAT), (0.0, 0.0)),
        case([1, 2], (1, -1), (FLAT, FLAT), (one_hot(1), one_hot(2), FLAT), (0.0, 0.0)),
    ],
    "a target row that cannot be drawn from gives -1": [
        *(bonus(-1, row, s) for row in UNDRAWABLE for s in (0.0, 0.25, LARGEST)),
        first([-1], FLAT, ZERO, ids=-1, accept=0.0),
        first([-1], FLAT, NANS, ids=-1, sample=0.0),
        case([1, -1], (1, -1), None, (one_hot(1), NANS, FLAT), (0.0, 0.0)),
    ],
    "rows that are not needed are not read": [
        bonus(3, one_hot(3), 0.5),
    ],
    "negative entries count as zero": [
        bonus(1, [-1, 0.5, 0.5, 0], 0.0),
        bonus(2, [-1, 0.5, 0.5, 0], 0.5),
        bonus(3, [0.5, -0.25, 0.25, 0.25], 0.75),
    ],
    "rows that sum to one only roughly are normalised": [
        bonus(1, [0.225] * 4, 0.48),
        bonus(3, [0.225] * 4, 0.95),
        bonus(1, [0.2510] * 4, 0.4999),
        bonus(0, [0.5, 0.5, 0.5, 0.5], 0.24),
        bonus(2, [0.5, 0.5, 0.5, 0.5], 0.5),
        bonus(3, [2.0**-30] * 4, 0.75),
    ],
    "draft_lengths": [
        case([0], (-7, -7), (NANS, NANS), (one_hot(0), NANS, NANS), (NAN, NAN), length=0),
        case([2], (1, -7), (NANS, NANS), (FLAT, NANS, NANS), (NAN, NAN), 0.5, length=0),
        case([1, 2, 3], (1, 2), None, (one_hot(1), one_hot(2), one_hot(3)), length=2),
        case([1, 2], (1, 2), None, (one_hot(1), FLAT, one_hot(3)), (0.5, 0.0), 0.5, length=1),
        case([0], (0, 1), (FLAT, FLAT), (one_hot(0), one_hot(1), one_hot(2)), length=-3),
        case([0, 1, 2], (0, 1), (FLAT, FLAT), (one_hot(0), one_hot(1), one_hot(2)), length=99),
        # The whole target row, although the draft token beyond would have passed or failed.
        case([1], (0, 0), (HALF, HALF), (HALF, FLAT, FLAT), (0.5, 0.5), sample=0.5, length=0),
        case([0], (-7, -7), None, (one_hot(0), NANS, NANS), (NAN, NAN), length=0),
        case([1, 0], (1, 0), None, (one_hot(1), HALF, NANS), (0.5, NAN), 0.25, length=1),
        case([1, -1], (1, 0), None, (one_hot(1), NANS, FLAT), length=1),
    ],
}

# The rules that compare target and draft.
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
        *(first([0], one_hot(1), [2.0**-24, LARGEST, 0, 0], 1, u) for u in (LARGEST, 1.0, INF)),
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
        first([1], FLAT, [0.9375, 0.0625, 0, 0], ids=-1, accept=0.0, sample=LARGEST),
        case([1, 0], (1, -1), (FLAT, LEAN), (FLAT, HALF, NANS), sample=0.25),
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
        first([-1], FLAT, ZERO, ids=0, accept=0.0),
        first([-1], NANS, ZERO, ids=2),
        first([-1], None, ZERO, ids=2, accept=0.0),
        first([-1], FLAT, [0.5, 0, 0.5, NAN], ids=1, sample=0.0),
        first([-1], FLAT, [0.5, 0, INF, 0], ids=1, sample=0.0),
        first([-1], FLAT, [INF, 0, 0.5, 0], ids=1, sample=LARGEST),
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
    ],
    "negative entries count as zero": [
        first([1], [-0.25, 0.25, 0.25, 0.75], [0.25, 0.5, 0.25, 0], ids=3, sample=0.5),
        first([2], [0.5, 0.25, 0, 0.25], [0, 0.25, 0.5, -0.25], ids=3, accept=0.0, sample=0.0),
        first([2], FLAT, [0.25, -0.125, 0.5, 0], ids=1, accept=0.0),
        first([2], [0.25, -0.5, 0.25, 0], [0.25, 0, 0.5, 0], ids=1, accept=0.5),
        first([2], [0.25, -0.5, 0.25, 0], [0.25, -0.125, 0.5, 0], ids=1, accept=0.5),
        case([0, 0, 2], (0, 0), ([-1, 1, 0, 0],) * 2, (FLAT, FLAT, one_hot(2)), (LARGEST,) * 2),
    ],
    "rows that sum to one only roughly are normalised": [
        first([0], LEAN, HALF, ids=3, sample=0.375),
        first([1], LEAN, HALF, ids=3, sample=0.75),
        first([3], FLAT, [0.375, 0, 0.375, 0.5], ids=1, sample=0.5),
    ],
    "draft_lengths": [
        case([1, 2], (1, -7), (FLAT, NANS), (FLAT, one_hot(2), NANS), (0.5, NAN), length=1),
        case([3], (1, -7), (FLAT, NANS), (one_hot(3), NANS, NANS), (0.5, NAN), length=1),
        case([1, 2, 3], (1, 2), (FLAT, FLAT), (FLAT, FLAT, one_hot(3)), length=2),
        case([0, 0], (0, 3), (FLAT, HALF), (FLAT, HALF, FLAT), (0.5, 0.5), 0.25, length=1),
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


TOKEN = {
    "the comparison is strict": [
        case(
            [0, 1, 3],
            (0, 1),
            ([0.5, 0, 0, 0.5], [0, 1, 0, 0]),
            ([0.25, 0.5, 0.25, 0], [0.5, 0.5, 0, 0], one_hot(3)),
            (0.5 - 2.0**-25, 0.5 - 2.0**-25),
        ),
    ],
    "rows that sum to one only roughly are normalised": [
        # The test itself compares what it is given: 0.75 * 0.25 < 0.2.
        case([0, 1, 3], (0, 1), (FLAT, FLAT), ([0.2] * 4, [0.2] * 4, one_hot(3)), (0.75, 0.75)),
    ],
}

# Block. Draft tokens 0 and 1; P_1 is 3/4 (or 1/2) by the first row, the rest by the second.
DRAFT0, AT_34, AT_12 = HALF, [0.375, 0.375, 0.25, 0], [0.25, 0.25, 0.5, 0]
# With P_1 = 3/4 the residual after prefix 1 is [1/4, 0, 0, 0], so that h_1 = 1/2, and P_2 = 0.
DRAFT1, TARGET1 = [0.125, 0.5, 0.375, 0], [0.5, 0, 0.5, 0]


def block(emitted, first_row, draft, target, accept, sample=0.5, ids=(0, 1), bonus=None, **rest):
    """A case of the block rule whose first draft is token 0 and second token 1."""
    laws = (DRAFT0, draft), (first_row, target, one_hot(3) if bonus is None else bonus)
    return case(emitted, ids, *laws, accept, sample, **rest)


def middle(emitted, accept, sample=0.5, draft=DRAFT1, target=TARGET1, **rest):
    """A case that prefix 1 decides; row 2 of the target is not read."""
    return block(emitted, AT_34, draft, target, accept, sample, bonus=NANS, **rest)


BLOCK = {
    "the longest prefix that is held, whatever the shorter ones are": [
        # P_1 = 1/2, P_2 = 1.
        *(
            block([0, 1, 3], AT_12, FLAT, [0.25, 0.5, 0.25, 0], (u, v))
            for u in (0.0, 0.5, LARGEST, NAN)
            for v in (0.0, LARGEST)
        ),
        # P_1 = P_2 = 1/2, h_1 = 0: the second uniform decides alone.
        block([0, 1, 3], AT_12, FLAT, FLAT, (LARGEST, 0.5 - 2.0**-25)),
        block([2], AT_12, FLAT, FLAT, (0.0, 0.5)),
        block([2], AT_12, FLAT, FLAT, (0.25, LARGEST)),
    ],
    "the comparison is strict": [
        middle([0, 0], (0.5 - 2.0**-25, 0.0)),
        middle([2], (0.5, 0.0)),
        middle([2], (0.75 - 2.0**-25, 0.0)),
        block([0, 1, 3], AT_34, FLAT, FLAT, (LARGEST, 0.75 - 2.0**-24)),
        block([2], AT_34, FLAT, FLAT, (0.0, 0.75)),
    ],
    "ratios are capped at every prefix": [
        # Ratios 2 and 1/2, 2 and 3/8: the first does not make up for the second.
        case([0, 2], (0, 1), (FLAT, HALF), (HALF, [0, 0.25, 0.75, 0], NANS), (LARGEST, 0.5)),
        case([0, 2], (0, 1), (FLAT, HALF), (HALF, [0, 0.25, 0.75, 0], NANS), (LARGEST, LARGEST)),
        case(
            [0, 1, 3],
            (0, 1),
            (FLAT, HALF),
            (HALF, [0, 0.25, 0.75, 0], one_hot(3)),
            (LARGEST, 0.5 - 2.0**-25),
        ),
    ],
    "the residual is weighted with the ratio of its prefix": [
        # Not the token rule's residual [3/8, 0, 1/8, 0], nor the target.
        *(middle([0, 0], (0.0, 0.0), s) for s in (0.0, 0.75, 0.875, LARGEST)),
        # 3/4 [1/2, 0, 1/2, 0] - [1/8, 1/2, 1/8, 1/4] is even; unweighted it is not less so.
        middle([0, 0], (0.0, 0.0), 0.5 - 2.0**-25, [0.125, 0.5, 0.125, 0.25]),
        middle([0, 2], (0.0, 0.0), 0.5, [0.125, 0.5, 0.125, 0.25]),
        # Prefix 0 is held for certain, and its weight is 1: [0, 0, 1/4, 0].
        *(middle([2], (LARGEST, 0.0), s) for s in (0.0, LARGEST)),
    ],
    "zero target mass is never accepted": [
        # P_1 = 0, and the second token, without draft mass, does not bring it back.
        case(
            [2],
            (0, 1),
            (HALF, [0.5, 0, 0.5, 0]),
            ([0, 0.5, 0.5, 0], [0.5, 0.5, 0, 0], NANS),
            (0.0, 0.0),
        ),
        block([2], AT_12, HALF, [0.75, 0, 0.25, 0], (0.5, 0.0)),
    ],
    "zero draft mass with target mass is accepted": [
        block([0, 1, 3], AT_12, [0.5, 0, 0.5, 0], [0.5, 2.0**-30, 0.5, 0], (u, u))
        for u in (0.5, LARGEST)
    ],
    "uniforms outside [0, 1)": [
        middle([0, 0], (-1.0, 2.0)),
        middle([0, 0], (-INF, NAN)),
        middle([2], (NAN, 0.0)),
        middle([2], (1.0, -1.0)),
        block([0, 1, 3], AT_34, FLAT, FLAT, (NAN, -1.0)),
        block([2], AT_34, FLAT, FLAT, (0.0, NAN)),
        block([2], AT_34, FLAT, FLAT, (0.0, INF)),
        block([0, 1, 3], AT_12, FLAT, [0.25, 0.5, 0.25, 0], (0.0, INF)),
    ],
    "a residual of zero mass draws from the target row": [
        # P_1 = 1, and the second row leaves nothing: 0/0 holds, and 1/3 of the mass is token 1's.
        *(
            case(
                [1, y],
                (1, 1),
                (FLAT, [0, 0.50000006, 0.5, 0]),
                (FLAT, [0, 0.5, 0.5, 0], NANS),
                (LARGEST, LARGEST),
                s,
            )
            for y, s in [(1, 0.0), (1, 0.25), (2, 0.5), (2, LARGEST)]
        ),
        # With P_1 below 1 it refuses.
        block([2], AT_12, FLAT, FLAT, (0.0, 0.5)),
    ],
    "draft ids outside the vocabulary": [
        # The draft ends at the first such id: P_1 = 3/4 decides, and the whole row is drawn from.
        *(
            middle([0, y], (0.75 - 2.0**-24, 0.0), s, draft=draft, target=HALF, ids=(0, x))
            for x in (-1, 4, 2**31 - 1)
            for draft in (FLAT, NANS)
            for y, s in [(0, 0.5 - 2.0**-25), (1, 0.5)]
        ),
        middle([2], (0.75, 0.0), draft=NANS, target=NANS, ids=(0, -1)),
        block([2], AT_34, FLAT, FLAT, (0.0, 0.0), ids=(-1, 1), sample=0.75),
    ],
    "NaN in the entries a test reads": [
        # Likewise.
        middle([0, 0], (0.75 - 2.0**-24, 0.0), 0.25, [0.5, NAN, 0.25, 0.25], HALF),
        middle([0, 1], (0.75 - 2.0**-24, 0.0), 0.5, [0.5, NAN, 0.25, 0.25], HALF),
        middle([2], (0.75, 0.0), 0.25, [0.5, NAN, 0.25, 0.25], HALF),
        middle([0, -1], (0.5, 0.0), 0.25, FLAT, [0.5, NAN, 0.5, 0]),
        middle([2], (0.75, 0.0), 0.25, FLAT, [0.5, NAN, 0.5, 0]),
    ],
    "NaN in the draft row that is subtracted": [
        # The prefix is judged by its ratio, and the whole row is drawn from.
        middle([0, 0], (0.75 - 2.0**-24, 0.0), 0.25, [NAN, 0.5, 0, 0.5]),
        middle([0, 2], (0.5, 0.0), 0.5, [NAN, 0.5, 0, 0.5]),
        middle([0, 2], (0.5, 0.0), 0.5, [0, 0.5, 0, NAN]),
        middle([2], (0.75, 0.0), 0.5, [NAN, 0.5, 0, 0.5]),
    ],
    "a target row that cannot be drawn from gives -1": [
        middle([0, -1], (0.5, 0.0), target=row) for row in ([0.5, 0, NAN, 0.5], [INF, 0, 0, 0])
    ],
    "rows that are not needed are not read": [
        # A prefix is refused by its ratio alone.
        block([2], AT_12, [NAN, 0.5, NAN, NAN], [NAN, 0.25, INF, NAN], (0.5, 0.5), bonus=NANS),
        # And held for certain if that is 1.
        block([0, 1, 3], AT_12, [NAN, 0.25, NAN, NAN], [NAN, 0.5, NAN, NAN], (0.0, LARGEST)),
    ],
    "negative entries count as zero": [
        middle([0, 0], (0.5 - 2.0**-25, 0.0), LARGEST, [*DRAFT1[:3], -1], [0.5, -1, 0.5, 0]),
        middle([2], (0.5, 0.0), 0.5, [*DRAFT1[:3], -1], [0.5, -1, 0.5, -1]),
    ],
    "rows that sum to one only roughly are normalised": [
        # The tests compare what they are given: P_1 = 4/5, P_2 = 16/25, h_1 = 0.
        case([0, 1, 3], (0, 1), (FLAT,) * 2, ([0.2] * 4, [0.2] * 4, one_hot(3)), (0.0, 0.625)),
        case([2], (0, 1), (FLAT, FLAT), ([0.2] * 4, [0.2] * 4, one_hot(3)), (0.0, 0.75), 0.625),
    ],
    "draft_lengths": [
        # The draft ends with prefix 1, P_1 = 3/4, and the whole row is drawn from.
        *(
            middle([0, y], (0.75 - 2.0**-24, u), s, draft=draft, target=HALF, length=1)
            for u, draft in [(0.0, FLAT), (NAN, NANS)]
            for y, s in [(0, 0.5 - 2.0**-25), (1, 0.5)]
        ),
        middle([2], (0.75, 0.0), draft=FLAT, target=HALF, length=1),
        middle([0, 0], (0.5 - 2.0**-25, 0.0), 0.875, length=2),
        middle([0, -1], (0.5, 0.0), draft=NANS, target=NANS, length=1),
    ],
    "a missing draft law is a point mass": [
        # P = 3/4, 3/8; the residual after prefix 1 has mass 3/8, so that h_1 = 3/5.
        *(
            case(emitted, (0, 1), None, ([0.75, 0.25, 0, 0], HALF, one_hot(3)), accept, LARGEST)
            for emitted, accept in [
                ([0, 1, 3], (LARGEST, 0.375 - 2.0**-25)),
                ([0, 0], (0.59375, 0.375)),
                ([1], (0.625, 0.375)),
            ]
        ),
    ],
}


def own(emitted, target, accept, ids=(1, 2), **rest):
    """A case of the sampled rule; the draft's laws are NaN, and so is the last uniform."""
    return case(emitted, ids, (NANS, NANS), target, accept, **{"sample": NAN, **rest})


QUARTERS = [0.25, 0.5, 0.25, 0]

SAMPLED = {
    "drafts are kept while they are the target's own draw": [
        own([1, 2, 3], (QUARTERS, QUARTERS, one_hot(3)), (0.5, 0.875)),
        own([1, 0], (QUARTERS, QUARTERS, NANS), (0.5, 0.125)),
        own([1, 1], (QUARTERS, QUARTERS, NANS), (0.25, 0.5)),
        own([0], (QUARTERS, NANS, NANS), (0.125, 0.875)),
        own([2], (QUARTERS, one_hot(2), NANS), (0.75, 0.875)),
        # The last uniform is for the token after the draft only.
        own([1, 2, 1], (QUARTERS, QUARTERS, QUARTERS), (0.5, 0.75), sample=0.375),
        own([1, 0], (QUARTERS, QUARTERS, QUARTERS), (0.5, 0.0), sample=0.875),
    ],
    "cumulative probability meets the uniform exactly": [
        own([0], (QUARTERS, NANS, NANS), (0.25 - 2.0**-26, 0.5)),
        own([1, 1], (QUARTERS, QUARTERS, NANS), (0.25, 0.75 - 2.0**-24)),
        own([1, 2, 0], (QUARTERS, QUARTERS, FLAT), (0.25, 0.75)),
        own([1, 3], (QUARTERS, [0.5, 0, 0, 0.5], NANS), (0.25, 0.5)),
    ],
    "uniforms outside [0, 1)": [
        *(own([1, 2, 0], (HALF, QUARTERS, FLAT), (u, u)) for u in (1.0, 1.5, INF)),
        *(own([1, 0], ([0, 0.5, 0.5, 0], HALF, NANS), (u, u)) for u in (-1.0, -INF)),
        *(own([1, 2, 0], (FLAT, [0, LARGEST, 2.0**-24, 0], FLAT), (0.25, u)) for u in (1.0, INF)),
        # NaN draws as 0, but fails.
        case([1], (1, 2), (NANS, NANS), ([0, 0.5, 0.5, 0], FLAT, FLAT), (NAN, 0.5), 0.9),
        case([1, 2], (1, 2), (NANS, NANS), (FLAT, [0, 0, 0.5, 0.5], FLAT), (0.25, NAN), 0.9),
        case([0], (1, 2), (NANS, NANS), (FLAT, FLAT, FLAT), (NAN, 0.5), 0.9),
    ],
    "tokens of zero weight are never returned": [
        own([1, 2, 0], ([0, 0.5, 0, 0.5], [0, 0, 1, 0], FLAT), (0.0, 0.0)),
        own([1, 2, 0], ([0.5, 0.5, 0, 0], [0, 0, 1, 0], FLAT), (LARGEST, LARGEST)),
        own([2], ([0, 0, 0.5, 0.5], NANS, NANS), (0.0, 0.0)),
    ],
    "draft ids outside the vocabulary": [
        *(
            own([y], (row, one_hot(2), NANS), (u, 0.0), ids=(x, 2), sample=0.25)
            for x in (-1, -4, -7, 4, 5, 2**31 - 1, -(2**31))
            for y, row, u in [(1, QUARTERS, 0.5), (0, one_hot(0), 0.0), (3, one_hot(3), LARGEST)]
        ),
        own([1, 2], (QUARTERS, QUARTERS, NANS), (0.5, 0.75), ids=(1, -1), sample=0.0),
    ],
    "a target row that cannot be drawn from gives -1": [
        *(own([-1], (row, one_hot(2), FLAT), (u, 0.0)) for row in UNDRAWABLE for u in (0.0, 0.5)),
        *(own([1, -1], (FLAT, row, FLAT), (0.25, 0.5)) for row in UNDRAWABLE),
        *(own([-1], (row, FLAT, FLAT), (0.0, 0.0), ids=(-1, 2)) for row in UNDRAWABLE),
    ],
    "rows that are not needed are not read": [
        own([0], (one_hot(0), NANS, NANS), (0.5, NAN)),
        own([1, 1], (one_hot(1), one_hot(1), NANS), (0.5, 0.5)),
    ],
    "negative entries count as zero": [
        own([1, 2, 0], ([-1, 0.5, 0.5, 0], [-1, 0.5, 0.5, -3], FLAT), (0.0, 0.5)),
        own([1], ([-1, 0.5, 0.5, 0], FLAT, FLAT), (0.0, 0.5), ids=(0, 1)),
    ],
    "rows that sum to one only roughly are normalised": [
        own([1, 2, 0], ([x * scale for x in QUARTERS],) * 2 + (FLAT,), (0.5, 0.8125))
        for scale in (0.5, 0.9, 1.0078125, 2.0, 2.0**-30)
    ],
    "draft_lengths": [
        # Beyond the draft the last uniform draws, and not the one that stands there.
        own([2], (QUARTERS, FLAT, FLAT), (0.5, 0.5), sample=0.75, length=0),
        own([1, 2], (QUARTERS, QUARTERS, FLAT), (0.5, 0.0), sample=0.75, length=1),
        own([1, 1], (QUARTERS, QUARTERS, NANS), (0.5, 0.75), sample=0.25, length=1),
        own([0], (QUARTERS, NANS, NANS), (0.0, NAN), ids=(1, -7), sample=0.75, length=1),
    ],
}

# Lossy rules with the settings above.


def lossy(emitted, target, accept=(NAN, NAN), ids=(1, 2), **rest):
    """A case of a lossy rule; the draft's laws are NaN."""
    return case(emitted, ids, (NANS, NANS), target, accept, **rest)


TYPICAL = {
    "likely tokens pass": [
        # exp(-entropy) is 1/4, 1/2 and 1, the threshold 1/8, 1/4 and 1/4.
        lossy([1, 2, 1], (FLAT, FLAT, HALF), sample=0.5),
        lossy([1, 1], (HALF, [0.5, 0.5, 0, 0], FLAT), sample=0.5),
        lossy([1, 0], (one_hot(1), one_hot(0), FLAT)),
        # 0.15 < 3/16 < 1/4, and 1/8 < 0.15.
        lossy([1, 0], ([0.5, 0.1875, 0.1875, 0.125], [0.5, 0.25, 0.125, 0.125], FLAT), sample=0.0),
        # 0.27 > 1/4: the smaller of two thresholds holds.
        lossy([1, 2, 0], ([0.6875, 0.3125, 0, 0], FLAT, FLAT), sample=0.0),
    ],
    "the comparison is strict": [
        lossy([0], ([0.75, 0.25, 0, 0], FLAT, FLAT), sample=0.5),
        lossy([1, 2, 0], ([0.7421875, 0.2578125, 0, 0], FLAT, FLAT), sample=0.0),
    ],
    "the next token comes from the target's row, what failed included": [
        lossy([1], ([0.75, 0.25, 0, 0], FLAT, FLAT), sample=0.75),
        lossy([1, 2], (FLAT, [0.5, 0.25, 0.125, 0.125], NANS), sample=0.75),
    ],
    "uniforms outside [0, 1)": [
        lossy([1, 2, 0], (FLAT, FLAT, FLAT), (u, u), sample=-u)
        for u in (0.0, LARGEST, 1.0, INF, NAN)
    ],
    "a target row that cannot be drawn from gives -1": [
        lossy([-1], (row, FLAT, FLAT), ids=(1, 2)) for row in (NANS, ZERO, [NAN, 0.5, 0.5, 0])
    ],
    "rows that are not needed are not read": [
        lossy([0], (one_hot(0), NANS, NANS)),
        lossy([1, 0], (FLAT, one_hot(0), NANS)),
    ],
    "negative entries count as zero": [
        lossy([1, 2, 0], ([-1, 0.5, 0.5, 0], [0.5, -2, 0.5, 0], FLAT), sample=0.0),
        lossy([2], ([0, -0.5, 0.5, 0.5], FLAT, FLAT), sample=0.0),
    ],
}
THRESHOLDS = {
    "tests run in order, each with its own rows": [
        lossy([1, 2, 0], (FLAT, FLAT, FLAT), (0.25, 0.25), sample=0.0),
        lossy([1, 0], (FLAT, FLAT, NANS), (0.25, 0.75), sample=0.0),
        lossy([0], (FLAT, NANS, NANS), (0.75, 0.25), sample=0.0),
        lossy([1, 3], (FLAT, [0.5, 0.25, 0, 0.25], NANS), (0.25, 0.25), sample=0.75),
    ],
    "the comparison is strict": [
        lossy([1, 0], (FLAT, FLAT, NANS), (0.5 - 2.0**-25, 0.5), sample=0.0),
        lossy([0], (FLAT, NANS, NANS), (0.5, 0.0), sample=0.0),
    ],
    "a probability at the single threshold passes": [
        lossy([1, 2, 0], ([0.625, 0.375, 0, 0], [0, 0.5, 0.375, 0], FLAT), (u, u), sample=0.0)
        for u in (0.75, LARGEST, 1.0, INF)
    ],
    "the next token is not the one that failed": [
        # 1/4, -, 1/4, 1/4
        *(
            lossy([y], (FLAT, NANS, NANS), (0.5, 0.0), sample=s)
            for y, s in [(0, 0.0), (0, 0.328125), (2, 0.34375), (3, 0.671875), (3, LARGEST)]
        ),
        # If there is no other, it is.
        lossy([1], ([0, 0.25, 0, 0], NANS, NANS), (0.5, 0.0), sample=0.5),
        # A token beyond the draft may be anything.
        lossy([1], (FLAT, NANS, NANS), (0.5, 0.0), sample=0.25, length=0),
    ],
    "zero target mass is never accepted": [
        lossy([0], ([0.5, 0, 0.5, 0], NANS, NANS), (u, u), sample=0.25) for u in (0.0, -1.0)
    ],
    "uniforms outside [0, 1)": [
        # NaN fails, whatever the probability.
        lossy([0], (QUARTERS, NANS, NANS), (NAN, 0.0), sample=0.25),
        lossy([2], (QUARTERS, NANS, NANS), (NAN, 0.0), sample=0.5),
        lossy([1, 2, 0], (FLAT, FLAT, FLAT), (-1.0, -INF), sample=0.0),
        lossy([0], (FLAT, NANS, NANS), (INF, 0.0), sample=0.0),
    ],
    "draft ids outside the vocabulary": [
        # Nothing is taken out of the row.
        lossy([y], (FLAT, NANS, NANS), (0.0, 0.0), ids=(x, 2), sample=s)
        for x in (-1, -4, 4, 2**31 - 1)
        for y, s in [(0, 0.125), (1, 0.25), (3, 0.75)]
    ],
    "a target row that cannot be drawn from gives -1": [
        lossy([-1], ([NAN, 0, 0.5, 0.5], FLAT, FLAT), (0.0, 0.0)),
        lossy([-1], ([0, NAN, 0.5, 0.5], FLAT, FLAT), (0.0, 0.0)),
        lossy([-1], (ZERO, FLAT, FLAT), (0.0, 0.0)),
        lossy([-1], ([INF, 0, 0.5, 0.5], FLAT, FLAT), (0.0, 0.0)),
    ],
    "rows that are not needed are not read": [
        lossy([0], (one_hot(0), NANS, NANS), (0.5, 0.0)),
        lossy(
            [1, 2, 0], ([NAN, 0.5, NAN, NAN], [NAN, INF, 0.5, NAN], FLAT), (0.5, 0.5), sample=0.0
        ),
    ],
    "negative entries count as zero": [
        lossy([2], ([0, -1, 0.5, 0.5], NANS, NANS), (-1.0, 0.0), sample=0.25),
    ],
}
TOP_K = {
    "the two likeliest tokens pass": [
        lossy([1, 2, 0], ([0.5, 0.375, 0.125, 0], [0, 0.25, 0.5, 0.25], FLAT), sample=0.0),
        lossy([1, 0], ([0.5, 0.375, 0.125, 0], [0.375, 0.375, 0.25, 0], NANS), sample=0.0),
        lossy([0], ([0.375, 0.125, 0, 0.5], NANS, NANS), sample=0.0),
    ],
    "tokens that tie with the second count": [
        lossy([1, 2, 0], (FLAT, [0.5, 0.25, 0.25, 0], FLAT), sample=0.0),
        lossy(
            [1, 0], ([0.25, 0.25, 0.25, 0.25], [0.25, 0.5, 0.25, 0], NANS), ids=(1, 3), sample=0.0
        ),
    ],
    "the next token comes from the target's row, what failed included": [
        lossy([2], ([0.375, 0.375, 0.25, 0], FLAT, FLAT), ids=(2, 0), sample=0.75),
    ],
    "zero target mass is never accepted": [
        lossy([0], (one_hot(0), FLAT, FLAT)),
        lossy([-1], (ZERO, FLAT, FLAT)),
        lossy([3], ([-1, -2, -3, 1], FLAT, FLAT)),
    ],
    "uniforms outside [0, 1)": [
        lossy([1, 2, 0], (FLAT, FLAT, FLAT), (u, u), sample=-u)
        for u in (0.0, LARGEST, 1.0, INF, NAN)
    ],
    "rows that are not needed are not read": [
        lossy([0], (one_hot(0), NANS, NANS)),
        lossy([1, 0], (FLAT, one_hot(0), NANS)),
    ],
    "negative entries count as zero": [
        lossy([1, 2, 0], ([-1, 0.5, -1, -1], [-2, -3, 0.25, -1], FLAT), sample=0.0),
    ],
    "rows that sum to one only roughly are normalised": [
        lossy([1, 2, 0], ([x * s for x in QUARTERS],) * 2 + ([s] * 4,), sample=0.1875)
        for s in (0.5, 2.0, 2.0**-30)
    ],
}
SYNTHETIC = {
    "tokens pass at the rate, whatever they are": [
        lossy([1, 2, 0], (one_hot(0), NANS, FLAT), (0.0, 0.75 - 2.0**-24), sample=0.0),
        lossy([1, 0], (one_hot(0), one_hot(0), NANS), (0.0, 0.75)),
        lossy([1, 0], (NANS, one_hot(0), NANS), (0.5, LARGEST)),
        lossy([0], (one_hot(0), NANS, NANS), (0.75, 0.0)),
    ],
    "the next token comes from the target's row, what failed included": [
        lossy([1], (HALF, NANS, NANS), (0.75, 0.0), sample=0.5),
        lossy([0], (HALF, NANS, NANS), (0.75, 0.0), sample=0.25),
    ],
    "uniforms outside [0, 1)": [
        lossy([1, 2, 0], (FLAT, FLAT, FLAT), (-1.0, -INF), sample=0.0),
        *(lossy([1, 0], (FLAT, FLAT, NANS), (0.5, u), sample=0.0) for u in (1.0, INF, NAN)),
    ],
    "draft ids outside the vocabulary": [
        lossy([y], (HALF, NANS, NANS), (0.0, 0.0), ids=(x, 2), sample=s)
        for x in (-1, -7, 4, 2**31 - 1)
        for y, s in [(0, 0.25), (1, 0.5)]
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
        *(chain([1, 2, -1], (LEAD1, LEAD2, row)) for row in UNDRAWABLE),
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


def merged(*tables):
    """Tables put together, edge by edge."""
    return {edge: [c for t in tables for c in t.get(edge, [])] for t in tables for edge in t}


def without_draft_laws(table):
    """For rules that must not look at the draft's laws."""
    return {edge: [c._replace(draft=(NANS, NANS)) for c in cases] for edge, cases in table.items()}


ONLY_TARGET = without_draft_laws(DRAW)
EDGES = {
    "token": merged(DRAW, RATIO, TOKEN),
    "greedy": GREEDY,
    "block": merged(DRAW, RATIO, BLOCK),
    "sampled": merged(ONLY_TARGET, SAMPLED),
    "typical": merged(ONLY_TARGET, TYPICAL),
    "thresholds": merged(ONLY_TARGET, THRESHOLDS),
    "top_k": merged(ONLY_TARGET, TOP_K),
    "synthetic": merged(ONLY_TARGET, SYNTHETIC),
}


# --- Running cases


def arrays(cases, with_lengths=False):
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
    if not with_lengths and all(c.length is None for c in cases):
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


def as_given(verifier, one):
    """The case alone, its length only if it has one."""
    arguments, extra = arrays([one])
    return verifier(*arguments, **extra), 0


def alone(verifier, one):
    """With a length in any case: one program for many cases."""
    arguments, extra = arrays([one], with_lengths=True)
    return verifier(*arguments, **extra), 0


def among_others(verifier, one, slot):
    """In a batch with hard rows."""
    others = [c._replace(draft=None if one.draft is None else c.draft) for c in NEIGHBOURS]
    arguments, extra = arrays([*others[:slot], one, *others[slot:]])
    return verifier(*arguments, **extra), slot


def failures(verifier, cases, place=alone):
    """What the verifier gets wrong, a line a case; `place` puts a case into a batch."""
    wrong = []
    for number, one in enumerate(cases):
        slots = (number % (len(NEIGHBOURS) + 1),) if place is among_others else ()
        result, row = place(verifier, one, *slots)
        want = one.emitted + [-1] * (len(one.ids) + 1 - len(one.emitted))
        got = np.asarray(result["tokens"])[row].tolist()
        n = int(np.asarray(result["num_accepted"])[row])
        if got != want or n != len(one.emitted) - 1:
            wrong.append(f"{one}: got n = {n}, tokens = {got}, expected tokens = {want}")
    return wrong
