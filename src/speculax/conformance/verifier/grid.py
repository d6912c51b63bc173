"""The law of the emitted tokens, counted exactly.

Target and draft laws depend on the prefix. Every draft sequence is enumerated with its probability
and every uniform on the midpoints of a grid of sixteenths. The laws are chosen so that all
thresholds of a correct rule (acceptance ratios, cumulative residuals, cumulative rows) lie on the
lines of that grid; then the counts are the law itself, and they are compared as fractions, without
tolerance. That holds for the token, greedy and sampled rules; the thresholds of the block rule lie
elsewhere, and `cells` finds them.
"""

# pyright: reportMissingParameterType=false

import random
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np

GRID, VOCAB, DRAFTS = 16, 3, 2
PREFIXES = [prefix for length in range(3) for prefix in product(range(VOCAB), repeat=length)]


# --- Laws whose thresholds lie on the grid


def on_grid(target, draft):
    """Whether a pair of rows, in sixteenths, has all its thresholds on the grid."""
    residual = [max(p - q, 0) for p, q in zip(target, draft, strict=True)]
    ratios = all(GRID * p % q == 0 for p, q in zip(target, draft, strict=True) if p < q)
    return ratios and all(GRID * r % max(sum(residual), 1) == 0 for r in residual)


@cache
def pairs(deterministic):
    """(target, draft) rows on the grid; the draft a point mass, or anything but."""
    rows = [r for r in product(range(GRID + 1), repeat=VOCAB) if sum(r) == GRID]
    good = [(p, q) for p in rows for q in rows if p != q and on_grid(p, q)]
    if deterministic:  # may be accepted, may be refused, and two tokens to choose a correction from
        return [(p, q) for p, q in good if max(q) == GRID and 0 not in p]
    # Two tokens to choose a correction from, or tokens that one law or both mask.
    return [
        (p, q)
        for p, q in good
        if max(q) < GRID
        and (sum(a > b for a, b in zip(p, q, strict=True)) == 2 or (0 in p and 0 in q))
    ]


class Laws:
    """A draft and a target law, in sixteenths, for the last two tokens of a prefix."""

    def __init__(self, seed, deterministic=False):
        chosen = random.Random(seed).sample(pairs(deterministic), len(PREFIXES))
        self.target = {w: p for w, (p, _) in zip(PREFIXES, chosen, strict=True)}
        self.draft = {w: q for w, (_, q) in zip(PREFIXES, chosen, strict=True)}

    def rows(self, table, prefix, tokens):
        """The rows met on the way along `tokens`, (len(tokens) + 1, V)."""
        words = [(prefix + tokens[:i])[-2:] for i in range(len(tokens) + 1)]
        return np.array([table[w] for w in words], np.float32) / GRID

    def probability(self, table, prefix, tokens):
        """That of tokens after a prefix, a Fraction."""
        result = Fraction(1)
        for i, token in enumerate(tokens):
            result *= Fraction(table[(prefix + tokens[:i])[-2:]][token], GRID)
        return result


# --- One step, enumerated

SEQUENCES = list(product(range(VOCAB), repeat=DRAFTS))
MIDPOINTS = (np.arange(GRID, dtype=np.float32) + 0.5) / GRID
UNIFORMS = np.stack(np.meshgrid(*[MIDPOINTS] * (DRAFTS + 1), indexing="ij"), -1)
UNIFORMS = UNIFORMS.reshape(-1, DRAFTS + 1)


