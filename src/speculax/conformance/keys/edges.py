"""The hard rows, each many times with several keys: the law of the verdict is known exactly."""

from functools import cache
from typing import NamedTuple

import numpy as np

from speculax.conformance import chi_square
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.keys.call import Step, run, snippet
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import cells
from speculax.conformance.verifier.call import as_text
from speculax.conformance.verifier.edge_cases import WHY, demanded
from speculax.conformance.verifier.edges import Case
from speculax.conformance.verifier.rules import RULES, Rule

# Chance that the stage accuses a right verifier, shared by its cases.
FALSE_ALARM = 1e-6
REPEATS, KEYS = 64, range(8)  # rows of each case in a batch, and the batches
ABOUT_UNIFORMS = {
    "uniforms outside [0, 1)",
    "cumulative probability meets the uniform exactly",
    "the comparison is strict",
}
MOST_SHOWN = 3
Verdict = tuple[int, ...]  # num_accepted, then the tokens


class Edges(NamedTuple):
    """Cases, all with or all without draft laws.

    Attributes:
        names: The edge of each.
        step: The rows.
        laws: Of each the verdicts that may come out, and how likely they are.
    """

    names: list[str]
    step: Step
    laws: list[dict[Verdict, float]]


@cache
def edges_of(rule: str, level: Level) -> list[Edges]:
    """The cases that a level demands."""
    found: dict[bool, dict[str, tuple[str, Case]]] = {}
    for edge, cases in RULES[rule].edges.items():
        if edge in ABOUT_UNIFORMS:
            continue
        for one in demanded(RULES[rule], edge, cases, level):
            if one.length is None:
                same = found.setdefault(one.draft is None, {})
                same.setdefault(repr((one.ids, one.draft, one.target)), (edge, one))
    return [_stacked(RULES[rule], list(cases.values())) for cases in found.values()]


def _stacked(rule: Rule, cases: list[tuple[str, Case]]) -> Edges:
    names, rows = zip(*cases, strict=True)
    drafts = [one.draft for one in rows]
    step = Step(
        np.array([one.ids for one in rows], np.int32),
        None if drafts[0] is None else np.array(drafts, np.float32),
        np.array([one.target for one in rows], np.float32),
    )
    evaluate = cells.evaluator(rule.control, *step)
    laws: list[dict[Verdict, float]] = []
    for boxes in cells.find_cells(evaluate, len(names), step.target_probs.shape[1]):
        law: dict[Verdict, float] = {}
        for cell in boxes:
            verdict = cell.num_accepted, *cell.tokens
            law[verdict] = law.get(verdict, 0.0) + cell.size
        laws.append(law)
    return Edges([*names], step, laws)


def verdicts(candidate: Candidate, edges: Edges) -> np.ndarray:
    """num_accepted and tokens, int (cases, rows, G + 2)."""
    count = len(edges.names)
    step = edges.step.take(np.tile(np.arange(count), REPEATS))
    found = []
    for key in KEYS:
        result = run(candidate, step, key)
        rows = np.column_stack([result.num_accepted, result.tokens])
        found.append(rows.reshape(REPEATS, count, -1))
    return np.concatenate(found).swapaxes(0, 1)


def check_edges(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Each case many times, among the others, with several keys."""
    checks, failures = 0, []
    every = edges_of(rule, level)
    false_alarm = FALSE_ALARM / sum(len(edges.names) for edges in every)
    for edges in every:
        checks += len(edges.names)
        try:
            found = verdicts(candidate, edges)
        except Exception as error:
            what = "rows without draft laws" if edges.step.draft_probs is None else "hard rows"
            failures.append(explain(candidate, error, what))
            continue
        seen: set[str] = set()
        for c, name in enumerate(edges.names):
            failure = None if name in seen else _judge(candidate, edges, c, found[c], false_alarm)
            if failure is not None:
                seen.add(name)
                failures.append(failure)
    notes = [
        f"verdicts of {REPEATS * len(KEYS)} rows were counted for each case; a right verifier is "
        f"accused with a chance of {FALSE_ALARM}"
    ]
    if level != "strict":
        notes.append(f"edges that {level} does not demand were left out: see --level")
    return Outcome(checks, failures[:MOST_SHOWN], notes)


def _judge(
    candidate: Candidate, edges: Edges, c: int, found: np.ndarray, false_alarm: float
) -> Failure | None:
    """What is wrong with one case: a verdict that may not come out, or one too often."""
    rows = [(*row,) for row in found.tolist()]
    law, name = edges.laws[c], edges.names[c]
    pasted = snippet(candidate, edges.step.take(np.repeat(c, 16)), 0)
    for row in rows:
        if law.get(row, 0.0) == 0:
            likely = sorted(law, key=lambda verdict: -law[verdict])[:3]
            return Failure(
                name,
                "; or ".join(as_text(n, [*tokens]) for n, *tokens in likely),
                f"{as_text(row[0], [*row[1:]])}, in {rows.count(row)} of {len(rows)} rows",
                pasted,
                WHY.get(name, ""),
            )
    counts = np.array([rows.count(verdict) for verdict in law])
    p_value = chi_square.p_value(counts, np.array([*law.values()]))
    if p_value >= false_alarm:
        return None
    worst = max(law, key=lambda verdict: abs(rows.count(verdict) / len(rows) - law[verdict]))
    often = f"in about {law[worst] * len(rows):.0f} of {len(rows)} rows"
    return Failure(
        f"{name}: the law of the verdict is another (p-value {p_value:.1g})",
        f"{as_text(worst[0], [*worst[1:]])} {often}",
        f"in {rows.count(worst)}",
        pasted,
        WHY.get(name, ""),
    )
