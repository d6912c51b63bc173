"""A verifier with the signature of the contract."""

from functools import partial

import speculax as sx
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.kind import Kind, Specimen, as_candidate, fault_of
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import naming
from speculax.conformance.verifier.call import PARAMETERS, as_step, as_text, run, snippet
from speculax.conformance.verifier.edge_cases import check_edges
from speculax.conformance.verifier.edges import SETTINGS
from speculax.conformance.verifier.examples import EXAMPLES
from speculax.conformance.verifier.form import check_form
from speculax.conformance.verifier.instances import check_instances, expected
from speculax.conformance.verifier.large import check_large
from speculax.conformance.verifier.law import check_law, check_steps
from speculax.conformance.verifier.rules import RULES, Rule, by_name
from speculax.conformance.verifier.speed import check_speed


def check_examples(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The three examples of the contract; for other rules the same inputs."""
    del level
    failures = []
    for number, (arguments, results) in enumerate(EXAMPLES, 1):
        rows = range(len(arguments.draft_tokens))
        want = results if rule.name == "token" else [expected(rule, arguments.row(b)) for b in rows]
        try:
            got = run(candidate, arguments)
        except Exception as error:
            failures.append(explain(candidate, error, f"example {number}"))
            continue
        wrong = [b for b in rows if got.row(b) != want[b]]
        if wrong:
            failures.append(
                Failure(
                    f"example {number} comes out wrong",
                    "; ".join(as_text(*want[b]) for b in rows),
                    "; ".join(as_text(*got.row(b)) for b in rows),
                    snippet(candidate, arguments),
                    step=as_step(rule.name, arguments.row(wrong[0])),
                )
            )
    return Outcome(len(EXAMPLES), failures)


def _specimens() -> list[Specimen]:
    """The mutants; the float64 rules they are made from; and this library's own rules."""
    found = []
    for name, rule in RULES.items():
        settings = SETTINGS.get(name, {})
        ours = partial(getattr(sx, _OURS.get(name, f"verify_{name}")), **settings)
        found.append(Specimen(f"speculax, {name}", name, None, partial(as_candidate, ours, True)))
        found.append(Specimen(f"float64, {name}", name, None, partial(as_candidate, rule.control)))
        for mutant, function in rule.mutants.items():
            fault = fault_of(function)
            found.append(Specimen(mutant, name, fault, partial(as_candidate, function)))
    return found


_OURS = {name: f"verify_lossy_{name}" for name in SETTINGS}


KIND = Kind(
    name="verifier",
    parameters=PARAMETERS,
    rules=tuple(RULES),
    stages={
        "form": by_name(check_form),
        "examples": by_name(check_examples),
        "random instances": by_name(check_instances),
        "edges": by_name(check_edges),
        "large": by_name(check_large),
        "law": by_name(check_law),
        "several steps": by_name(check_steps),
        "speed": by_name(check_speed),
    },
    on_demand=frozenset({"speed"}),
    diagnose=by_name(naming.diagnose),
    specimens=_specimens,
)
