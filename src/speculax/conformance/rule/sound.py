"""What any lossless verifier may do on hard inputs, whichever tokens it keeps."""

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import edges
from speculax.conformance.verifier.call import Arguments, Result, as_text, run, snippet
from speculax.conformance.verifier.edge_cases import WHY, demanded
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
            if what := _fault(result, arguments):
                told = as_text(*result.row(0)), snippet(candidate, arguments), WHY.get(edge, "")
                failures.append(Failure(f"{edge}: {what}", "", *told))
                break
    return Outcome(checks, failures)


def _fault(result: Result, arguments: Arguments) -> str:
    """What is wrong with the verdict of one row."""
    (n, tokens), ids = result.row(0), arguments.draft_tokens[0].tolist()
    if not 0 <= n <= len(ids):
        return f"num_accepted is outside [0, {len(ids)}]"
    if tokens[:n] != ids[:n] or any(token != -1 for token in tokens[n + 1 :]):
        return "tokens are not the draft tokens that were kept, one more, and -1"
    target = arguments.target_probs[0]
    for row, token in zip(target, tokens[: n + 1], strict=False):
        usable = np.isfinite(row).all() and (row > 0).any()
        if usable and not (0 <= token < len(row) and row[token] > 0):
            return f"token {token} comes out, which the target rules out"
    return ""
