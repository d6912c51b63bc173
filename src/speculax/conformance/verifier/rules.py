"""The rules that a verifier can be held to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from speculax.conformance.candidate import Candidate
from speculax.conformance.report import Level
from speculax.conformance.verifier import mutants, oracle
from speculax.conformance.verifier.edges import EDGES, SETTINGS


@dataclass(frozen=True)
class Rule:
    """A rule, and what it is judged by.

    Attributes:
        name: Its name.
        row: The oracle for one row.
        edges: Its hard cases, by the name of the edge.
        control: A right verifier, in float64.
        mutants: Wrong ones, by name.
        is_lossless: Whether the output follows the target's law.
    """

    name: str
    row: Callable[..., Any]
    edges: dict[str, list[Any]]
    control: mutants.Rule
    mutants: dict[str, mutants.Rule]
    is_lossless: bool


def _row(name: str) -> Callable[..., Any]:
    if name in SETTINGS:
        return oracle.lossy(getattr(oracle, name), **SETTINGS[name])
    return getattr(oracle, f"{name}_row")


RULES = {
    name: Rule(
        name=name,
        row=_row(name),
        edges=EDGES[name],
        control=mutants.CONTROLS[name],
        mutants=mutants.wrong_ones(rule),
        is_lossless=name not in SETTINGS,
    )
    for name, rule in mutants.RULES.items()
}

Found = TypeVar("Found")


def by_name(
    check: Callable[[Candidate, Rule, Level], Found],
) -> Callable[[Candidate, str, Level], Found]:
    """A check that takes the name of a rule in place of it."""
    return lambda candidate, rule, level: check(candidate, RULES[rule], level)
