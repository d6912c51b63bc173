"""The law that a sampler follows in each row, found out from outside.

A sampler of uniforms is a function of one number: where its token changes is found by bisection,
which gives its law exactly, in whatever order it lays out the tokens. Of one that takes a key, or
whose tokens change too often to be found, draws are counted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.sampler.call import Rows, run, takes_key

STEPS = 1 << 24  # uniforms are k / STEPS
PROBES = 256  # places on each row's axis that are looked at even if nothing differs
TRIED = 64  # random places at which what was found is tried
MOST_ROUNDS = 64
DRAWS = 2048  # of each row, by a key
BATCH = 1024  # rows a call: one compiled program
MOST_CALLS = 1_000_000  # numbers of keys for each seed


class Measured(NamedTuple):
    """What was found of R rows.

    Attributes:
        probs: float64 (R, V + 2); the last two are for the id -1, and for all else outside [0, V).
        draws: How many draws of each row were counted; 0 if its law is exact.
        uniforms: float32 (R, V + 2), one with which each comes out, if the law is exact.
    """

    probs: np.ndarray
    draws: int
    uniforms: np.ndarray | None = None


def measure(candidate: Candidate, rows: Rows, draws: int = DRAWS, seed: int = 0) -> Measured:
    """The law of each row.

    Args:
        candidate: The sampler.
        rows: Rows of one vocabulary. They share batches, in random order.
        draws: How often each row is drawn from if draws are counted.
        seed: What the noise and the order of rows depend on.
    """
    size = rows.logits.shape[1]
    rng = np.random.default_rng([seed, size])
    if not takes_key(candidate):
        exact = _find_law(_by_uniforms(candidate, rows, rng), len(rows.logits), size, rng)
        if exact is not None:
            return exact
    which = np.repeat(np.arange(len(rows.logits)), draws)
    if takes_key(candidate):
        first = MOST_CALLS * seed

        def call(number: int, some: np.ndarray) -> np.ndarray:
            return run(candidate, rows.take(which[some]), first + number)

        ids = _in_batches(call, len(which), rng)
    else:
        ids = _by_uniforms(candidate, rows, rng)(which, rng.integers(0, STEPS, len(which)))
    counts = np.zeros((len(rows.logits), size + 2))
    np.add.at(counts, (which, _columns(ids, size)), 1)
    return Measured(counts / draws, draws)


def _columns(ids: np.ndarray, size: int) -> np.ndarray:
    outside = np.where(ids == -1, size, size + 1)
    return np.where((ids >= 0) & (ids < size), ids, outside)


def _in_batches(
    call: Callable[[int, np.ndarray], np.ndarray], count: int, rng: np.random.Generator
) -> np.ndarray:
    """Ids of so many entries, in batches of one size; `call(number, entries)` is one of them."""
    order = rng.permutation(count)
    order = np.append(order, order[rng.integers(0, count, -count % BATCH)])
    ids = np.empty(count, np.int64)
    for number, start in enumerate(range(0, len(order), BATCH)):
        entries = order[start : start + BATCH]
        ids[entries] = call(number, entries)
    return ids


Evaluate = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _by_uniforms(candidate: Candidate, rows: Rows, rng: np.random.Generator) -> Evaluate:
    """`evaluate(rows, steps) -> ids`."""

    def evaluate(which: np.ndarray, steps: np.ndarray) -> np.ndarray:
        uniforms = (steps / STEPS).astype(np.float32)

        def call(number: int, some: np.ndarray) -> np.ndarray:
            del number
            return run(candidate, rows.take(which[some]), uniforms[some])

        return _in_batches(call, len(which), rng)

    return evaluate


def _find_law(
    evaluate: Evaluate, num_rows: int, size: int, rng: np.random.Generator
) -> Measured | None:
    """The masses, exactly, by where on the axis the ids change; None if that cannot be found."""
    grid = np.unique(np.append(np.arange(0, STEPS, STEPS // PROBES), STEPS - 1))
    row = np.repeat(np.arange(num_rows), len(grid))
    step = np.tile(grid, num_rows)
    ids = evaluate(row, step)
    if (evaluate(row, step) != ids).any():  # among other rows
        return None
    found = [(row[:: len(grid)], step[:: len(grid)], ids[:: len(grid)])]

    changed = (row[1:] == row[:-1]) & (ids[1:] != ids[:-1])
    row, low, end = row[:-1][changed], step[:-1][changed], step[1:][changed]
    at_low, at_end = ids[:-1][changed], ids[1:][changed]
    for _ in range(MOST_ROUNDS):
        if not len(row):
            break
        low, high, at_high = _pin(evaluate, row, low, end, at_low, at_end)
        found.append((row, high, at_high))
        more = at_high != at_end  # between this change and the end there is another
        row, low, end = row[more], high[more], end[more]
        at_low, at_end = at_high[more], at_end[more]
    else:
        return None

    row, step, ids = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((step, row))
    row, step, ids = row[order], step[order], ids[order]
    if not _holds(evaluate, row, step, ids, num_rows, rng):
        return None
    ends = np.append(np.where(row[1:] == row[:-1], step[1:], STEPS), STEPS)
    probs = np.zeros((num_rows, size + 2))
    uniforms = np.zeros((num_rows, size + 2), np.float32)
    np.add.at(probs, (row, _columns(ids, size)), (ends - step) / STEPS)
    uniforms[row, _columns(ids, size)] = step / STEPS
    return Measured(probs, 0, uniforms)


def _pin(
    evaluate: Evaluate,
    row: np.ndarray,
    low: np.ndarray,
    end: np.ndarray,
    at_low: np.ndarray,
    at_end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each interval a place where the id changes: the last step before, the next, its id."""
    low, high, at_high = low.copy(), end.copy(), at_end.copy()
    while (is_open := high - low > 1).any():
        middle = (low + high)[is_open] // 2
        ids = evaluate(row[is_open], middle)
        same = ids == at_low[is_open]
        low[is_open] = np.where(same, middle, low[is_open])
        high[is_open] = np.where(same, high[is_open], middle)
        at_high[is_open] = np.where(same, at_high[is_open], ids)
    return low, high, at_high


def _holds(
    evaluate: Evaluate,
    row: np.ndarray,
    step: np.ndarray,
    ids: np.ndarray,
    num_rows: int,
    rng: np.random.Generator,
) -> bool:
    """Whether random places give the ids that lie there."""
    tried = np.repeat(np.arange(num_rows), TRIED)
    places = rng.integers(0, STEPS, len(tried))
    at = np.searchsorted(row * STEPS + step, tried * STEPS + places, side="right") - 1
    return bool((evaluate(tried, places) == ids[at]).all())
