"""The form of a ragged verifier: what it returns, and that it lives with `jit`."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.parts import check_writes, run_parts, unless
from speculax.conformance.ragged.call import PARAMETERS, Arguments, lay, run, snippet
from speculax.conformance.ragged.instances import draw_request, spoilt
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.form import check_dtypes
from speculax.conformance.verifier.rules import Rule

LENGTHS = [[2, 0, 1, 3], [0, 4, 2, 0], [6, 0, 0, 0], [1, 2, 2, 1]]
VOCAB = 4
WIDTH = (
    "Under jax.jit the width of tokens may not depend on the values of draft_lengths: T + 1 always "
    "suffices."
)


def check_form(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Keys, shapes, dtypes and padding; retracing if it is compiled; the ends of the contract."""
    parts = [
        _check_result(candidate, rule),
        *([_check_retrace(candidate, rule)] if candidate.compiled else []),
        _check_ends(candidate, rule, level),
        check_writes(candidate, PARAMETERS, _batch(rule, LENGTHS[0]), level),
    ]
    notes = [] if candidate.compiled else ["not under jax.jit: tracing was not checked"]
    return run_parts(candidate, parts, notes)


def _batch(
    rule: Rule, lengths: list[int], padding: int = 0, level: Level = "contract"
) -> Arguments:
    """A batch of these lengths, and so many rows of padding as a level has them."""
    rng = np.random.default_rng([3, *lengths])
    requests = [draw_request(rng, n, VOCAB, rule, True) for n in lengths]
    return lay(requests, spoilt(draw_request(rng, padding, VOCAB, rule, True), level))


def _check_result(candidate: Candidate, rule: Rule) -> Iterator[Failure | None]:
    arguments = _batch(rule, LENGTHS[0])
    how = "compiling it with every argument traced" if candidate.compiled else "calling it"
    try:
        result = run(candidate, arguments)
    except Exception as error:
        failure = explain(candidate, error, how, snippet(candidate, arguments))
        if candidate.compiled:
            failure = replace(failure, why=f"{failure.why} {WIDTH}".strip())
        yield failure
        return
    yield None
    yield from check_dtypes(result)
    for b, request in enumerate(arguments.requests()):
        (n, tokens), length = result.row(b), request.length
        ids = request.draft_tokens.tolist()
        yield unless(
            0 <= n <= length and tokens[:n] == ids[:n],
            f"request {b} does not begin with the num_accepted draft tokens that were kept",
            f"num_accepted in [0, {length}], {ids[: max(n, 0)]} first",
            f"num_accepted {n}, tokens {tokens}",
            snippet=snippet(candidate, arguments),
        )
        yield unless(
            all(x == -1 for x in tokens[n + 1 :]),
            f"what comes after the token that was drawn for request {b} is not -1",
            f"{tokens[: n + 1] + [-1] * (len(tokens) - n - 1)}",
            f"{tokens}",
            "Whoever reads the row stops at the first -1.",
            snippet(candidate, arguments),
        )


def _check_retrace(candidate: Candidate, rule: Rule) -> Iterator[Failure | None]:
    before = candidate.traces
    for lengths in LENGTHS[1:]:
        run(candidate, _batch(rule, lengths))
    yield unless(
        candidate.traces == before,
        "other draft_lengths of the same shapes make jax.jit trace the function again",
        "one trace",
        f"{candidate.traces - before} more in {len(LENGTHS) - 1} calls",
        "Each trace compiles for seconds; nothing may depend on values but through arrays.",
    )


def _check_ends(candidate: Candidate, rule: Rule, level: Level) -> Iterator[Failure | None]:
    """One request; requests without drafts among padding; strictly, flat arrays of no rows."""
    ends = {"one request": ([2], 0), "one draft token in all": ([0, 1, 0], 0)}
    if level != "contract":
        ends["no request has drafts, and all rows are padding"] = ([0, 0], 2)
    if level == "strict":
        ends["no draft tokens at all (T = 0)"] = ([0, 0], 0)
    for name, (lengths, padding) in ends.items():
        arguments = _batch(rule, lengths, padding, level)
        try:
            result = run(candidate, arguments)
        except Exception as error:
            yield explain(candidate, error, name, snippet(candidate, arguments))
            continue
        n = result.num_accepted
        yield unless(
            bool(((n >= 0) & (n <= arguments.draft_lengths)).all()),
            f"{name}: num_accepted is outside [0, draft_lengths]",
            f"at most {lengths}",
            f"{n.tolist()}",
        )
