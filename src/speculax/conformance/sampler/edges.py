"""The hard rows, as far as a level demands them, and why each matters."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import LEVELS, Failure, Level, Outcome
from speculax.conformance.sampler.call import (
    NEUTRAL,
    Rows,
    make_rows,
    run,
    snippet,
    takes_key,
)
from speculax.conformance.sampler.judge import Group, judge_groups
from speculax.conformance.sampler.measure import BATCH
from speculax.conformance.sampler.oracle import LARGEST_UNIFORM, Order, Settings

INF, NAN = float("inf"), float("nan")
STEPS = np.log([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
FALLING = STEPS[[3, 0, 5, 1, 4, 2]]  # the same, not in the order of ids
LOW = float(np.finfo(np.float32).min)


def _group(name: str, why: str, *cases: tuple[object, Settings]) -> Group:
    logits, many = zip(*cases, strict=True)
    return Group(name, make_rows(np.stack([np.asarray(x, float) for x in logits]), [*many]), why)


EDGES: dict[Level, list[Group]] = {
    "contract": [
        _group(
            "the likeliest token always stays",
            "Filters leave at least one token; an empty row has nothing to draw from.",
            (FALLING, Settings(top_k=1)),
            (FALLING, Settings(top_p=0.05)),
            (FALLING, Settings(min_p=1.0)),
            (FALLING, Settings(top_k=3, top_p=0.01, min_p=0.9)),
        ),
        _group(
            "tokens at -inf never come out",
            "Masked tokens must stay impossible, whatever the filters would keep.",
            ([-INF, 1, -INF, 0, -INF, -INF], Settings(top_k=4)),
            ([-INF, 1, -INF, 0, -INF, -INF], Settings(top_p=0.99)),
            ([-INF, -INF, -INF, -INF, -INF, 0], NEUTRAL),
            ([0, -INF, -INF, -INF, -INF, -INF], Settings(0.5, 2, 0.9, 0.1)),
        ),
    ],
    "robust": [
        _group(
            "top_k beyond the vocabulary keeps everything",
            "Requests ask for a top_k of 50 from any model.",
            (FALLING, Settings(top_k=6)),
            (FALLING, Settings(top_k=7)),
            (FALLING, Settings(top_k=50)),
            (FALLING, Settings(top_k=2**31 - 1)),
        ),
        _group(
            "very low and very high temperatures",
            "1e-6 is nearly greedy and 1e6 nearly flat; neither may overflow.",
            (FALLING, Settings(temperature=1e-6)),
            (FALLING, Settings(temperature=1e6)),
        ),
        _group(
            "large logits",
            "exp(100) is infinite in float32: take the largest logit away first.",
            (FALLING + 100, NEUTRAL),
            (FALLING + 1000, Settings(top_p=0.7)),
            (FALLING * 1000, Settings(top_k=3)),
            (FALLING - 500, Settings(min_p=0.3)),
        ),
        _group(
            "masks of the lowest float",
            "Masked logits come as -inf and as the lowest float.",
            ([LOW, 1, LOW, 0, LOW, LOW], NEUTRAL),
            ([LOW, 1, LOW, 0, LOW, LOW], Settings(temperature=0.5, top_p=0.9)),
        ),
        _group(
            "tokens that tie with the k-th stay",
            "Which of equally likely tokens stays must not depend on their ids; bfloat16 logits "
            "tie often. Compare with the k-th largest value, in place of the k first of a sort.",
            ([0, 1, 2, 1, 1, -1], Settings(top_k=2)),
            ([0] * 6, Settings(top_k=1)),
            ([3, 1, 2, 2, 2, 2], Settings(top_k=4)),
        ),
    ],
    "strict": [
        _group(
            "tokens that tie with the last of top-p stay",
            "Which of equally likely tokens stays must not depend on their ids.",
            (np.log([0.1, 0.2, 0.4, 0.2, 0.05, 0.05]), Settings(top_p=0.5)),
            ([0] * 6, Settings(top_p=0.4)),
            ([0, 0, 0, -INF, 0, -INF], Settings(min_p=1.0)),
        ),
        _group(
            "temperatures at the end of float32",
            "The difference of logits is divided, not the logits: it stays finite.",
            (FALLING, Settings(temperature=1e-30)),
            (FALLING, Settings(temperature=1e30)),
        ),
        _group(
            "a row without a law gives -1",
            "A plausible id in place of NaN hides a broken model; -1 shows it.",
            ([NAN] * 6, NEUTRAL),
            ([0, 1, NAN, 0, 0, 0], NEUTRAL),
            ([-INF] * 6, NEUTRAL),
            ([0, 1, INF, 0, 0, 0], NEUTRAL),
            ([NAN] * 6, Settings(temperature=0.0)),
            ([-INF] * 6, Settings(temperature=0.0)),
            ([0, 1, NAN, 0, 0, 0], Settings(0.7, 3, 0.9, 0.1)),
        ),
        _group(
            "settings out of range give -1",
            "A request that asks for nothing that makes sense must not be guessed at.",
            *((FALLING, Settings(temperature=t)) for t in (-1.0, NAN, INF)),
            (FALLING, Settings(top_k=-1)),
            *((FALLING, Settings(top_p=p)) for p in (0.0, -0.5, 1.5, NAN)),
            *((FALLING, Settings(min_p=m)) for m in (-0.1, 1.5, NAN)),
        ),
    ],
}


class Uniforms(NamedTuple):
    """Uniforms, each with the ids that may come out for one row."""

    name: str
    logits: list[float]
    cases: list[tuple[float, list[int]]]
    why: str


_HALF_MASKED = [-INF, 0, 0, -INF, 0, 0]  # a quarter each
UNIFORMS: dict[Level, list[Uniforms]] = {
    "contract": [],
    "robust": [
        Uniforms(
            "a uniform of 1",
            [-INF, 0, 0, 0, 0, -INF],
            [(1.0, [1, 2, 3, 4])],
            "Generators with 32 bits round up to 1.0 in float32; the last id, or one past it, "
            "follows.",
        )
    ],
    "strict": [
        Uniforms(
            "uniforms outside [0, 1)",
            _HALF_MASKED,
            [(NAN, [1]), (-1.0, [1]), (-INF, [1]), (1.0, [5]), (2.0, [5]), (INF, [5])],
            "They are clipped, and NaN counts as 0.",
        ),
        Uniforms(
            "the smallest id whose cumulative probability exceeds the uniform",
            _HALF_MASKED,
            [
                (0.0, [1]),
                (0.25 - 2.0**-24, [1]),
                (0.25, [2]),
                (0.5, [4]),
                (0.75 - 2.0**-24, [4]),
                (0.75, [5]),
                (LARGEST_UNIFORM, [5]),
            ],
            "Two samplers agree on a uniform only if tokens have one order; cells are half open.",
        ),
    ],
}


def check_edges(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Rows and uniforms that levels demand more and more of."""
    checks, failures = 0, []
    for name in LEVELS[: LEVELS.index(level) + 1]:
        more, found = judge_groups(candidate, order, level, EDGES[name], num_tests=40)
        checks, failures = checks + more, failures + found
        for edge in UNIFORMS[name] if not takes_key(candidate) else ():
            checks += len(edge.cases)
            failures += [*_wrong_uniforms(candidate, edge)][:1]
    notes = []
    if level != "strict":
        notes.append(f"edges that {level} does not demand were left out: see --level")
    return Outcome(checks, failures, notes)


def _wrong_uniforms(candidate: Candidate, edge: Uniforms) -> Iterator[Failure]:
    rows = make_rows(np.tile(np.array(edge.logits), (BATCH, 1)), [NEUTRAL] * BATCH)
    uniforms = np.resize(np.array([u for u, _ in edge.cases], np.float32), BATCH)
    try:
        ids = run(candidate, rows, uniforms)
    except Exception as error:
        yield explain(candidate, error, edge.name)
        return
    for r, (uniform, good) in enumerate(edge.cases):
        if ids[r] not in good:
            alone = Rows(*(array[r : r + 1] for array in rows))
            yield Failure(
                f"{edge.name}: uniform {uniform!r} gives another token",
                " or ".join(map(str, good)),
                str(ids[r]),
                snippet(candidate, alone, uniforms[r : r + 1]),
                edge.why,
            )
