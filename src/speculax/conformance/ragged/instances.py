"""Random batches of drafts of random lengths, each request compared with exact arithmetic."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.ragged.call import Arguments, Request, lay, run, snippet
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.call import as_text
from speculax.conformance.verifier.instances import draw_instances
from speculax.conformance.verifier.rules import Rule

SIZES = [(2, 1, 4), (4, 2, 5), (8, 4, 4)]  # (T, B, V)
PER_SIZE = 40
MOST_SHOWN = 3
LAYOUT = (
    "Request b begins at the sum of the lengths before it, sum(draft_lengths[:b]), and its bonus "
    "row is bonus_probs[b]; nothing else of the flat arrays is its own."
)


def check_instances(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Batches with requests of any lengths, none at all included."""
    rng = np.random.default_rng(2027)
    checks, failures = 0, []
    for size in SIZES:
        for arguments in draw_batches(rng, size, rule, level, PER_SIZE):
            checks += len(arguments.draft_lengths)
            try:
                failures += compare(candidate, rule, arguments)
            except Exception as error:
                failures.append(explain(candidate, error, "T = {}, B = {}, V = {}".format(*size)))
                return Outcome(checks, failures)
        if failures:  # larger ones are harder to read
            break
    return Outcome(checks, failures[:MOST_SHOWN])


def draw_batches(
    rng: np.random.Generator, size: tuple[int, int, int], rule: Rule, level: Level, count: int
) -> Iterator[Arguments]:
    """Batches without comparisons that are close.

    Beyond the contract there is padding behind the last request, and now and then nothing else;
    strictly, of every four batches one has drafts without laws.
    """
    num_tokens, batch, vocab = size
    for number in range(count):
        total = num_tokens
        if level != "contract":
            total = int(rng.integers(0, num_tokens + 1)) if number % 2 else num_tokens
        lengths = rng.multinomial(total, rng.dirichlet(np.ones(batch)))
        has_laws = level != "strict" or number % 4 != 1
        requests = [draw_request(rng, n, vocab, rule, has_laws) for n in lengths.tolist()]
        padding = draw_request(rng, num_tokens - total, vocab, rule, has_laws)
        if number % 3:
            padding = spoilt(padding, level)
        yield lay(requests, padding)


def draw_request(
    rng: np.random.Generator, length: int, vocab: int, rule: Rule, has_laws: bool
) -> Request:
    """A request whose comparisons are not close."""
    row = rule.row if has_laws else _without_laws(rule)
    step = next(draw_instances(rng, 1, length, vocab, row))
    ids, draft, target, accept, sample = (a[0] for a in step[:5] if a is not None)
    return Request(ids, draft if has_laws else None, target, accept, sample)


def _without_laws(rule: Rule) -> Callable[..., Any]:
    def row(ids: np.ndarray, draft: np.ndarray, *rest: np.ndarray, **named: Any) -> Any:
        del draft
        return rule.row(ids, None, *rest, **named)

    return row


def spoilt(padding: Request, level: Level) -> Request:
    """Padding as engines have it: ids of -1; strictly, whatever was in memory."""
    if level == "contract":
        return padding
    padding = padding._replace(draft_tokens=np.full_like(padding.draft_tokens, -1))
    if level != "strict":
        return padding
    draft = padding.draft_probs
    return padding._replace(
        draft_probs=None if draft is None else np.full_like(draft, np.nan),
        target_probs=np.full_like(padding.target_probs, np.nan),
        accept_uniforms=np.full_like(padding.accept_uniforms, np.nan),
    )


def expected(rule: Rule, request: Request) -> tuple[int, list[int]]:
    """What the rule gives for a request."""
    return rule.row(*request, number=Fraction)


def wanted(rule: Rule, request: Request, width: int) -> tuple[int, list[int]]:
    """The same in a row of a width."""
    n, tokens = expected(rule, request)
    return n, tokens + [-1] * (width - len(tokens))


def compare(candidate: Candidate, rule: Rule, arguments: Arguments) -> list[Failure]:
    """What requests of one call come out wrong; shown with as few other requests as it takes."""
    wrong = wrong_requests(candidate, rule, arguments)
    return [_failure(candidate, rule, arguments, b) for b in wrong]


def wrong_requests(candidate: Candidate, rule: Rule, arguments: Arguments) -> list[int]:
    """The requests that come out wrong."""
    result = run(candidate, arguments)
    width = result.tokens.shape[1]
    return [
        b
        for b, request in enumerate(arguments.requests())
        if result.row(b) != wanted(rule, request, width)
    ]


def _failure(candidate: Candidate, rule: Rule, arguments: Arguments, b: int) -> Failure:
    requests = arguments.requests()
    alone = lay([requests[b]]) if requests[b].length else None
    if alone is not None and wrong_requests(candidate, rule, alone):
        arguments, requests, b = alone, [requests[b]], 0
        what, why = f"a request of {requests[0].length} draft tokens comes out wrong, alone", ""
    else:
        lengths = arguments.draft_lengths.tolist()
        what, why = f"request {b} of draft_lengths {lengths} comes out wrong", LAYOUT
    result = run(candidate, arguments)
    return Failure(
        what,
        as_text(*wanted(rule, requests[b], result.tokens.shape[1])),
        as_text(*result.row(b)),
        snippet(candidate, arguments),
        why,
    )
