"""A verifier in another common form: other names and orders, no batch axis, other results."""

from dataclasses import replace
from functools import partial

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.judge.adapter import Adapter, adapt
from speculax.conformance.judge.forms import Example, examples
from speculax.conformance.judge.pasting import in_own_words
from speculax.conformance.judge.row_law import check_row_law
from speculax.conformance.kind import Check, Kind, Specimen
from speculax.conformance.report import Diagnosis, Failure, Level, Outcome
from speculax.conformance.verifier.kind import KIND as VERIFIER
from speculax.conformance.verifier.rules import RULES

FORMS = (
    "num_accepted and tokens in a dict or a tuple; tokens padded with -1; the accepted tokens or a "
    "mask of them, and the token after them; how many, and that token"
)
# What stands in where each row is a call of its own; None if nothing does.
ROW_BY_ROW: dict[str, Check | None] = {"law": check_row_law, "several steps": None}


def check_form(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Whether the examples can be read in any form; the notes say in which."""
    adapter = _settled(candidate, rule)
    if adapter.error is not None:
        failure = explain(candidate, adapter.error, f"the examples ({adapter.form.mapping})")
        return Outcome(1, [failure], stops=True)
    if not adapter.is_read:
        what = "nothing that it returns for the examples can be read as a verdict"
        return Outcome(1, [Failure(what, FORMS, adapter.returned)], stops=True)
    notes = [f"taken as: {adapter.form}"]
    if _level(candidate, level) != level:
        notes.append("held to level robust: strict is for functions with draft_lengths")
    return Outcome(1, notes=notes)


def _as_verifier(name: str, check: Check) -> Check:
    """A stage of the verifiers for functions of other forms."""

    def stage(candidate: Candidate, rule: str, level: Level) -> Outcome:
        adapter = _settled(candidate, rule)
        used: Check | None = check
        if not candidate.compiled and not adapter.form.has_batch:
            used = ROW_BY_ROW.get(name, check)
        if used is None:
            return Outcome(0, notes=[f"{name}: left out where each row is a call of its own"])
        outcome = used(candidate, rule, _level(candidate, level))
        failures = [
            replace(failure, snippet=in_own_words(failure.snippet, adapter.form))
            if failure.snippet
            else failure
            for failure in outcome.failures
        ]
        return replace(outcome, failures=failures)

    return stage


def _settled(candidate: Candidate, rule: str) -> Adapter:
    adapter = candidate.function
    assert isinstance(adapter, Adapter)
    adapter.settle(RULES[rule])
    return adapter


def _level(candidate: Candidate, level: Level) -> Level:
    """Strict is for what has the contract's own form, lengths of drafts included."""
    return "robust" if level == "strict" and not candidate.accepts("draft_lengths") else level


def _diagnose(candidate: Candidate, rule: str, level: Level) -> Diagnosis | None:
    _settled(candidate, rule)
    return VERIFIER.diagnose(candidate, rule, _level(candidate, level))


def _specimens() -> list[Specimen]:
    return [
        Specimen(example.name, "token", example.fault, partial(_make, example))
        for example in examples()
    ]


def _make(example: Example) -> Candidate:
    framework = "jax" if example.compiled else "numpy"
    name = example.function.__name__
    return adapt(
        Candidate(example.function, name, f"forms:{name}", framework, compiled=example.compiled)
    )


KIND = Kind(
    name="judge",
    parameters=(),
    rules=("token", "block"),
    stages={
        "other form": check_form,
        **{name: _as_verifier(name, check) for name, check in VERIFIER.stages.items()},
    },
    on_demand=VERIFIER.on_demand,
    adapt=adapt,
    diagnose=_diagnose,
    specimens=_specimens,
)
