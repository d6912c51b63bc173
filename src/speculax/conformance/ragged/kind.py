"""A verifier of drafts of different lengths that lie one after another."""

from functools import partial
from typing import Any

import jax

import speculax as sx
from speculax.conformance.kind import Kind, Specimen, as_candidate, fault_of
from speculax.conformance.ragged import mutants, naming
from speculax.conformance.ragged.call import PARAMETERS
from speculax.conformance.ragged.edges import check_edges
from speculax.conformance.ragged.form import check_form
from speculax.conformance.ragged.instances import check_instances
from speculax.conformance.ragged.large import check_large
from speculax.conformance.verifier.rules import by_name

LOSSLESS = ("token", "block", "greedy", "sampled")


def _specimens() -> list[Specimen]:
    """This library's own, the float64 ones, and the mutants."""
    found = []
    for rule in ("token", "greedy"):  # the others differ in what is judged, not in the layout
        ours = partial(verify_ragged, rule)
        found.append(Specimen(f"speculax, {rule}", rule, None, partial(as_candidate, ours, True)))
    for rule in LOSSLESS:
        right = mutants.control(rule)
        found.append(Specimen(f"float64, {rule}", rule, None, partial(as_candidate, right)))
    for name, mutant in mutants.MUTANTS.items():
        fault = fault_of(mutant)
        found.append(Specimen(name, "token", fault, partial(as_candidate, mutant)))
    return found


def verify_ragged(rule: Any, draft_tokens: jax.Array, *rest: Any) -> Any:
    """This library's own, where no draft is cut."""
    size = len(draft_tokens)
    return sx.verify_ragged(draft_tokens, *rest, max_draft_length=size, rule=rule)


KIND = Kind(
    name="ragged",
    parameters=PARAMETERS,
    rules=LOSSLESS,
    stages={
        "form": by_name(check_form),
        "random instances": by_name(check_instances),
        "edges": by_name(check_edges),
        "large": by_name(check_large),
    },
    diagnose=by_name(naming.diagnose),
    specimens=_specimens,
)
