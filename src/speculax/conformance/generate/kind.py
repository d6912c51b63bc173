"""A loop that generates text: `f(target, drafter, prompt, max_new_tokens, eos, seed) -> ids`."""

from dataclasses import replace
from functools import partial

from speculax.conformance.candidate import Candidate
from speculax.conformance.generate import mutants, naming
from speculax.conformance.generate.acceptance import check_acceptance
from speculax.conformance.generate.call import PARAMETERS
from speculax.conformance.generate.form import check_form
from speculax.conformance.generate.law import check_law
from speculax.conformance.generate.ours import OursLoop
from speculax.conformance.generate.stops import check_greedy, check_stopping
from speculax.conformance.kind import Kind, Specimen, as_candidate, fault_of


def _on_host(candidate: Candidate) -> Candidate:
    """A loop is Python: never compiled, and its rows are NumPy's."""
    return replace(candidate, framework="numpy", compiled=False)


def _specimens() -> list[Specimen]:
    """Right loops, one around this library's verifier among them, and the mutants."""
    right = {"float64, token": mutants.Loop, "float64, block": mutants.BlockLoop}
    right |= {"speculax": OursLoop, "plain sampling": mutants.PlainLoop}
    found = [Specimen(name, "lossless", None, partial(_make, loop)) for name, loop in right.items()]
    for name, mutant in mutants.MUTANTS.items():
        fault = fault_of(mutant())
        found.append(Specimen(name, "lossless", fault, partial(_make, mutant)))
    return found


def _make(loop: type[mutants.Loop]) -> Candidate:
    return as_candidate(loop())


KIND = Kind(
    name="generate",
    parameters=PARAMETERS,
    rules=("lossless",),
    stages={
        "form": check_form,
        "stopping": check_stopping,
        "greedy": check_greedy,
        "acceptance": check_acceptance,
        "law": check_law,
    },
    adapt=_on_host,
    diagnose=naming.diagnose,
    specimens=_specimens,
)
