"""Steps with a key, counted: the joint law of G + 1 tokens, and how many drafts are accepted.

Drafts are sampled from laws that depend on their whole context, verified, and completed by plain
sampling from the target to G + 1 tokens: whatever a lossless rule accepts, these follow the
target's law exactly.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.keys.call import Step, run
from speculax.conformance.verifier import cells
from speculax.conformance.verifier.call import Result

DRAFTS, VOCAB = 3, 3
# Those in which even the mutants that hide best have another law.
LAWS = {"laws far apart": (0, "far"), "laws with zeros": (0, "zeros"), "more zeros": (1, "zeros")}
BATCH, CALLS = 4096, 8
MOST_CALLS = 1000  # numbers of keys for each law and seed


class Tables(NamedTuple):
    """Laws by the number of their context, for each of its lengths: float32 (V**i, V)."""

    draft: list[np.ndarray]
    target: list[np.ndarray]


@cache
def laws_of(name: str) -> cells.Laws:
    """The laws of an entry of `LAWS`."""
    seed, kind = LAWS[name]
    return cells.Laws(seed, kind, DRAFTS)


@cache
def tables_of(name: str) -> Tables:
    """The same as arrays."""
    laws = laws_of(name)

    def by_length(table: dict[tuple[int, ...], np.ndarray]) -> list[np.ndarray]:
        return [
            np.stack([table[word] for word in cells.paths_of(VOCAB, length)])
            for length in range(DRAFTS + 1)
        ]

    return Tables(by_length(laws.draft), by_length(laws.target))


@cache
def drafts_of(name: str) -> np.ndarray:
    """The drafts that have mass, int (drafts, G)."""
    laws = laws_of(name)
    paths = cells.paths_of(VOCAB, DRAFTS)
    return np.array([path for path in paths if laws.probability(laws.draft, (), path) > 0])


def draw(table: np.ndarray, context: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A token of each context's law."""
    cumulative = np.cumsum(table.astype(np.float64), axis=1)[context]
    uniforms = rng.random(len(context))[:, None] * cumulative[:, -1:]
    return np.minimum((cumulative <= uniforms).sum(axis=1), VOCAB - 1)


def lay_steps(name: str, ids: np.ndarray) -> Step:
    """The arguments for draft tokens (B, G)."""
    tables = tables_of(name)
    context, draft, target = np.zeros(len(ids), int), [], []
    for i in range(DRAFTS + 1):
        target.append(tables.target[i][context])
        if i < DRAFTS:
            draft.append(tables.draft[i][context])
            context = context * VOCAB + ids[:, i]
    return Step(ids.astype(np.int32), np.stack(draft, axis=1), np.stack(target, axis=1))


def sample_drafts(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draft tokens, int (count, G)."""
    ids, context = np.zeros((count, DRAFTS), int), np.zeros(count, int)
    for i in range(DRAFTS):
        ids[:, i] = draw(tables_of(name).draft[i], context, rng)
        context = context * VOCAB + ids[:, i]
    return ids


def complete(name: str, result: Result, rng: np.random.Generator) -> np.ndarray:
    """The number of the G + 1 tokens that each row ends with; -1 where the verdict is malformed."""
    n, tokens = result.num_accepted.astype(int), result.tokens.astype(int)
    place = np.arange(DRAFTS + 1)
    is_emitted = place <= n[:, None]
    good = (n >= 0) & (n <= DRAFTS) & ((tokens >= 0) & (tokens < VOCAB) | ~is_emitted).all(axis=1)
    number = np.zeros(len(n), int)
    for i in range(DRAFTS + 1):
        drawn = draw(tables_of(name).target[i], number, rng)
        number = number * VOCAB + np.where(is_emitted[:, i] & good, tokens[:, i], drawn)
    return np.where(good, number, -1)


class Counts(NamedTuple):
    """What came out of steps.

    Attributes:
        joint: int (V**(G + 1) + 1,), of all tokens together; the last counts malformed verdicts.
        accepted: int (G + 2,), of how many were accepted; the last counts nonsense.
        first: int (rows,), the first token of each row, -1 for none; neighbours stay neighbours.
    """

    joint: np.ndarray
    accepted: np.ndarray
    first: np.ndarray


def count_steps(candidate: Candidate, name: str, seed: int = 0, calls: int = CALLS) -> Counts:
    """Steps of sampled drafts, each call with a key of its own."""
    place = list(LAWS).index(name)
    rng = np.random.default_rng([seed, place])
    joint, accepted, first = np.zeros(VOCAB ** (DRAFTS + 1) + 1, int), np.zeros(DRAFTS + 2, int), []
    for call in range(calls):
        step = lay_steps(name, sample_drafts(name, BATCH, rng))
        result = run(candidate, step, (seed * len(LAWS) + place) * MOST_CALLS + call)
        number = complete(name, result, rng)
        n = result.num_accepted
        np.add.at(joint, number, 1)
        np.add.at(accepted, np.where((n >= 0) & (n <= DRAFTS), n, DRAFTS + 1), 1)
        first.append(np.where(number >= 0, result.tokens[:, 0], -1))
    return Counts(joint, accepted, np.concatenate(first))


class Exact(NamedTuple):
    """The laws of one step of a verifier, with nothing counted.

    Attributes:
        joint: float64 (V**(G + 1),).
        accepted: float64 (G + 1,).
        verdicts: float64 (drafts, (G + 1) * (V + 1)), for each of `drafts_of` the chance of each
            number accepted and token drawn; of token -1 last.
    """

    joint: np.ndarray
    accepted: np.ndarray
    verdicts: np.ndarray


def exact_laws(verifier: Any) -> dict[str, Exact]:
    """The laws of a verifier of uniforms, by bisection, for each of `LAWS`."""
    starts = [(laws_of(name), ()) for name in LAWS]
    steps = cells.cut_steps(verifier, starts, DRAFTS)
    found = {}
    for start, name in enumerate(LAWS):
        has_mass = steps.weights[start] > 0
        verdicts = np.zeros((VOCAB**DRAFTS, DRAFTS + 1, VOCAB + 1))
        for path, boxes in enumerate(steps.cells[start]):
            for cell in boxes:
                n = min(max(cell.num_accepted, 0), DRAFTS)
                verdicts[path, n, cell.tokens[n]] += cell.size
        accepted = np.einsum("p,pny->n", steps.weights[start], verdicts)
        joint = cells.law_of_step(steps, start, DRAFTS + 1).reshape(-1)
        found[name] = Exact(joint, accepted, verdicts[has_mass].reshape(has_mass.sum(), -1))
    return found


@cache
def target_law(name: str) -> np.ndarray:
    """The target's joint law of G + 1 tokens, float64 (V**(G + 1),)."""
    laws = laws_of(name)
    return laws.joint(laws.target, (), DRAFTS + 1).reshape(-1)
