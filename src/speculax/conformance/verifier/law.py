"""The law of the emitted tokens as stages: of one step, and of several in a row."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import cells, grid
from speculax.conformance.verifier.call import as_verifier
from speculax.conformance.verifier.rules import Rule

# Total variation from the target's law that rounding of float32 thresholds to the grid of 24-bit
# uniforms may cause: for each of some ten thresholds a step, at most 2**-23 of the mass.
BOUND = 2e-6
MOST_SHOWN = 4


def check_law(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The joint law of all G + 1 tokens of a step, for drafts that depend on their context."""
    verifier = as_verifier(candidate)
    checks: dict[str, Callable[..., list[str]]] = {"drafts with laws of their own": _dense(rule)}
    if level == "strict" and rule.name == "token":
        checks["deterministic drafts, their laws written out"] = grid.dense_point_mass_failures
        checks["deterministic drafts without laws"] = grid.point_mass_failures
        checks["rows with fewer drafts"] = grid.short_failures
    return run_checks(candidate, rule, checks, verifier)


def check_steps(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The law of the first four tokens of steps one after another, each with fresh uniforms."""
    del level
    if rule.name in ("token", "sampled"):
        check = grid.several_steps_failures
    elif rule.name == "greedy":
        check = grid.greedy_steps_failures
    else:
        check = partial(_cells_in_a_row, rule)
    return run_checks(candidate, rule, {"steps in a row": check}, as_verifier(candidate))


def _dense(rule: Rule) -> Callable[..., list[str]]:
    if rule.name == "token":
        return grid.dense_failures
    if rule.name == "greedy":
        return grid.greedy_failures
    return partial(_cells_of_one_step, rule)


def run_checks(
    candidate: Candidate,
    rule: Rule,
    checks: dict[str, Callable[..., list[str]]],
    verifier: Callable[..., Any],
) -> Outcome:
    """Checks of the law of a verifier by name, each of which returns what is wrong."""
    failures = []
    for name, check in checks.items():
        try:
            wrong = check(verifier)
        except Exception as error:
            failures.append(explain(candidate, error, name))
            continue
        if wrong:
            more = f" (and {len(wrong) - MOST_SHOWN} more)" if len(wrong) > MOST_SHOWN else ""
            failures.append(
                Failure(
                    f"{name}: the output has another law than it should",
                    "the target's" if rule.is_lossless else "that of the rule's formula",
                    "; ".join(wrong[:MOST_SHOWN]) + more,
                )
            )
    return Outcome(len(checks), failures)


def _cells_of_one_step(rule: Rule, verifier: Callable[..., Any], drafts: int = 2) -> list[str]:
    starts: list[Any] = [(cells.Laws(0, kind, drafts), ()) for kind in cells.KINDS]
    steps = cells.cut_steps(verifier, starts, drafts)
    own = None if rule.is_lossless else cells.cut_steps(rule.control, starts, drafts)
    wrong = []
    for i, (laws, prefix) in enumerate(starts):
        if own is None:
            want = laws.joint(laws.target, prefix, drafts + 1)
        else:
            want = cells.law_of_step(own, i, drafts + 1)
        found = difference(cells.law_of_step(steps, i, drafts + 1), want)
        wrong += [f"{laws.kind} laws: {what}" for what in found]
    return wrong


def _cells_in_a_row(
    rule: Rule, verifier: Callable[..., Any], drafts: int = 2, count: int = 4
) -> list[str]:
    laws = cells.Laws(1, "near", 1)
    starts: list[Any] = [(laws, word) for word in cells.words(laws)]

    def law(verifier: Callable[..., Any]) -> np.ndarray:
        return cells.law_of_steps(cells.cut_steps(verifier, starts, drafts), count, count)

    want = laws.joint(laws.target, (), count) if rule.is_lossless else law(rule.control)
    return difference(law(verifier), want)


def difference(got: np.ndarray, want: np.ndarray) -> list[str]:
    """Where two joint laws differ most, and how far they are apart; nothing if they agree."""
    distance = cells.total_variation(got, want)
    if distance < BOUND:
        return []
    tokens = np.unravel_index(np.argmax(abs(got - want)), want.shape)
    text = ", ".join(map(str, tokens))
    told = f"P({text}) = {got[tokens]:.5f}, should be {want[tokens]:.5f}"
    return [f"{told} (total variation {distance:.2g})"]
