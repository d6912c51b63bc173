"""Real vocabularies."""

from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.ragged.call import Request, lay, run
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.call import Arguments, as_text
from speculax.conformance.verifier.instances import SLACK, allowed, large_instance
from speculax.conformance.verifier.large import check_large as check_padded
from speculax.conformance.verifier.rules import Rule

VOCAB = 32_000
LENGTHS = [3, 0, 1, 2]


def check_large(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Rows of 32,000 tokens, and what the padded verifiers are held to in large vocabularies."""
    failures = _check_lengths(candidate, rule, level)
    if failures:  # what comes after would say the same once more
        return Outcome(1, failures)
    found = check_padded(as_padded(candidate), rule, level)
    return Outcome(found.checks + 1, found.failures, found.notes)


def _check_lengths(candidate: Candidate, rule: Rule, level: Level) -> list[Failure]:
    steps = large_instance(VOCAB, 0)
    requests = [
        Request(
            steps.draft_tokens[b, :length],
            steps.draft_probs[b, :length] if steps.draft_probs is not None else None,
            steps.target_probs[b, : length + 1],
            steps.accept_uniforms[b, :length],
            steps.sample_uniforms[b],
        )
        for b, length in enumerate(LENGTHS)
    ]
    try:
        result = run(candidate, lay(requests))
    except Exception as error:
        return [explain(candidate, error, f"V = {VOCAB}")]
    failures = []
    for b, request in enumerate(requests):
        n, tokens = result.row(b)
        right = allowed(rule.row, Arguments(*request), SLACK[level])
        if n not in right or not right[n][0] <= tokens[n] <= right[n][1]:
            failures.append(
                Failure(
                    f"V = {VOCAB}: request {b} of draft_lengths {LENGTHS} comes out wrong",
                    " or ".join(
                        f"num_accepted {m}, then a token from {low} to {high}"
                        for m, (low, high) in right.items()
                    ),
                    as_text(n, tokens),
                )
            )
    return failures[:1]


def as_padded(candidate: Candidate) -> Candidate:
    """A verifier with the padded signature, all of whose rows have G draft tokens."""

    @wraps(candidate.function)  # whose lines are shown if it raises
    def verify(
        draft_tokens: Any,
        draft_probs: Any,
        target_probs: Any,
        accept_uniforms: Any,
        sample_uniforms: Any,
    ) -> Any:
        batch, drafts, vocab = *draft_tokens.shape, target_probs.shape[2]
        lengths = candidate.convert(np.full(batch, drafts, np.int32))
        if drafts:
            size = batch * drafts
            flat = (
                draft_tokens.reshape(size),
                lengths,
                draft_probs.reshape(size, vocab),
                target_probs[:, :drafts].reshape(size, vocab),
            )
            noise = accept_uniforms.reshape(size)
        else:  # one row that is nobody's
            row = candidate.convert(np.full((1, vocab), 1 / vocab, np.float32))
            flat = candidate.convert(np.zeros(1, np.int32)), lengths, row, row
            noise = candidate.convert(np.zeros(1, np.float32))
        result = candidate.function(*flat, target_probs[:, drafts], noise, sample_uniforms)
        tokens = result["tokens"][:, : drafts + 1]
        return {"num_accepted": result["num_accepted"], "tokens": tokens}

    return replace(candidate, function=verify, traces=0, _jitted=None)