def step_law(verifier, laws, prefix=(), dense=True, lengths=None, poison=False):
    """The law of one step after `prefix`: {(n, emitted tokens): probability}, in Fractions.

    `lengths` gives a draft sequence its length; what lies beyond stays as it is, or is poisoned.
    """
    ids = np.array(SEQUENCES, np.int32)
    draft = np.stack([laws.rows(laws.draft, prefix, x)[:-1] for x in SEQUENCES])
    target = np.stack([laws.rows(laws.target, prefix, x) for x in SEQUENCES])
    weights = [laws.probability(laws.draft, prefix, x) for x in SEQUENCES]
    extra = {}
    if lengths is not None:
        length = np.array([lengths(x) for x in SEQUENCES], np.int32)
        if poison:
            beyond = np.arange(DRAFTS + 1) > length[:, None]
            ids = np.where(beyond[:, 1:], -7, ids)
            draft = np.where(beyond[:, 1:, None], np.float32(np.nan), draft)
            target = np.where(beyond[..., None], np.float32(np.nan), target)
        extra["draft_lengths"] = np.repeat(length, len(UNIFORMS))
    repeated = [np.repeat(a, len(UNIFORMS), axis=0) for a in (ids, draft, target)]
    uniforms = np.tile(UNIFORMS, (len(SEQUENCES), 1))
    out = verifier(
        repeated[0],
        repeated[1] if dense else None,
        repeated[2],
        uniforms[:, :-1],
        uniforms[:, -1],
        **extra,
    )
    n, tokens = np.asarray(out["num_accepted"]), np.asarray(out["tokens"])
    result = defaultdict(Fraction)
    for s, weight in enumerate(weights):
        rows = slice(s * len(UNIFORMS), (s + 1) * len(UNIFORMS))
        for (accepted, emitted), count in _counted(n[rows], tokens[rows]).items():
            key = accepted, emitted
            if weight and not well_formed(accepted, emitted, ids[s].tolist()):
                key = "malformed", key
            result[key] += weight * Fraction(count, len(UNIFORMS))
    return {key: p for key, p in result.items() if p}


def _counted(n, tokens):
    """How often each (n, tokens) occurs; neighbours are mostly equal."""
    rows = np.column_stack([n, tokens])
    is_new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
    starts = np.flatnonzero(is_new)
    counts = Counter()
    for row, length in zip(
        rows[starts].tolist(), np.diff(starts, append=len(rows)).tolist(), strict=True
    ):
        counts[row[0], tuple(row[1:])] += length
    return counts


def well_formed(n, tokens, ids):
    """N accepted draft tokens, one token of the vocabulary, then -1."""
    return (
        0 <= n <= len(ids)
        and list(tokens[:n]) == ids[:n]
        and 0 <= tokens[n] < VOCAB
        and set(tokens[n + 1 :]) <= {-1}
    )


def law_of_tokens(step, laws, count):
    """The law of the next `count` tokens if plain sampling completes the step."""
    law = defaultdict(Fraction)
    for (n, tokens), p in step.items():
        if n == "malformed":
            law["malformed", tokens] += p
            continue
        emitted = tokens[: n + 1]
        for rest in product(range(VOCAB), repeat=count - len(emitted)):
            law[emitted + rest] += p * laws.probability(laws.target, emitted, rest)
    return {key: p for key, p in law.items() if p}


def target_law(laws, count):
    """The law of plain sampling from the target."""
    law = {x: laws.probability(laws.target, (), x) for x in product(range(VOCAB), repeat=count)}
    return {x: p for x, p in law.items() if p}


def accepted_law(laws, lengths):
    """P(at least i accepted) under the token rule: the sum of products of min(q, p)."""
    result = []
    for i in range(1, DRAFTS + 1):
        total = Fraction(0)
        for x in SEQUENCES:
            if lengths is None or lengths(x) >= i:
                p = [Fraction(1)]
                for j, token in enumerate(x):
                    word = x[:j][-2:]
                    draft = Fraction(laws.draft[word][token], GRID)
                    passed = min(draft, Fraction(laws.target[word][token], GRID))
                    p.append(p[-1] * (passed if j < i else draft))
                total += p[-1]
        result.append(total)
    return result


def differences(got, want):
    """Where two laws differ, in words."""
    return [
        f"P{key} = {got.get(key, 0)}, should be {want.get(key, 0)}"
        for key in {**want, **got}
        if got.get(key, 0) != want.get(key, 0)
    ]


# --- Checks: functions that return what is wrong


