"""A verifier with a rule of its own, held to the law that comes out and to nothing else."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import speculax as sx
from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import Check, Kind, Specimen, as_candidate, fault_of
from speculax.conformance.report import Level, Outcome
from speculax.conformance.rule.in_loop import check_in_loop
from speculax.conformance.rule.sound import check_sound
from speculax.conformance.verifier.call import PARAMETERS
from speculax.conformance.verifier.form import check_form
from speculax.conformance.verifier.large import check_large
from speculax.conformance.verifier.law import check_law, check_steps
from speculax.conformance.verifier.rules import RULES, Rule
from speculax.conformance.verifier.speed import check_speed

# Hard inputs are those of token verification. Its name is not: nothing is special about its laws,
# whose thresholds lie on a grid.
LOSSLESS = replace(RULES["token"], name="lossless")

# Mistakes that change the law; others of the token rule are choices, or show in NaN alone.
WRONG = (
    "AcceptsEverything",
    "BonusFromLastDraftRow",
    "CorrectionFromTarget",
    "CountsBeyondFirstFailure",
    "IgnoresLengths",
    "SampledDraftAsPointMass",
)


def _lossless(check: Callable[[Candidate, Rule, Level], Outcome]) -> Check:
    return lambda candidate, name, level: check(candidate, LOSSLESS, level)


def _specimens() -> list[Specimen]:
    """Lossless rules of all kinds; lossy ones, and wrong ones."""
    found = []
    for name in ("token", "block", "sampled"):
        ours = partial(as_candidate, getattr(sx, f"verify_{name}"), True)
        found.append(Specimen(f"speculax, {name}", "lossless", None, ours))
    for name, rule in RULES.items():
        if not rule.is_lossless:
            fault = f"The {name} rule, which is lossy."
            lossy = partial(as_candidate, rule.control)
            found.append(Specimen(f"float64, {name}", "lossless", fault, lossy))
    for name in WRONG:
        mutant = RULES["token"].mutants[name]
        wrong = partial(as_candidate, mutant)
        found.append(Specimen(name, "lossless", fault_of(mutant), wrong))
    return found


KIND = Kind(
    name="rule",
    parameters=PARAMETERS,
    rules=("lossless",),
    stages={
        "form": _lossless(check_form),
        "hard inputs": _lossless(check_sound),
        "large": _lossless(check_large),
        "law": _lossless(check_law),
        "several steps": _lossless(check_steps),
        "in generate": _lossless(check_in_loop),
        "speed": lambda candidate, name, level: check_speed(candidate, RULES["token"], level),
    },
    on_demand=frozenset({"speed"}),
    diagnose=lambda candidate, name, level: None,
    specimens=_specimens,
)
