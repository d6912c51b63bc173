"""What a function can be checked as."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from speculax.conformance.candidate import Candidate, MisuseError
from speculax.conformance.report import Diagnosis, Level, Outcome

Check = Callable[[Candidate, str, Level], Outcome]


@dataclass(frozen=True)
class Specimen:
    """A function that is known to be right, or wrong in a known way, to test the checks by.

    Attributes:
        name: Its name.
        rule: The rule it belongs to.
        fault: What it does wrong; None if it is right.
        make: Makes the candidate.
    """

    name: str
    rule: str
    fault: str | None
    make: Callable[[], Candidate]


def fault_of(mutant: object) -> str:
    """What a mutant does wrong, in a sentence."""
    return " ".join((type(mutant).__doc__ or "").split())


def as_candidate(function: Callable[..., Any], is_ours: bool = False) -> Candidate:
    """A function of this package, put under test: ours of JAX, others of NumPy."""
    name = type(function).__name__
    framework = "jax" if is_ours else "numpy"
    return Candidate(function, name, f"mutants:{name}", framework, compiled=is_ours)


@dataclass(frozen=True)
class Kind:
    """A kind of function, and the stages it goes through.

    Attributes:
        name: What `--as` calls it.
        parameters: The names of its parameters, in order.
        rules: The rules it can be held to; the first if none is named.
        stages: The checks, by the name of the stage: `check(candidate, rule, level)`.
        diagnose: Finds the known mistake that a function behaves like.
        on_demand: Stages that run only if they are asked for.
        adapt: Makes a function that was found ready for the stages, or raises `MisuseError`.
        specimens: What the checks themselves are tested by.
    """

    name: str
    parameters: tuple[str, ...]
    rules: tuple[str, ...]
    stages: dict[str, Check]
    diagnose: Callable[[Candidate, str, Level], Diagnosis | None]
    on_demand: frozenset[str] = frozenset()
    adapt: Callable[[Candidate], Candidate] = lambda candidate: candidate
    specimens: Callable[[], list[Specimen]] = list


KINDS = {
    "verifier": "speculax.conformance.verifier.kind",
    "rule": "speculax.conformance.rule.kind",
    "ragged": "speculax.conformance.ragged.kind",
    "generate": "speculax.conformance.generate.kind",
    "judge": "speculax.conformance.judge.kind",
    "sampler": "speculax.conformance.sampler.kind",
    "keys": "speculax.conformance.keys.kind",
}


def load_kind(name: str) -> Kind:
    """A kind by name.

    Raises:
        MisuseError: If it is not one of `KINDS`.
    """
    if name not in KINDS:
        raise MisuseError(f"there is no kind {name!r}", f"one of {', '.join(KINDS)}")
    return import_module(KINDS[name]).KIND
