"""Random instances of a step, compared with an oracle in exact arithmetic."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import oracle
from speculax.conformance.verifier.call import Arguments, as_step, as_text, run, snippet
from speculax.conformance.verifier.rules import Rule

SIZES = [(1, 1, 4), (1, 2, 5), (2, 1, 6), (3, 3, 4), (4, 4, 5), (2, 8, 6)]  # (B, G, V)
PER_SIZE = 60
MARGIN = 0.002  # how far a uniform stays from every number it is compared with
LARGE = [32_000, 151_936]
# How far, in cumulative probability, a token may be from where float64 finds it: a running sum in
# float32 over a large vocabulary is off by this much.
SLACK = {"contract": 1e-3, "robust": 1e-4, "strict": 2e-5}
MOST_SHOWN = 3


def draw_instances(
    rng: np.random.Generator,
    batch: int,
    drafts: int,
    vocab: int,
    row: Callable[..., Any] = oracle.token_row,
) -> Iterator[Arguments]:
    """Instances whose probabilities are hundredths, without comparisons that are close."""
    while True:
        draft, target = (_hundredths(rng, (batch, n, vocab)) for n in (drafts, drafts + 1))
        near = rng.random((batch, drafts, 1)) < 0.4
        draft = np.where(near, _near(target[:, :drafts], rng), draft)
        ids = np.array(
            [[rng.choice(vocab, p=q / q.sum()) for q in rows] for rows in draft], np.int32
        ).reshape(batch, drafts)
        arguments = Arguments(
            ids,
            (draft / 100).astype(np.float32),
            (target / 100).astype(np.float32),
            rng.integers(0, 1000, (batch, drafts)).astype(np.float32) / np.float32(1000),
            rng.integers(0, 1000, batch).astype(np.float32) / np.float32(1000),
        )
        if all(_is_clear(arguments, b, row) for b in range(batch)):
            yield arguments


def _hundredths(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    *lead, vocab = shape
    concentration = rng.choice([0.3, 1.0, 3.0])
    rows = rng.dirichlet(np.full(vocab, concentration), lead)
    return np.array([rng.multinomial(100, p) for p in rows.reshape(-1, vocab)]).reshape(shape)


def _near(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows that differ from others by a few hundredths that one entry gives another."""
    result = rows.copy()
    for row in result.reshape(-1, rows.shape[-1]):
        giver, taker = int(np.argmax(row)), int(rng.integers(row.shape[0]))
        moved = min(int(rng.integers(0, 20)), int(row[giver]))
        row[giver] -= moved
        row[taker] += moved
    return result


def _is_clear(arguments: Arguments, b: int, row: Callable[..., Any]) -> bool:
    """Whether uniforms moved by the margin change nothing."""
    ids, draft, target, accept, sample, _ = arguments.take(b)
    verdicts = [
        row(ids, draft, target, np.clip(accept + a, 0, 1), np.clip(sample + s, 0, 1), number=float)
        for a, s in ((-MARGIN, -MARGIN), (MARGIN, MARGIN), (-MARGIN, MARGIN), (MARGIN, -MARGIN))
    ]
    return all(verdict == verdicts[0] for verdict in verdicts)


