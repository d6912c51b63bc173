"""The form of a verifier with a key: what it returns, how it is traced, and what its key does."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.candidate import Candidate, as_numpy
from speculax.conformance.explain import explain
from speculax.conformance.keys.call import PARAMETERS, Step, run, snippet
from speculax.conformance.parts import check_writes, run_parts, unless
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.seeds import as_key
from speculax.conformance.verifier.call import Result
from speculax.conformance.verifier.form import check_verdict

SIZES = [(1, 1, 1), (1, 1, 2), (2, 0, 4)]  # (B, G, V)
ROWS = 64  # the chance that two batches of noise agree is nil


def check_form(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Keys, shapes, dtypes, padding; tracing, retracing and `vmap`; what the key decides."""
    del rule
    given = *random_step(4, 3, 5), as_key(candidate, 0)
    writes = check_writes(candidate, PARAMETERS, given, level)
    parts = [_check_result(candidate), _check_sizes(candidate), writes]
    notes = ["not under jax.jit: tracing and vmap were not checked"]
    if candidate.compiled:
        parts += [_check_retrace(candidate), _check_vmap(candidate)]
        notes = []
    return run_parts(candidate, [*parts, _check_keys(candidate)], notes)


def random_step(batch: int, drafts: int, vocab: int, seed: int = 0) -> Step:
    """Random laws, the target's near the draft's, and drafts from them."""
    rng = np.random.default_rng([seed, batch, drafts, vocab])
    draft = rng.dirichlet(np.ones(vocab), (batch, drafts))
    target = rng.dirichlet(np.ones(vocab), (batch, drafts + 1))
    target[:, :drafts] = 0.5 * (target[:, :drafts] + draft)
    ids = (draft.cumsum(axis=2) < rng.random((batch, drafts, 1))).sum(axis=2)
    ids = np.minimum(ids, vocab - 1).astype(np.int32)
    return Step(ids, draft.astype(np.float32), target.astype(np.float32))


def _check_result(candidate: Candidate) -> Iterator[Failure | None]:
    step = random_step(4, 3, 5)
    pasted = snippet(candidate, step, 0)
    how = "compiling it with every argument traced" if candidate.compiled else "calling it"
    try:
        result = run(candidate, step, 0)
    except Exception as error:
        yield explain(candidate, error, how, pasted)
        return
    yield None
    yield from check_verdict(result, step.draft_tokens, [pasted] * len(step.draft_tokens))


def _check_sizes(candidate: Candidate) -> Iterator[Failure | None]:
    for batch, drafts, vocab in SIZES:
        step = random_step(batch, drafts, vocab)
        try:
            result = run(candidate, step, 0)
        except Exception as error:
            yield explain(
                candidate,
                error,
                f"with B = {batch}, G = {drafts}, V = {vocab}",
                snippet(candidate, step, 0),
            )
            continue
        inside = (result.num_accepted >= 0) & (result.num_accepted <= drafts)
        yield unless(
            bool(inside.all()),
            f"num_accepted is outside [0, {drafts}]",
            "",
            str(result.num_accepted.tolist()),
        )


def _check_retrace(candidate: Candidate) -> Iterator[Failure | None]:
    run(candidate, random_step(4, 3, 5), 0)
    before = candidate.traces
    for seed in range(1, 4):
        run(candidate, random_step(4, 3, 5, seed), seed)
    yield unless(
        candidate.traces == before,
        "new values of the same shapes make jax.jit trace the function again",
        "one trace",
        f"{candidate.traces - before} more in 3 calls",
        "Each trace compiles for seconds; nothing may depend on values but through arrays.",
    )


def _check_vmap(candidate: Candidate) -> Iterator[Failure | None]:
    parts = [random_step(4, 3, 5, seed) for seed in range(3)]
    stacked = [jnp.asarray(np.stack(arrays)) for arrays in zip(*parts, strict=True)]
    keys = jnp.stack([as_key(candidate, seed) for seed in range(3)])
    try:
        result = jax.jit(jax.vmap(candidate.function))(*stacked, keys)
    except Exception as error:
        yield explain(candidate, error, "under jax.vmap, each batch with its key,")
        return
    for seed, part in enumerate(parts):
        one = [as_numpy(result[name])[seed] for name in Result._fields]
        alone = run(candidate, part, seed)
        yield unless(
            all(map(np.array_equal, one, alone)),
            "under jax.vmap it gives another verdict than without",
            f"{alone.num_accepted.tolist()}, {alone.tokens.tolist()}",
            ", ".join(str(array.tolist()) for array in one),
            "Negative axes (axis=-1), or indices built with jnp.arange(B), are the usual reasons.",
        )


def _verdicts(candidate: Candidate) -> list[np.ndarray]:
    """Of equal rows with much to choose: by a key, by the same and by another."""
    row = random_step(1, 3, 64, 1)
    step = Step(*(np.repeat(array, ROWS, axis=0) for array in row if array is not None))
    results = [run(candidate, step, seed) for seed in (5, 5, 6)]
    return [np.column_stack([result.num_accepted, result.tokens]) for result in results]


def key_facts(candidate: Candidate) -> np.ndarray:
    """What a key decides, as 0 or 1.

    Whether it gives the same again; whether another one gives the same; whether all rows are the
    same, neighbours are, and rows that accept as many.
    """
    first, again, other = _verdicts(candidate)
    facts = (
        (first == again).all(),
        (first == other).all(),
        (first == first[0]).all(),
        (first[::2] == first[1::2]).all(),
        len({*first[:, 0]}) == len({*map(tuple, first.tolist())}),
    )
    return np.array(facts, float)


def _check_keys(candidate: Candidate) -> Iterator[Failure | None]:
    first, again, other = (rows.tolist() for rows in _verdicts(candidate))
    if all(row == first[0] for row in first):
        yield Failure(
            "equal rows of a batch all get the same verdict",
            f"different ones among {ROWS} rows",
            str(first[0][1:]),
            why="Each row needs noise of its own: draw it with the axis of rows.",
        )
        return
    yield unless(
        first == again,
        "the same key gives another verdict the second time",
        str(first[0][1:]),
        str(next((b[1:] for a, b in zip(first, again, strict=True) if a != b), "")),
        "All noise must come from the key: text could not be made again.",
    )
    yield unless(
        first != other,
        "another key gives the same verdicts",
        f"other ones in some of {ROWS} rows",
        str(other[0][1:]),
        "Every step would decide with the same noise.",
    )
