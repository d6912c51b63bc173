"""Checks in parts: what comes after the first part that fails would say the same once more."""

from collections.abc import Iterable
from typing import Any

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome

Part = Iterable[Failure | None]  # one entry a check, None where nothing is wrong


def run_parts(candidate: Candidate, parts: Iterable[Part], notes: list[str]) -> Outcome:
    """The checks up to the first part that fails.

    Args:
        candidate: The function.
        parts: The parts, generators that call it as they go.
        notes: Of the outcome.

    Returns:
        The outcome. It stops the run if the first call of all failed.
    """
    checks = 0
    for part in parts:
        found: list[Failure | None] = []
        try:
            found.extend(part)  # what was found before an exception stays
        except Exception as error:
            found.append(explain(candidate, error, "a call"))
        checks += len(found)
        failures = [failure for failure in found if failure is not None]
        if failures:
            return Outcome(checks, failures, notes, stops=checks == 1)
    return Outcome(checks, [], notes)


def check_writes(
    candidate: Candidate, names: tuple[str, ...], arguments: tuple[Any, ...], level: Level
) -> Part:
    """Beyond the contract, that a function leaves alone what it is given; JAX has it so."""
    if level != "contract" and candidate.framework != "jax":
        changed = candidate.changed(arguments)
        yield unless(
            not changed,
            f"it writes into {' and '.join(names[i] for i in changed)}",
            "arguments as they were",
            "others",
            "Callers use their arrays again: work on a copy.",
        )


def unless(
    good: bool, what: str, expected: str, actual: str, why: str = "", snippet: str = ""
) -> Failure | None:
    """A failure, unless all is good."""
    return None if good else Failure(what, expected, actual, snippet, why)
