"""The hard inputs of the edge table, each laid out flat, alone and between other requests."""

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.ragged.call import Arguments, Request, lay, run, snippet
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import edges
from speculax.conformance.verifier.call import as_text
from speculax.conformance.verifier.edge_cases import WHY, demanded
from speculax.conformance.verifier.edges import Case
from speculax.conformance.verifier.rules import Rule

DRAFTS = 2  # of every case, those beyond its length included


def check_edges(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The edge table, as far as the level demands it."""
    checks, failures = 0, []
    for edge, cases in cases_of(rule, level).items():
        wrong = []
        for number, one in enumerate(cases):
            for where, arguments, b in layouts(one, number, level):
                checks += 1
                found = _check(candidate, edge, where, one, arguments, b)
                wrong += [] if found is None else [found]
        failures += wrong[:1]
    notes = [] if level == "strict" else [f"edges that {level} does not demand were left out"]
    return Outcome(checks, failures, notes)


def cases_of(rule: Rule, level: Level) -> dict[str, list[Case]]:
    """The cases that a level demands; a length that is none has no meaning in this layout."""
    return {
        edge: [
            one
            for one in demanded(rule, edge, cases, level)
            if one.length is None or 0 <= one.length <= DRAFTS
        ]
        for edge, cases in rule.edges.items()
    }


def layouts(one: Case, number: int, level: Level) -> list[tuple[str, Arguments, int]]:
    """A case alone and, strictly, between hard requests; what is beyond the lengths comes last."""
    own = split(one)
    found = [("", lay([own[0]], own[1]), 0)]
    if level == "strict":
        parts = [
            split(c._replace(draft=None if one.draft is None else c.draft))
            for c in edges.NEIGHBOURS
        ]
        slot = number % (len(parts) + 1)
        parts.insert(slot, own)
        arguments = lay([request for request, _ in parts], *(beyond for _, beyond in parts))
        found.append((", between hard requests", arguments, slot))
    return found


def split(one: Case) -> tuple[Request, Request]:
    """A case as a request of its length, and what lies beyond that."""
    (ids, draft, target, accept, sample), _ = edges.arrays([one._replace(length=None)])
    length = DRAFTS if one.length is None else one.length

    def part(rows: slice) -> Request:
        laws = None if draft is None else draft[0, rows]
        law = target[0, rows.start : rows.stop + 1]
        return Request(ids[0, rows], laws, law, accept[0, rows], sample[0])

    return part(slice(0, length)), part(slice(length, DRAFTS))


def _check(
    candidate: Candidate, edge: str, where: str, one: Case, arguments: Arguments, b: int
) -> Failure | None:
    try:
        got = run(candidate, arguments)
    except Exception as error:
        return explain(candidate, error, edge + where)
    n = len(one.emitted) - 1
    want = n, one.emitted + [-1] * (got.tokens.shape[1] - n - 1)
    if got.row(b) == want:
        return None
    return Failure(
        f"{edge}{where}" + (f": request {b}" if where else ""),
        as_text(*want),
        as_text(*got.row(b)),
        snippet(candidate, arguments),
        WHY.get(edge, ""),
    )