def law_failures(verifier, seed=0, deterministic=False, dense=True, lengths=None, poison=False):
    """The joint law of G + 1 tokens, and the law of the number accepted, of one step."""
    laws = Laws(seed, deterministic)
    step = step_law(verifier, laws, (), dense, lengths, poison)
    wrong = differences(law_of_tokens(step, laws, DRAFTS + 1), target_law(laws, DRAFTS + 1))
    for i, want in enumerate(accepted_law(laws, lengths), 1):
        got = sum(p for (n, _), p in step.items() if n != "malformed" and n >= i)
        if got != want:
            wrong.append(f"P(at least {i} accepted) = {got}, should be {want}")
    return wrong


def dense_failures(verifier):
    """Drafts with laws of their own, for three pairs of models."""
    return [x for seed in range(3) for x in law_failures(verifier, seed)]


def point_mass_failures(verifier):
    """Deterministic drafts, their laws not given."""
    return [x for seed in range(3) for x in law_failures(verifier, seed, True, dense=False)]


def dense_point_mass_failures(verifier):
    """Deterministic drafts, their laws written out."""
    return law_failures(verifier, 0, True, dense=True)


LENGTHS = {"none": lambda x: 0, "one": lambda x: 1, "by the first token": lambda x: 1 + (x[0] > 0)}


def short_failures(verifier, deterministic=False):
    """Rows with fewer drafts; a length may depend on the tokens that are verified."""
    return [
        x
        for rule, poison in product(LENGTHS.values(), (False, True))
        for x in law_failures(verifier, 1, deterministic, not deterministic, rule, poison)
    ]


def short_point_mass_failures(verifier):
    """Rows with fewer drafts, their laws point masses."""
    return short_failures(verifier, deterministic=True)


def several_steps_failures(verifier, count=4):
    """The law of the first four tokens of steps one after another, each with fresh uniforms."""
    laws = Laws(5)
    # What follows a prefix depends on its last two tokens only.
    kernels = {word: step_law(verifier, laws, word) for word in PREFIXES}
    law, pending = defaultdict(Fraction), {(): Fraction(1)}
    while pending:
        after = defaultdict(Fraction)
        for prefix, p in pending.items():
            for (n, tokens), q in kernels[prefix[-2:]].items():
                if n == "malformed":
                    law["malformed", tokens] += p * q
                    continue
                text = prefix + tokens[: n + 1]
                (law if len(text) >= count else after)[text[:count]] += p * q
        pending = after
    return differences(law, target_law(laws, count))


def greedy_failures(verifier):
    """Whatever the drafts and uniforms: the tokens that plain greedy decoding would give."""
    wrong = []
    for seed in range(3):
        laws = Laws(seed)
        text = ()
        for _ in range(DRAFTS + 1):
            row = laws.target[text[-2:]]
            text += (row.index(max(row)),)
        kernel = step_law(verifier, laws)
        for (n, tokens), p in kernel.items():
            if n == "malformed" or tokens[: n + 1] != text[: n + 1]:
                wrong.append(f"{n, tokens} with probability {p}, greedy text {text}")
        for i in range(1, DRAFTS + 1):
            want = laws.probability(laws.draft, (), text[:i])
            got = sum(p for (n, _), p in kernel.items() if n != "malformed" and n >= i)
            if got != want:
                wrong.append(f"P(at least {i} accepted) = {got}, should be {want}")
    return wrong


def greedy_steps_failures(verifier, count=4):
    """Steps one after another give the tokens of plain greedy decoding, whatever is drafted."""
    laws = Laws(5)
    text = ()
    while len(text) < count + DRAFTS:
        row = laws.target[text[-2:]]
        text += (row.index(max(row)),)
    wrong, pending = [], {()}
    while pending:
        prefix = pending.pop()
        for (n, tokens), p in step_law(verifier, laws, prefix).items():
            longer = prefix + tokens[: n + 1] if n != "malformed" else ()
            if n == "malformed" or longer != text[: len(longer)]:
                wrong.append(f"after {prefix}: {n, tokens} with probability {p}, greedy {text}")
            elif len(longer) < count:
                pending.add(longer)
    return wrong
