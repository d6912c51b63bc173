"""The law of one step of any verifier, exactly, whatever numbers its thresholds are.

A verifier is a function of its uniforms that is constant on cells. The cells of each draft path are
found by bisection on the lines of the grid of 24 bits that uniforms lie on; their sizes, and the
probabilities of the paths, are the law. What is cut is the float32 code itself.
"""

# pyright: reportMissingParameterType=false

from bisect import insort
from collections import defaultdict
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from speculax.conformance.candidate import WrongFormError

STEPS = 1 << 24  # uniforms are k / STEPS
PROBES = 16  # places on a line that are looked at even if nothing differs
MOST_CUTS = 100  # of a uniform; right functions have a dozen
NO_FUNCTION = "gives other verdicts now and then: is it a function of its arguments only?"
CHUNK = 512  # rows a call: one compiled program
DIGIT = 6  # bits for each number of a verdict


class Cell(NamedTuple):
    """A box of uniforms, in steps, and the verdict that all of them give."""

    low: tuple  # of the accept uniforms, then of the sample uniform
    high: tuple
    num_accepted: int
    tokens: tuple

    @property
    def size(self):
        """The probability that the uniforms lie in it."""
        return float(np.prod([(b - a) / STEPS for a, b in zip(self.low, self.high, strict=True)]))

    @property
    def emitted(self):
        """The tokens that come out."""
        return self.tokens[: self.num_accepted + 1]


# --- Cells


def evaluator(verifier, ids, draft, target, lengths=None):
    """`evaluate(paths (N,), points (N, G+1) in steps) -> verdicts (N,)`, each packed in an int."""
    arrays = [ids, draft, target, lengths]

    def call(paths, points):
        ids, draft, target, lengths = (None if a is None else a[paths] for a in arrays)
        uniforms = (points / STEPS).astype(np.float32)
        extra = {} if lengths is None else {"draft_lengths": lengths}
        out = verifier(ids, draft, target, uniforms[:, :-1], uniforms[:, -1], **extra)
        verdict = np.column_stack([np.asarray(out["num_accepted"]), np.asarray(out["tokens"]) + 1])
        if verdict.min() < 0 or verdict.max() >= 1 << DIGIT:
            raise WrongFormError("returned num_accepted or a token outside the vocabulary")
        return (verdict.astype(np.int64) << DIGIT * np.arange(verdict.shape[1])).sum(axis=1)

    def evaluate(paths, points):
        count = len(paths)
        padding = -count % CHUNK
        paths, points = np.pad(paths, (0, padding)), np.pad(points, ((0, padding), (0, 0)))
        pieces = range(0, count + padding, CHUNK)
        return np.concatenate([call(paths[i : i + CHUNK], points[i : i + CHUNK]) for i in pieces])[
            :count
        ]

    return evaluate


def find_cells(evaluate, num_paths, size):
    """The cells of each path: lists of `Cell`. `size` is the number of uniforms, G + 1.

    Along each line from the lower corner of a cell the verdict may change anywhere; it is looked at
    on a coarse grid, and changes are pinned down. Each change cuts all cells of the path, which
    gives new lines, until nothing new is found.
    """
    cuts = [[[0, STEPS] for _ in range(size)] for _ in range(num_paths)]
    seen, found = set(), True
    while found:
        found = False
        for axis in range(size):
            lines = []
            for path, edges in enumerate(cuts):
                corners = [[0] if i == axis else edges[i][:-1] for i in range(size)]
                lines += [(path, corner) for corner in product(*corners)]
            lines = [line for line in lines if (axis, line) not in seen]
            seen.update((axis, line) for line in lines)
            for path, step in _changes(evaluate, lines, axis, cuts) if lines else ():
                if step not in cuts[path][axis]:
                    insort(cuts[path][axis], step)
                    found = True
                if len(cuts[path][axis]) > MOST_CUTS:
                    raise WrongFormError(NO_FUNCTION)
    return _read_cells(evaluate, cuts)


