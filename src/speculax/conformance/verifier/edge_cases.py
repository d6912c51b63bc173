"""The hard inputs as a stage: which are demanded, and why each matters."""

from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import edges
from speculax.conformance.verifier.call import Arguments, as_step, as_text, run, snippet
from speculax.conformance.verifier.edges import FLAT, Case
from speculax.conformance.verifier.rules import Rule

WHY = {
    "cumulative probability meets the uniform exactly": (
        "Cells are half open: the token is the smallest id whose cumulative probability is "
        "greater than the uniform. >= gives token 0 the uniform 0 even if it has no mass."
    ),
    "uniforms outside [0, 1)": (
        "Generators with 32 bits round up to 1.0 in float32; an index past the vocabulary follows."
    ),
    "tokens of zero weight are never returned": (
        "Masked and filtered tokens must stay impossible, at the smallest and the largest "
        "uniform too."
    ),
    "draft ids outside the vocabulary": (
        "Padding is -1, and indexing with it reads the last entry, or the nearest: a token "
        "nobody drafted is accepted."
    ),
    "a target row that cannot be drawn from gives -1": (
        "A plausible id in place of NaN hides a broken model; -1 shows it."
    ),
    "rows that are not needed are not read": (
        "Rows beyond the first failure hold whatever was in memory."
    ),
    "negative entries count as zero": ("Subtraction and rounding elsewhere leave -1e-9."),
    "rows that sum to one only roughly are normalised": (
        "Rows of bfloat16 sum to 0.99 or 1.01; the residual and the bonus row are to be "
        "normalised by their own sum."
    ),
    "draft_lengths": ("Rows of a batch have fewer drafts, and some have none."),
    "tests run in order, each with its own rows": (
        "The first failure ends the step: later drafts depend on the one that was refused."
    ),
    "zero target mass is never accepted": (
        "u < target / draft is strict: at u = 0, <= accepts what the target rules out."
    ),
    "zero draft mass with target mass is accepted": (
        "A draft law filtered a little differently than it was sampled from must not divide by "
        "zero."
    ),
    "the comparison is strict": ("Draft tokens pass when u < target / draft, not at equality."),
    "equal rows accept everything": (
        "Where target and draft agree, u < 1 always holds; a guard like draft + 1e-9 refuses "
        "rare tokens."
    ),
    "a residual of zero mass draws from the target row": (
        "Rounding can refuse a token though the residual is empty: 0/0 must not come out."
    ),
    "NaN in the entries a test reads": (
        "NaN compares as false, so that the test fails; the token is then drawn from the target."
    ),
    "NaN in the draft row that is subtracted": (
        "A broken drafter must not break the target's text."
    ),
    "a missing draft law is a point mass": ("Deterministic drafters have no law to hand over."),
    "equal probabilities go to the lowest id": (
        "Plain decoding takes the lowest id, and greedy speculation must agree with it."
    ),
    "the matching prefix of the argmax": ("Matches after the first mismatch do not count."),
}
ROBUST = {
    "uniforms outside [0, 1)",
    "draft ids outside the vocabulary",
    "rows that sum to one only roughly are normalised",
    "zero draft mass with target mass is accepted",
    "a residual of zero mass draws from the target row",
}
MOST_SHOWN = 3


def check_edges(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The edge table, as far as the level demands it."""
    checks, failures, notes = 0, [], []
    told: list[tuple[bool, Failure]] = []  # what the contract itself demands comes first
    has_lengths = level == "strict" and candidate.accepts("draft_lengths")
    if level != "strict":
        notes.append(f"edges that {level} does not demand were left out: see --level")
    elif not has_lengths:
        failures.append(
            Failure(
                "there is no keyword draft_lengths",
                "verify(..., draft_lengths=int32 (B,))",
                "no such parameter",
                why=WHY["draft_lengths"],
            )
        )
    for edge, cases in rule.edges.items():
        wrong = []
        for one in demanded(rule, edge, cases, level):
            if one.length is not None and not has_lengths:
                continue
            checks += 1
            found = _check(candidate, rule, edge, one, level == "strict", has_lengths)
            if found is not None:
                wrong.append((not demanded(rule, edge, [one], "contract"), found))
        if wrong:
            told.append(min(wrong, key=lambda pair: pair[0]))
    told.sort(key=lambda pair: pair[0])
    return Outcome(checks, failures + [failure for _, failure in told], notes)


def demanded(rule: Rule, edge: str, cases: list[Case], level: Level) -> list[Case]:
    """The cases of an edge that a level demands."""
    if level == "strict":
        return cases
    tamed = [_tame(one) for one in cases]
    if edge not in ROBUST:
        kept = [one for one in tamed if _is_in_contract(one)]
    elif level == "robust":
        kept = [one for one in tamed if one.length is None and not _has_nan(one)]
    else:
        kept = []
    return [one for one in kept if _expected(rule, one) == one.emitted]


def _tame(one: Case) -> Case:
    """The case with ordinary numbers where NaN says that nobody looks, and with draft laws."""
    draft = one.draft
    if draft is None:
        draft = [[float(v == x) for v in range(4)] for x in one.ids]

    def rows(law: Any) -> list:
        return [FLAT if np.isnan(row).all() else list(row) for row in law]

    accept = [0.5 if np.isnan(u) else u for u in one.accept]
    sample = 0.5 if np.isnan(one.sample) else one.sample
    draft, target = rows(draft), rows(one.target)
    return one._replace(draft=draft, target=target, accept=accept, sample=sample)


def _has_nan(one: Case) -> bool:
    parts: tuple[Any, ...] = one.draft, one.target, one.accept, one.sample
    return any(np.isnan(np.array(part)).any() for part in parts)


def _is_in_contract(one: Case) -> bool:
    rows = np.array([*(one.draft or []), *one.target])
    uniforms = np.array([*one.accept, one.sample])
    return bool(
        one.length is None
        and one.draft is not None
        and np.isfinite(rows).all()
        and (rows >= 0).all()
        and (abs(rows.sum(axis=1) - 1) < 1e-6).all()
        and ((uniforms >= 0) & (uniforms < 1)).all()
        and all(0 <= x < 4 and one.draft[i][x] > 0 for i, x in enumerate(one.ids))
    )


def _expected(rule: Rule, one: Case) -> list[int]:
    (arguments, _) = edges.arrays([one])
    n, tokens = rule.row(*(None if a is None else a[0] for a in arguments))
    return tokens[: n + 1]


def _check(
    candidate: Candidate, rule: Rule, edge: str, one: Case, in_batch: bool, has_lengths: bool
) -> Failure | None:
    places: list[tuple[str, list[Case], int]] = [("", [one], 0)]
    if in_batch:
        others = [
            c._replace(draft=None if one.draft is None else c.draft) for c in edges.NEIGHBOURS
        ]
        places.append((", in a batch with hard rows", [*others, one], len(others)))
    n = len(one.emitted) - 1
    want = one.emitted + [-1] * (len(one.ids) - n)
    for where, cases, row in places:
        positional, named = edges.arrays(cases, with_lengths=has_lengths)
        arguments = Arguments(*positional, **named)
        try:
            got = run(candidate, arguments).row(row)
        except Exception as error:
            return explain(candidate, error, edge + where)
        if got != (n, want):
            return Failure(
                edge + where,
                as_text(n, want),
                as_text(*got),
                snippet(candidate, arguments.row(row) if where == "" else arguments),
                WHY.get(edge, ""),
                as_step(rule.name, arguments.row(row)),
            )
    return None
