"""What a check found, as data."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Level = Literal["contract", "robust", "strict"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong.

    Attributes:
        what: One sentence.
        expected: What should have come out.
        actual: What came out.
        snippet: Python that shows it when pasted; empty where there is none.
        why: Why it matters, or what to do.
        step: The arguments of `step_page`, if it is about a step that such a page can show.
    """

    what: str
    expected: str = ""
    actual: str = ""
    snippet: str = ""
    why: str = ""
    step: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What one stage found.

    Attributes:
        checks: How many things were compared.
        failures: What is wrong, the smallest first.
        notes: What else a reader should know, such as what was left out and why.
        stops: Whether the function is so wrong that further stages would only say so again.
    """

    checks: int
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stops: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage that was run.

    Attributes:
        name: Its name.
        seconds: How long it took, starting its process included.
        outcome: What it found.
    """

    name: str
    seconds: float
    outcome: Outcome

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.outcome.failures


@dataclass(frozen=True)
class Diagnosis:
    """The known mistake that a function behaves like.

    Attributes:
        name: The name of the mutant.
        fault: What it does wrong, in a sentence.
        agreed: On how many probes the function did what the mutant does, of those on which the
            mutant differs from the rule.
        probes: How many those are.
    """

    name: str
    fault: str
    agreed: int
    probes: int


@dataclass(frozen=True)
class Report:
    """A whole check.

    Attributes:
        target: What was checked, as given.
        function: The name of the function.
        kind: What it was checked as.
        rule: The rule it was held to.
        level: How much was demanded.
        stages: What was run.
        diagnosis: The mistake it behaves like, if it has one that is known.
        versions: Of Python and the packages in play.
    """

    target: str
    function: str
    kind: str
    rule: str
    level: Level
    stages: list[Stage]
    diagnosis: Diagnosis | None
    versions: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether all stages passed."""
        return all(stage.passed for stage in self.stages)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        result: dict[str, Any] = asdict(self) | {"passed": self.passed}
        for stage, described in zip(self.stages, result["stages"], strict=True):
            described["passed"] = stage.passed
        return result