def _changes(evaluate, lines, axis, cuts):
    """Where the verdict changes along lines: a set of (path, step)."""
    paths = np.array([path for path, _ in lines])
    corners = np.array([corner for _, corner in lines])

    def evaluate_at(line, step):
        points = corners[line]
        points[:, axis] = step
        return evaluate(paths[line], points)

    grid = np.linspace(0, STEPS - 1, PROBES + 1).astype(np.int64)
    known = [np.array(edges[axis][1:-1], np.int64) for edges in cuts]
    probes = [np.unique(np.concatenate([grid, k - 1, k])) for k in known]
    line = np.repeat(np.arange(len(lines)), [len(probes[path]) for path in paths])
    step = np.concatenate([probes[path] for path in paths])
    verdict = evaluate_at(line, step)

    changed = (line[1:] == line[:-1]) & (verdict[1:] != verdict[:-1])
    line, low, end = line[:-1][changed], step[:-1][changed], step[1:][changed]
    at_low, at_end = verdict[:-1][changed], verdict[1:][changed]
    result, rounds = set(), 0
    while len(line):
        rounds += 1
        if rounds > MOST_CUTS:
            raise WrongFormError(NO_FUNCTION)
        high, at_high = end.copy(), at_end.copy()
        while (is_open := high - low > 1).any():
            middle = (low + high)[is_open] // 2
            verdict = evaluate_at(line[is_open], middle)
            same = verdict == at_low[is_open]
            low[is_open] = np.where(same, middle, low[is_open])
            high[is_open] = np.where(same, high[is_open], middle)
            at_high[is_open] = np.where(same, at_high[is_open], verdict)
        result.update(zip(paths[line].tolist(), high.tolist(), strict=True))
        more = at_high != at_end  # between this change and the end there is another
        line, low, end = line[more], high[more], end[more]
        at_low, at_end = at_high[more], at_end[more]
    return result


def _read_cells(evaluate, cuts):
    boxes = [list(product(*(pairwise(e) for e in edges))) for edges in cuts]
    paths = np.repeat(np.arange(len(cuts)), [len(b) for b in boxes])
    lows = np.array([[a for a, _ in box] for path in boxes for box in path])
    verdicts = evaluate(paths, lows)[:, None] >> DIGIT * np.arange(lows.shape[1] + 1)
    verdicts = (verdicts & ((1 << DIGIT) - 1)) - np.append(0, np.ones(lows.shape[1], np.int64))
    result, rows = [], iter(verdicts.tolist())
    for path in boxes:
        result.append([])
        for box in path:
            (n, *tokens), (low, high) = next(rows), zip(*box, strict=True)
            result[-1].append(Cell(low, high, n, tuple(tokens)))
    return result


def contradictions(evaluate, cells, rng, count=50):
    """How many random points of each path give another verdict than their cell."""
    size = len(cells[0][0].low)
    paths = np.repeat(np.arange(len(cells)), count)
    points = rng.integers(0, STEPS, (len(paths), size))
    wrong = 0
    for path, point, verdict in zip(
        paths.tolist(), points.tolist(), evaluate(paths, points).tolist(), strict=True
    ):
        (cell,) = (
            c
            for c in cells[path]
            if all(a <= x < b for a, x, b in zip(c.low, point, c.high, strict=True))
        )
        digits = [cell.num_accepted, *(token + 1 for token in cell.tokens)]
        wrong += verdict != sum(digit << DIGIT * i for i, digit in enumerate(digits))
    return wrong


# --- Laws


