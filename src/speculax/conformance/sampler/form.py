"""The form of a sampler: what it returns, how it is traced, and that rows are their own."""

from collections.abc import Iterator

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.parts import check_writes, run_parts, unless
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.sampler.call import (
    PARAMETERS,
    Rows,
    make_rows,
    run,
    snippet,
    takes_key,
    together,
)
from speculax.conformance.sampler.oracle import Order, Settings
from speculax.conformance.seeds import as_key

SIZES = [(1, 1), (3, 5)]  # (R, V)
ROWS, VOCAB = 8, 6
MIXED = [
    Settings(),
    Settings(temperature=0.7),
    Settings(temperature=0.0),
    Settings(top_k=2),
    Settings(top_p=0.8),
    Settings(min_p=0.2),
    Settings(1.3, 4, 0.9, 0.05),
    Settings(),
]
NAN, INF = float("nan"), float("inf")
BROKEN = np.array([[NAN] * VOCAB, [INF] * VOCAB, [-INF] * VOCAB, [0.0] * VOCAB], np.float32)


def check_form(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Shape and dtype; tracing and retracing if it is compiled; rows, and keys, on their own."""
    del order
    rows = _rows(ROWS, VOCAB)
    noise = as_key(candidate, 0) if takes_key(candidate) else _noise(candidate, rows)
    writes = check_writes(candidate, PARAMETERS, (*rows, noise), level)
    parts = [_check_result(candidate), _check_sizes(candidate), writes]
    notes = ["not under jax.jit: tracing was not checked"]
    if candidate.compiled:
        parts.append(_check_retrace(candidate))
        notes = []
    own = _check_keys(candidate) if takes_key(candidate) else _check_rows(candidate, level)
    return run_parts(candidate, [*parts, own], notes)


def _rows(count: int, vocab: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng([seed, count, vocab])
    logits = np.round(2 * rng.standard_normal((count, vocab)), 2)
    return make_rows(logits, [MIXED[(r + seed) % len(MIXED)] for r in range(count)])


def _noise(candidate: Candidate, rows: Rows, seed: int = 0) -> np.ndarray | int:
    if takes_key(candidate):
        return seed
    return np.random.default_rng(seed).random(len(rows.logits), np.float32)


def _check_result(candidate: Candidate) -> Iterator[Failure | None]:
    rows = _rows(ROWS, VOCAB)
    noise = _noise(candidate, rows)
    pasted = snippet(candidate, rows, noise)
    how = "compiling it with every argument traced" if candidate.compiled else "calling it"
    try:
        ids = run(candidate, rows, noise)
    except Exception as error:
        yield explain(candidate, error, how, pasted)
        return
    yield None
    yield unless(
        ids.dtype == np.int32,
        "the ids have the wrong dtype",
        "int32",
        str(ids.dtype),
        "Callers index with them and compare them bit for bit; cast with astype(jnp.int32).",
    )
    inside = (ids >= 0) & (ids < VOCAB)
    yield unless(
        bool(inside.all()),
        "an id is outside the vocabulary",
        f"0 to {VOCAB - 1}",
        str(ids.tolist()),
        snippet=pasted,
    )


def _check_sizes(candidate: Candidate) -> Iterator[Failure | None]:
    for count, vocab in SIZES:
        rows = _rows(count, vocab)
        noise = _noise(candidate, rows)
        try:
            ids = run(candidate, rows, noise)
        except Exception as error:
            yield explain(
                candidate, error, f"with R = {count}, V = {vocab}", snippet(candidate, rows, noise)
            )
            continue
        yield unless(
            bool(((ids >= 0) & (ids < vocab)).all()),
            f"with R = {count}, V = {vocab} an id is outside the vocabulary",
            f"0 to {vocab - 1}",
            str(ids.tolist()),
            snippet=snippet(candidate, rows, noise),
        )


def _check_retrace(candidate: Candidate) -> Iterator[Failure | None]:
    rows = _rows(ROWS, VOCAB)
    run(candidate, rows, _noise(candidate, rows))
    before = candidate.traces
    for seed in range(1, 4):
        rows = _rows(ROWS, VOCAB, seed)
        run(candidate, rows, _noise(candidate, rows, seed))
    yield unless(
        candidate.traces == before,
        "new values of the same shapes make jax.jit trace the function again",
        "one trace",
        f"{candidate.traces - before} more in 3 calls",
        "Each trace compiles for seconds; settings of requests may differ in every call.",
    )


def _check_rows(candidate: Candidate, level: Level) -> Iterator[Failure | None]:
    """A row gives the same token wherever it stands, whatever the others are."""
    rows = _rows(ROWS, VOCAB)
    rng = np.random.default_rng(1)
    for _ in range(4):
        uniforms = rng.random(ROWS, np.float32)
        ids = run(candidate, rows, uniforms)
        moved = rng.permutation(ROWS)
        there = run(candidate, rows.take(moved), uniforms[moved])
        yield unless(
            np.array_equal(there, ids[moved]),
            "rows in another order give other tokens",
            str(ids[moved].tolist()),
            str(there.tolist()),
            _OWN,
            snippet(candidate, rows.take(moved), uniforms[moved]),
        )
        others = _rows(ROWS, VOCAB, seed=2)
        if level == "strict":
            broken = make_rows(BROKEN, [Settings(), Settings(0.5), Settings(), Settings(-1.0)])
            others = together([others.take(slice(4)), broken])
        which = np.arange(ROWS) % 2 == 0
        mixed = Rows(
            *(
                np.where(which[:, None] if own.ndim == 2 else which, own, other)
                for own, other in zip(rows, others, strict=True)
            )
        )
        beside = run(candidate, mixed, uniforms)
        yield unless(
            np.array_equal(beside[which], ids[which]),
            "a row gives another token beside other rows",
            str(ids[which].tolist()),
            str(beside[which].tolist()),
            _OWN,
            snippet(candidate, mixed, uniforms),
        )


def _flat_draws(candidate: Candidate) -> list[np.ndarray]:
    """Tokens from flat laws, by some keys, by the same and by others."""
    rows = make_rows(np.zeros((ROWS, VOCAB)), [Settings()] * ROWS)
    keys = [(1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8)]
    return [np.concatenate([run(candidate, rows, key) for key in some]) for some in keys]


def key_facts(candidate: Candidate) -> np.ndarray:
    """Whether a key gives the same again, another one the same, and all rows the same: 0 or 1."""
    first, again, other = _flat_draws(candidate)
    is_one = (first.reshape(-1, ROWS) == first[::ROWS, None]).all()
    return np.array([(first == again).all(), (first == other).all(), is_one], float)


_OWN = "Rows must not know of each other: look for a sum, a maximum or an index over the batch."


def _check_keys(candidate: Candidate) -> Iterator[Failure | None]:
    """The key decides, and gives each row noise of its own."""
    first, again, other = _flat_draws(candidate)
    yield unless(
        np.array_equal(first, again),
        "the same key gives other tokens the second time",
        str(first[:8].tolist()),
        str(again[:8].tolist()),
        "All noise must come from the key: text could not be made again.",
    )
    yield unless(
        not np.array_equal(first, other),
        "another key gives the same tokens",
        "other tokens",
        str(other[:8].tolist()),
        "Every step would draw with the same noise.",
    )
    yield unless(
        bool((first.reshape(-1, ROWS) != first[::ROWS, None]).any()),
        "all rows of a batch draw the same token from a flat law",
        "about as many tokens as rows",
        str(first[:8].tolist()),
        "Each row needs noise of its own: draw it with shape (R,).",
    )