def check_instances(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Small instances against fractions, and rows of real vocabularies against float64."""
    checks, failures = 0, []
    for number, (batch, drafts, vocab) in enumerate(SIZES):
        for arguments in _instances(number, rule.row):
            checks += batch
            try:
                failures += compare(candidate, rule, arguments)
            except Exception as error:
                failures.append(
                    explain(candidate, error, f"B = {batch}, G = {drafts}, V = {vocab}")
                )
                return Outcome(checks, failures)
        if failures:  # larger ones are harder to read
            return Outcome(checks, failures[:MOST_SHOWN])
    for vocab in LARGE:
        found = _check_large(candidate, rule, level, vocab)
        checks, failures = checks + found.checks, failures + found.failures
    return Outcome(checks, failures[:MOST_SHOWN])


@cache
def _instances(number: int, row: Callable[..., Any]) -> list[Arguments]:
    source = draw_instances(np.random.default_rng([2026, number]), *SIZES[number], row)
    return list(islice(source, PER_SIZE))


def compare(candidate: Candidate, rule: Rule, arguments: Arguments) -> list[Failure]:
    """What rows of one call are wrong; a wrong row is made as small as it stays wrong."""
    result = run(candidate, arguments)
    failures = []
    for b in range(len(arguments.draft_tokens)):
        if result.row(b) == expected(rule, arguments.row(b)):
            continue
        smallest, got = shrink(candidate, rule, arguments.row(b))
        if smallest is None:
            failures.append(_only_in_batch(candidate, rule, arguments, b, result.row(b)))
            continue
        failures.append(_wrong(candidate, rule, smallest, got))
    return failures


def expected(rule: Rule, arguments: Arguments) -> tuple[int, list[int]]:
    """What the rule gives for a batch of one row."""
    return rule.row(*arguments.take(0), number=Fraction)


def shrink(
    candidate: Candidate, rule: Rule, arguments: Arguments
) -> tuple[Arguments | None, tuple[int, list[int]]]:
    """The row alone, with as few draft tokens as it is wrong with; None if alone it is right."""
    all_drafts = arguments.draft_tokens.shape[1]
    for drafts in range(1, all_drafts + 1):
        short = arguments.cut(drafts)
        if drafts < all_drafts and not _is_clear(short, 0, rule.row):
            continue  # the uniform that draws now meets another row, and may be close
        got = run(candidate, short).row(0)
        if got != expected(rule, short):
            return short, got
    return None, (0, [])


def _wrong(candidate: Candidate, rule: Rule, arguments: Arguments, got: tuple) -> Failure:
    n, tokens = expected(rule, arguments)
    what = (
        f"keeps {got[0]} draft tokens where the rule keeps {n}"
        if got[0] != n
        else "draws another token than the rule"
    )
    return Failure(
        what,
        as_text(n, tokens),
        as_text(*got),
        snippet(candidate, arguments),
        _reason(rule, arguments),
        as_step(rule.name, arguments),
    )


def _reason(rule: Rule, arguments: Arguments) -> str:
    """The arithmetic of the token rule, written out."""
    if rule.name != "token":
        return ""
    ids, draft, target, accept, sample, _ = arguments.take(0)
    n, _ = expected(rule, arguments)
    assert draft is not None
    steps = []
    for i in range(min(n + 1, len(ids))):
        p, q = target[i][ids[i]], draft[i][ids[i]]
        sign, word = ("<", "kept") if i < n else (">=", "refused")
        steps.append(f"draft {i} is {word}: {accept[i]:g} {sign} {p:g} / {q:g}")
    _, weights = oracle.plan(ids, draft, target, accept)
    sums = np.cumsum(np.asarray(weights, np.float64))
    cumulative = ", ".join(f"{x / sums[-1]:.3f}" for x in sums)
    source = "max(target - draft, 0)" if n < len(ids) else "the bonus row"
    steps.append(f"from {source}, cumulative [{cumulative}], {sample:g} draws the token")
    return "; ".join(steps)


def _only_in_batch(
    candidate: Candidate, rule: Rule, arguments: Arguments, b: int, got: tuple
) -> Failure:
    return Failure(
        f"row {b} of this batch is wrong, though the same row alone is right",
        as_text(*expected(rule, arguments.row(b))),
        as_text(*got),
        snippet(candidate, arguments),
        "Rows must not know of each other: look for a sum, a maximum or an index over the batch.",
    )


# --- Real vocabularies


@cache
def large_instance(vocab: int, seed: int) -> Arguments:
    """Rows of the shape that language models give: a few likely tokens, and a long tail."""
    rng = np.random.default_rng([seed, vocab])
    logits = rng.standard_normal((4, 4, vocab)) * rng.choice([1.0, 3.0], (4, 1, 1))
    draft_logits = logits[:, :3] + 0.5 * rng.standard_normal((4, 3, vocab))
    target, draft = (_softmax(x) for x in (logits, draft_logits))
    ids = np.array([[rng.choice(vocab, p=_normal(q)) for q in rows] for rows in draft], np.int32)
    return Arguments(
        ids,
        draft,
        target,
        rng.random((4, 3), np.float32),
        rng.random(4, np.float32),
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def _normal(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    return wide / wide.sum()


def _check_large(candidate: Candidate, rule: Rule, level: Level, vocab: int) -> Outcome:
    failures, checks = [], 0
    for seed in range(3):
        arguments = large_instance(vocab, seed)
        try:
            result = run(candidate, arguments)
        except Exception as error:
            return Outcome(checks + 1, [*failures, explain(candidate, error, f"V = {vocab}")])
        for b, right in enumerate(_allowed(rule.row, vocab, seed, SLACK[level])):
            checks += 1
            wrong = _compare_large(right, result.row(b))
            if wrong:
                failures.append(Failure(f"V = {vocab}: {wrong[0]}", *wrong[1:]))
    return Outcome(checks, failures)


def _compare_large(
    right: dict[int, tuple[int, int]], got: tuple[int, list[int]]
) -> tuple[str, str, str] | None:
    """What is wrong with one row, allowing for the rounding of a float32 sum."""
    n, tokens = got
    if n not in right:
        some = " or ".join(map(str, right))
        return "keeps another number of tokens", f"num_accepted {some}", f"num_accepted {n}"
    low, high = right[n]
    if low <= tokens[n] <= high:
        return None
    if low == high:
        return "another token", f"{low}", f"{tokens[n]}"
    return (
        "draws a token whose cumulative probability is not where the uniform is",
        f"token {low} to {high}",
        f"token {tokens[n]}",
    )


def allowed(
    row: Callable[..., Any], arguments: Arguments, slack: float
) -> dict[int, tuple[int, int]]:
    """For each number that one row may keep, the tokens that may follow, as float32 sums round."""
    ids, draft, target, accept, sample, _ = arguments
    found: dict[int, list[int]] = {}
    for a, s in product((-slack, 0.0, slack), (-slack, slack)):
        uniforms = np.clip(accept + a, 0, 1), np.clip(sample + s, 0, 1)
        n, tokens = row(ids, draft, target, *uniforms, number=float)
        found.setdefault(n, []).append(tokens[n])
    return {n: (min(tokens), max(tokens)) for n, tokens in found.items()}


@cache
def _allowed(
    row: Callable[..., Any], vocab: int, seed: int, slack: float
) -> list[dict[int, tuple[int, int]]]:
    arguments = large_instance(vocab, seed)
    return [allowed(row, arguments.take(b), slack) for b in range(len(arguments.draft_tokens))]
