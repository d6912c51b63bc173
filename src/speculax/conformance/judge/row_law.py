"""The law of a step, for functions that are called once for each of many rows."""

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import grid
from speculax.conformance.verifier.call import as_verifier

MOST_SHOWN = 4


def check_row_law(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """One pair of laws where the stage of the verifiers takes three: 37 thousand rows."""
    del level
    if rule != "token":
        return Outcome(0, notes=["law: left out where each row is a call of its own"])
    try:
        wrong = grid.law_failures(as_verifier(candidate))
    except Exception as error:
        return Outcome(1, [explain(candidate, error, "rows one by one")])
    what, shown = "the output has another law than it should", "; ".join(wrong[:MOST_SHOWN])
    return Outcome(1, [Failure(what, "the target's", shown)] if wrong else [])
