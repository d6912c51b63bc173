"""The checks checked: every mutant must be refused, and no right function accused."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from speculax.conformance.kind import KINDS, Specimen, load_kind


@dataclass(frozen=True)
class Trial:
    """What became of a specimen at the strict level.

    Attributes:
        kind: What it was checked as.
        name: Its name.
        rule: Its rule.
        fault: What it does wrong; None if nothing.
        failed: Of each stage, whether it failed.
        named: The name that was given to its fault.
    """

    kind: str
    name: str
    rule: str
    fault: str | None
    failed: dict[str, bool]
    named: str | None

    @property
    def refused(self) -> bool:
        """Whether any stage failed."""
        return any(self.failed.values())

    @property
    def as_it_should(self) -> bool:
        """Whether a mutant was refused, or a right function was not."""
        return self.refused == (self.fault is not None)


def self_test(
    kinds: list[str] | None = None, on_trial: Callable[[Trial], None] = lambda trial: None
) -> list[Trial]:
    """Put all specimens through all stages, one process a core.

    Args:
        kinds: What to test, of `KINDS`; None for all.
        on_trial: Called with each trial when it is done.

    Returns:
        The trials, in the order of the specimens.

    Raises:
        MisuseError: If there is no such kind.
    """
    jobs = [job for kind in kinds or KINDS for job in _jobs(kind)]
    context = multiprocessing.get_context("spawn")
    trials = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for trial in pool.map(_run, *zip(*jobs, strict=True)):
            on_trial(trial)
            trials.append(trial)
    return trials


def _jobs(kind: str) -> list[tuple[str, int]]:
    return [(kind, number) for number in range(len(load_kind(kind).specimens()))]


def _run(kind: str, number: int) -> Trial:
    known = load_kind(kind)
    specimen: Specimen = known.specimens()[number]
    candidate = specimen.make()
    failed = {
        name: bool(check(candidate, specimen.rule, "strict").failures)
        for name, check in known.stages.items()
        if name not in known.on_demand
    }
    found = known.diagnose(candidate, specimen.rule, "strict") if any(failed.values()) else None
    name = None if found is None else found.name
    return Trial(kind, specimen.name, specimen.rule, specimen.fault, failed, name)
