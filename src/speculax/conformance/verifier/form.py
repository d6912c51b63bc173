"""The form of a verifier: what it returns, and that it lives with `jit` and `vmap`."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.candidate import Candidate, as_numpy
from speculax.conformance.explain import explain
from speculax.conformance.parts import check_writes, run_parts, unless
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.call import (
    PARAMETERS,
    Arguments,
    Result,
    as_text,
    read,
    run,
    snippet,
)
from speculax.conformance.verifier.instances import draw_instances
from speculax.conformance.verifier.rules import Rule

SIZES = [(1, 1, 1), (1, 1, 2), (3, 2, 5), (2, 0, 4)]  # (B, G, V)


def check_form(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Keys, shapes, dtypes and padding; tracing, retracing and `vmap` if it is compiled."""
    del rule
    writes = check_writes(candidate, PARAMETERS, _instance(2, 2, 4)[: len(PARAMETERS)], level)
    parts = [_check_result(candidate), _check_sizes(candidate), writes]
    if not candidate.compiled:
        notes = ["not under jax.jit: tracing and vmap were not checked"]
        return run_parts(candidate, parts, notes)
    return run_parts(candidate, [*parts, _check_retrace(candidate), _check_vmap(candidate)], [])


def _instance(batch: int, drafts: int, vocab: int, seed: int = 0) -> Arguments:
    return next(
        draw_instances(np.random.default_rng([seed, batch, drafts, vocab]), batch, drafts, vocab)
    )


def _check_result(candidate: Candidate) -> Iterator[Failure | None]:
    arguments = _instance(2, 2, 4)
    how = "compiling it with every argument traced" if candidate.compiled else "calling it"
    try:
        result = run(candidate, arguments)
    except Exception as error:
        yield explain(candidate, error, how, snippet(candidate, arguments))
        return
    yield None
    shown = [snippet(candidate, arguments.row(b)) for b in range(2)]
    yield from check_verdict(result, arguments.draft_tokens, shown)


def check_verdict(
    result: Result, draft_tokens: np.ndarray, snippets: list[str]
) -> Iterator[Failure | None]:
    """Dtypes, what a row begins with, and its padding; a snippet for each row."""
    yield from check_dtypes(result)
    for b, (ids, shown) in enumerate(zip(draft_tokens.tolist(), snippets, strict=True)):
        n, tokens = result.row(b)
        yield unless(
            0 <= n <= len(ids) and tokens[:n] == ids[:n],
            "tokens do not begin with the num_accepted draft tokens that were kept",
            f"{ids[: max(n, 0)]} first",
            f"num_accepted {n}, tokens {tokens}",
            snippet=shown,
        )
        yield unless(
            all(x == -1 for x in tokens[n + 1 :]),
            "what comes after the token that was drawn is not -1",
            f"{tokens[: n + 1] + [-1] * (len(ids) - n)}",
            f"{tokens}",
            "Whoever reads the row stops at the first -1.",
            shown,
        )


def check_dtypes(result: Result) -> Iterator[Failure | None]:
    """That both are int32."""
    for name, array in result._asdict().items():
        yield unless(
            array.dtype == np.int32,
            f"{name} has the wrong dtype",
            "int32",
            str(array.dtype),
            "Callers index with it and compare it bit for bit; cast with astype(jnp.int32).",
        )


def _check_sizes(candidate: Candidate) -> Iterator[Failure | None]:
    for batch, drafts, vocab in SIZES:
        arguments = _instance(batch, drafts, vocab)
        try:
            result = run(candidate, arguments)
        except Exception as error:
            yield explain(
                candidate,
                error,
                f"with B = {batch}, G = {drafts}, V = {vocab}",
                snippet(candidate, arguments),
            )
            continue
        wrong = [b for b in range(batch) if not 0 <= result.num_accepted[b] <= drafts]
        yield unless(
            not wrong,
            f"num_accepted is outside [0, {drafts}]",
            "",
            str(result.num_accepted.tolist()),
        )


def _check_retrace(candidate: Candidate) -> Iterator[Failure | None]:
    run(candidate, _instance(2, 2, 6))
    before = candidate.traces
    for seed in range(1, 4):
        run(candidate, _instance(2, 2, 6, seed))
    yield unless(
        candidate.traces == before,
        "new values of the same shapes make jax.jit trace the function again",
        "one trace",
        f"{candidate.traces - before} more in 3 calls",
        "Each trace compiles for seconds; nothing may depend on values but through arrays.",
    )


def _check_vmap(candidate: Candidate) -> Iterator[Failure | None]:
    parts = [_instance(2, 2, 6, seed) for seed in range(3)]
    columns = zip(*(part[: len(PARAMETERS)] for part in parts), strict=True)
    stacked = [jnp.asarray(np.stack(column)) for column in columns]
    try:
        result = jax.jit(jax.vmap(candidate.function))(*stacked)
    except Exception as error:
        yield explain(candidate, error, "under jax.vmap")
        return
    for i, part in enumerate(parts):
        one = read({key: as_numpy(value)[i] for key, value in result.items()}, part)
        alone = run(candidate, part)
        yield unless(
            all(map(np.array_equal, one, alone)),
            "under jax.vmap it gives another verdict than without",
            "; ".join(as_text(*alone.row(b)) for b in range(2)),
            "; ".join(as_text(*one.row(b)) for b in range(2)),
            "Negative axes (axis=-1), or indices built with jnp.arange(B), are the usual reasons.",
        )
