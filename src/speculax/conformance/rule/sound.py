"""What any lossless verifier may do on hard inputs, whichever tokens it keeps."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.parts import unless
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import edges
from speculax.conformance.verifier.call import Arguments, Result, as_text, run, snippet
from speculax.conformance.verifier.edge_cases import WHY, demanded
from speculax.conformance.verifier.form import check_verdict
from speculax.conformance.verifier.rules import Rule


def check_sound(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The hard inputs of token verification: no token comes out that the target rules out."""
    level = "robust" if level == "strict" else level  # beyond it, what comes out is a choice
    checks, failures = 0, []
    for edge, cases in rule.edges.items():
        for one in demanded(rule, edge, cases, level):
            positional, named = edges.arrays([one])
            arguments = Arguments(*positional, **named)
            checks += 1
            try:
                result = run(candidate, arguments)
            except Exception as error:
                failures.append(explain(candidate, error, edge))
                break
            shown = snippet(candidate, arguments)
            if fault := next(filter(None, _faults(result, arguments, shown)), None):
                why = fault.why or WHY.get(edge, "")
                failures.append(replace(fault, what=f"{edge}: {fault.what}", why=why))
                break
    return Outcome(checks, failures)


def _faults(result: Result, arguments: Arguments, shown: str) -> Iterator[Failure | None]:
    """What is wrong with the verdict of one row."""
    yield from check_verdict(result, arguments.draft_tokens, [shown])
    n, tokens = result.row(0)
    for row, token in zip(arguments.target_probs[0], tokens[: n + 1], strict=False):
        usable = np.isfinite(row).all() and (row > 0).any()
        yield unless(
            not usable or (0 <= token < len(row) and row[token] > 0),
            f"token {token} comes out, which the target rules out",
            "",
            as_text(n, tokens),
            snippet=shown,
        )