class Laws:
    """A target and a draft law for the last `order` tokens of a prefix: float32 rows.

    `kind` says how they lie to each other. Their probabilities are float64, the rows normalised.
    """

    def __init__(self, seed, kind, order, vocab=3):
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        self.kind, self.order, self.vocab = kind, order, vocab
        self.target, self.draft = {}, {}
        for length in range(order + 1):
            for word in product(range(vocab), repeat=length):
                p, q = rng.dirichlet(np.ones(vocab), 2)
                if kind == "near":
                    q = 0.8 * p + 0.2 * q
                elif kind == "zeros":
                    p, q = (_with_zeros(row, rng) for row in (p, q))
                elif kind == "equal" and rng.random() < 0.5:
                    q = p
                elif kind == "point masses":
                    q = np.eye(vocab)[rng.integers(vocab)]
                self.target[word] = p.astype(np.float32)
                self.draft[word] = q.astype(np.float32)

    def word(self, prefix):
        """The part of a prefix that the laws depend on."""
        return prefix[max(len(prefix) - self.order, 0) :]

    def rows(self, table, prefix, tokens):
        """The rows met on the way along `tokens`, (len(tokens) + 1, V)."""
        return np.stack([table[self.word(prefix + tokens[:i])] for i in range(len(tokens) + 1)])

    def probability(self, table, prefix, tokens):
        """That of tokens after a prefix."""
        rows = self.rows(table, prefix, tokens).astype(np.float64)
        rows /= rows.sum(axis=1, keepdims=True)
        return float(np.prod([row[x] for row, x in zip(rows, tokens, strict=False)]))

    def joint(self, table, prefix, count):
        """The joint law of the next `count` tokens, (V,) * count."""
        if count == 0:
            return np.array(1.0)
        row = table[self.word(prefix)].astype(np.float64)
        rest = [self.joint(table, (*prefix, x), count - 1) for x in range(self.vocab)]
        return np.stack([p * law for p, law in zip(row / row.sum(), rest, strict=True)])


KINDS = ["near", "far", "zeros", "equal", "point masses"]


def _with_zeros(row, rng):
    """The row without one of its entries, most times."""
    row = row * (np.arange(len(row)) != rng.integers(0, len(row) + 1))
    return row / row.sum()


def paths_of(vocab, drafts):
    """All draft sequences."""
    return list(product(range(vocab), repeat=drafts))


def arguments(starts, drafts):
    """Draft tokens and laws of all paths after each (laws, prefix), one path a row."""
    paths = [(laws, prefix, x) for laws, prefix in starts for x in paths_of(laws.vocab, drafts)]
    ids = np.array([x for *_, x in paths], np.int32)
    draft = np.stack([laws.rows(laws.draft, prefix, x)[:-1] for laws, prefix, x in paths])
    target = np.stack([laws.rows(laws.target, prefix, x) for laws, prefix, x in paths])
    return ids, draft, target


class Steps(NamedTuple):
    """One step after each start: the cells of each path, and the path's probability."""

    starts: list
    weights: np.ndarray  # (starts, paths)
    cells: list  # [start][path] -> list of Cell

    def outcomes(self, start):
        """(cell, probability of its path) after a start."""
        for weight, cells in zip(self.weights[start], self.cells[start], strict=True):
            if weight:
                yield from ((cell, weight) for cell in cells)


def cut_steps(verifier, starts, drafts, lengths=None, dense=True, poison=False, weights=None):
    """`Steps` of a verifier. `lengths` gives a draft its length; what lies beyond can be poisoned.

    `weights` (starts, paths) are the probabilities of the paths, those of the draft's laws if None.
    """
    ids, draft, target = arguments(starts, drafts)
    paths = paths_of(starts[0][0].vocab, drafts)
    if weights is None:
        weights = np.array(
            [[laws.probability(laws.draft, prefix, x) for x in paths] for laws, prefix in starts]
        )
    if lengths is not None:
        lengths = np.array([lengths(x) for x in paths] * len(starts), np.int32)
    if poison:
        assert lengths is not None
        beyond = np.arange(drafts + 1) > lengths[:, None]
        ids = np.where(beyond[:, 1:], -7, ids)
        draft = np.where(beyond[:, 1:, None], np.float32(np.nan), draft)
        target = np.where(beyond[..., None], np.float32(np.nan), target)
    evaluate = evaluator(verifier, ids, draft if dense else None, target, lengths)
    cells = find_cells(evaluate, len(ids), drafts + 1)
    if contradictions(evaluate, cells, np.random.default_rng(0), 5):
        raise WrongFormError(NO_FUNCTION)
    per_start = [cells[i : i + len(paths)] for i in range(0, len(cells), len(paths))]
    return Steps(starts, weights, per_start)


