"""The proof: the law of the emitted tokens, counted exactly.

Target and draft laws depend on the prefix. Every draft sequence is enumerated with its probability
and every uniform on the midpoints of a grid of sixteenths. The laws are chosen so that all
thresholds of a correct rule (acceptance ratios, cumulative residuals, cumulative bonus rows) lie on
the lines of that grid; then the counts are the law itself, and they are compared as fractions,
without tolerance.
"""

import random
from collections import defaultdict
from fractions import Fraction
from functools import cache
from itertools import product

import jax
import numpy as np
import pytest

import speculax as sx

from . import mutants, oracle

GRID, VOCAB, DRAFTS = 16, 3, 2
PREFIXES = [prefix for length in range(3) for prefix in product(range(VOCAB), repeat=length)]
TOKEN, GREEDY = jax.jit(sx.verify_token), jax.jit(sx.verify_greedy)


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
        seen, counts = np.unique(
            np.column_stack([n[rows], tokens[rows]]), axis=0, return_counts=True
        )
        for row, count in zip(seen.tolist(), counts.tolist(), strict=True):
            key = row[0], tuple(row[1:])
            if weight and not well_formed(*key, ids[s].tolist()):
                key = "malformed", key
            result[key] += weight * Fraction(count, len(UNIFORMS))
    return {key: p for key, p in result.items() if p}


def well_formed(n, tokens, ids):
    """n accepted draft tokens, one token of the vocabulary, then -1."""
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


CHECKS = {
    "dense drafts": dense_failures,
    "point-mass drafts": point_mass_failures,
    "point-mass drafts written out": dense_point_mass_failures,
    "short rows": short_failures,
    "short rows of point masses": short_point_mass_failures,
    "several steps": several_steps_failures,
}


# --- The laws themselves are worth testing with


@pytest.mark.parametrize("deterministic", [False, True])
def test_laws_depend_on_context_and_exercise_every_branch(deterministic):
    for seed in range(3):
        laws = Laws(seed, deterministic)
        assert len(set(laws.target.values())) > 9
        steps = step_law(mutants.TokenRule(), laws)
        assert {n for n, _ in steps} == {0, 1, 2}


def test_control_agrees_with_the_exact_oracle():
    """A sample of the enumeration, row by row in fractions."""
    rng = np.random.default_rng(0)
    for deterministic in (False, True):
        laws = Laws(0, deterministic)
        rows = rng.integers(0, len(UNIFORMS), 60)
        ids = np.array([SEQUENCES[i] for i in rng.integers(0, len(SEQUENCES), 60)], np.int32)
        target = np.stack([laws.rows(laws.target, (), tuple(x)) for x in ids.tolist()])
        draft = np.stack([laws.rows(laws.draft, (), tuple(x))[:-1] for x in ids.tolist()])
        for law in (draft, None):
            arguments = ids, law, target, UNIFORMS[rows, :-1], UNIFORMS[rows, -1]
            want = oracle.token_rule(*arguments)
            got = mutants.TokenRule()(*arguments)
            assert all(np.array_equal(got[key], want[key]) for key in want)


# --- The verifiers


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("verifier", [TOKEN, mutants.TokenRule()], ids=["token", "control"])
def test_law_is_exact(verifier, check):
    assert not CHECKS[check](verifier)


@pytest.mark.parametrize("verifier", [GREEDY, mutants.GreedyRule()], ids=["greedy", "control"])
def test_greedy_law_is_exact(verifier):
    assert not greedy_failures(verifier)


# --- The mutants

# Faults at the edges, which no law of sound rows can show: `test_edges` refuses them.
EDGE_ONLY = {
    "AcceptsZeroMass",
    "GuardedDivision",
    "NegativeMassCounts",
    "ClampsIds",
    "WrapsIds",
    "NoFallback",
    "NaNDraftSubtracted",
    "InclusiveCumulative",
    "CutsIdsTo32Bits",
    "VocabularyInTypeOfIds",
    "LastTokenWhenRoundedUp",
    "HalfPrecisionSums",
    "BareCumsum",
    "RoundingDependsOnBatch",
    "NaNRowGivesToken",
}
SHORT_ONLY = {"IgnoresLengths", "BonusFromPaddedRow"}
DENSE = [
    name for name in mutants.wrong_ones(mutants.TokenRule) if name not in EDGE_ONLY | SHORT_ONLY
]


@pytest.mark.parametrize("mutant", DENSE)
def test_mutant_has_another_law(mutant):
    assert dense_failures(mutants.MUTANTS[mutant])


@pytest.mark.parametrize("mutant", sorted(SHORT_ONLY))
def test_mutant_has_another_law_on_short_rows(mutant):
    assert short_failures(mutants.MUTANTS[mutant])


@pytest.mark.parametrize("mutant", ["CorrectionFromTarget", "ResidualFromNextRow"])
@pytest.mark.parametrize("check", list(CHECKS)[1:])
def test_every_check_can_fail(check, mutant):
    assert CHECKS[check](mutants.MUTANTS[mutant])


@pytest.mark.parametrize(
    "mutant",
    ["GreedyCountsBeyondFirstFailure", "GreedyTargetRowShifted", "GreedySamplesBonus"],
)
def test_greedy_mutant_has_another_law(mutant):
    assert greedy_failures(mutants.MUTANTS[mutant])