def is_well_formed(cell, path, vocab):
    """N accepted draft tokens, one token of the vocabulary, then -1."""
    n, tokens = cell.num_accepted, cell.tokens
    return (
        0 <= n <= len(path)
        and tokens[:n] == tuple(path[:n])
        and 0 <= tokens[n] < vocab
        and set(tokens[n + 1 :]) <= {-1}
    )


def law_of_step(steps, start, count):
    """The law of the next `count` tokens if plain sampling completes the step, (V,) * count."""
    laws, prefix = steps.starts[start]
    paths = paths_of(laws.vocab, len(steps.cells[start][0][0].low) - 1)
    texts = defaultdict(float)
    for weight, path, cells in zip(steps.weights[start], paths, steps.cells[start], strict=True):
        for cell in cells:
            if weight and is_well_formed(cell, path, laws.vocab):  # else its mass is missed
                texts[cell.emitted] += weight * cell.size
    return complete(laws, prefix, texts, count)


def complete(laws, prefix, texts, count):
    """The law of `count` tokens where texts {tokens: probability} go on by plain sampling."""
    law = np.zeros((laws.vocab,) * count)
    for text, p in texts.items():
        text = text[:count]
        law[text] += p * laws.joint(laws.target, prefix + text, count - len(text))
    return law


def law_of_steps(kernels, num_steps, count, is_keyed=False, one_stream=False):
    """The law of `count` tokens of several steps, and plain sampling after them, (V,) * count.

    Args:
        kernels: `Steps` from all words of the laws, in the order of `words`.
        num_steps: How many steps.
        count: How many tokens.
        is_keyed: Whether accept uniforms are keyed by absolute position, so that one that a step
            has looked at, and did not come to, serves the next step too. Else all are fresh.
        one_stream: Whether a sample uniform is the accept uniform of its position too.
    """
    laws, start = kernels.starts[0]
    assert start == ()
    number = {word: i for i, (_, word) in enumerate(kernels.starts)}
    outcomes = [list(kernels.outcomes(i)) for i in range(len(kernels.starts))]
    size = len(outcomes[0][0][0].low)
    anywhere = ((0, STEPS),) * size
    # Of each text: the intervals that the uniforms of the next step are known to lie in.
    states, done = {((), anywhere): 1.0}, defaultdict(float)
    for _ in range(num_steps):
        after = defaultdict(float)
        for (text, known), p in states.items():
            for cell, q in outcomes[number[laws.word(text)]]:
                for a, b, (low, high) in zip(cell.low, cell.high, known, strict=True):
                    q *= max(min(b, high) - max(a, low), 0) / (high - low)
                longer = text + cell.emitted
                if q == 0:
                    continue
                if len(longer) >= count:
                    done[longer] += p * q
                    continue
                left = []
                if is_keyed:
                    looked_at = size if one_stream else size - 1
                    left = [
                        (max(a, low), min(b, high))
                        for a, b, (low, high) in zip(cell.low, cell.high, known, strict=True)
                    ][len(cell.emitted) : looked_at]
                after[longer, (*left, *anywhere[len(left) :])] += p * q
        states = after
    for (text, _), p in states.items():
        done[text] += p
    return complete(laws, (), done, count)


def words(laws):
    """All prefixes that rows of the laws differ for."""
    return [w for n in range(laws.order + 1) for w in product(range(laws.vocab), repeat=n)]


def total_variation(law, other):
    """Half the sum of absolute differences."""
    return float(np.abs(law - other).sum() / 2)
