"""Real vocabularies, types and batches: inputs that are too large for a table."""

# pyright: reportMissingParameterType=false

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.call import as_verifier
from speculax.conformance.verifier.edges import LARGEST
from speculax.conformance.verifier.rules import Rule

# A row alone is left out where the compiler adds up its blocks in another order than those of
# several rows; see twin_failures.
BATCHES = (2, 8) if jax.__version_info__ >= (0, 12) else (1, 2, 8)
MOST_SHOWN = 2


def check_large(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Tokens without weight; all of the vocabulary; strictly, rows in any batch, types of ids."""
    checks: dict[str, tuple[Callable[[Callable[..., Any]], list[str]], str]] = {
        "the end of the vocabulary is not drawn from": (
            last_tile_failures,
            "V need not be a multiple of anything: what is left after the last whole tile counts.",
        )
    }
    if level != "contract" and rule.name != "greedy":
        checks["V = 262144, half of it masked: a token without probability is returned"] = (
            partial(large_bonus_failures, more=0),
            "A running sum in float32 rises, and falls, at entries that are zero. Sum blocks, "
            "choose a block, then a token of weight in it; or choose among tokens of weight only.",
        )
        checks["where rounding leaves no token to choose, one without weight comes out"] = (
            end_of_mass_failures,
            "The cumulative sum may never exceed the uniform times the total; take the last token "
            "that has weight then, not the last of all.",
        )
    if level == "strict":
        checks["one NaN in a row of 8200 does not show: a plausible token comes out"] = (
            lone_nan_failures,
            "XLA's maximum of 4,096 floats or more loses NaN on CPU; a row that is NaN throughout "
            "does not show it.",
        )
        if rule.name in ("token", "block"):
            checks["equal rows of numbers of any size are refused"] = (
                equal_row_failures,
                "Products of small numbers may vanish: compare so that equal numbers always pass.",
            )
        if rule.name != "greedy":
            checks["the same row draws another token in another batch"] = (
                partial(twin_failures, vocab=5000),
                "Sums must be added up in the same order whatever the batch.",
            )
        if candidate.framework != "torch":
            checks["ids of 64 bits are cut to 32"] = (
                partial(wide_id_failures, token=np.int64(2**32 + 1)),
                "An id beyond the vocabulary must not become one inside.",
            )
            if rule.is_lossless and rule.name != "greedy":
                checks["ids of 8 bits meet a vocabulary of 300"] = (
                    partial(narrow_id_failures, id_type=np.uint8),
                    "The size of the vocabulary must not be cut to the type of the ids.",
                )
    verifier, failures = as_verifier(candidate), []
    for what, (check, why) in checks.items():
        try:
            wrong = check(verifier)
        except Exception as error:
            failures.append(explain(candidate, error, f"on the inputs that show whether {what}"))
            continue
        if wrong:
            failures.append(Failure(what, actual="; ".join(wrong[:MOST_SHOWN]), why=why))
    return Outcome(len(checks), failures)


def last_tile_failures(verifier):
    """Rows with mass only at the end, behind the last multiple of 128."""
    wrong = []
    for vocab in (1030, 50_257):
        end = vocab - vocab % 128
        row = (np.arange(vocab) >= end) / (vocab - end)
        target = np.tile(row.astype(np.float32), (3, 1, 1))
        sample = np.array([0.25, 0.5, 0.75], np.float32)
        none = np.zeros((3, 0), np.float32)
        out = verifier(none.astype(np.int32), no_draft(target), target, none, sample)
        drawn = np.asarray(out["tokens"])[:, 0].tolist()
        if not all(end <= y < vocab for y in drawn):
            wrong.append(f"V = {vocab}: tokens {drawn}, all mass is at {end} and beyond")
    return wrong


def lone_nan_failures(verifier, vocab=8200):
    """A target row with a single NaN cannot be drawn from."""
    row = np.random.default_rng(5).exponential(size=(1, 1, vocab)).astype(np.float32)
    row[..., 2] = np.nan
    none = np.zeros((1, 0), np.float32)
    out = verifier(none.astype(np.int32), no_draft(row), row, none, np.full(1, 0.5, np.float32))
    got = np.asarray(out["tokens"]).tolist()
    return [] if got == [[-1]] else [f"token {got[0][0]}"]


def no_draft(target: Any) -> np.ndarray:
    """The laws of no draft tokens at all."""
    return np.zeros((target.shape[0], 0, target.shape[2]), np.float32)


def equal_row_failures(verifier):
    """Random rows of float32 numbers of every size, the draft's and the target's the same."""
    rng = np.random.default_rng(1)
    size = (4096, 3, 4)
    target = np.ldexp(rng.uniform(0.5, 1, size), rng.integers(-125, 1, size)).astype(np.float32)
    target[:64] = 2.0**-126
    ids = rng.integers(0, 4, (4096, 2)).astype(np.int32)
    accept = np.full((4096, 2), LARGEST, np.float32)
    accept[1::2] = rng.random((2048, 2), np.float32)
    out = verifier(ids, target[:, :2], target, accept, np.zeros(4096, np.float32))
    refused = np.flatnonzero(np.asarray(out["num_accepted"]) != 2)
    return [f"ids {ids[b]}, rows {target[b]}, uniforms {accept[b]}" for b in refused]


LARGE = 262_144


@cache
def large_rows():
    """Eight rows with at least half of the entries masked, in the ways masks come."""
    rng = np.random.default_rng(2)
    ids = np.arange(LARGE)
    half = rng.permutation(LARGE) < LARGE // 2
    peak = np.full(LARGE, 1e-12)
    peak[LARGE // 3] = 0.999999
    rows = [
        rng.exponential(size=LARGE) * (ids % 2),
        (1 - ids % 2) / LARGE,
        (ids >= LARGE // 2) * rng.random(LARGE),
        (ids < LARGE // 2) / LARGE,
        np.exp(3 * rng.normal(size=LARGE)) * half,
        peak * (half | (peak > 0.5)),
        (ids == LARGE - 3) * 1.0,
        half * 1e-30,
    ]
    return np.stack([row / max(row.sum(), 1e-20) for row in rows]).astype(np.float32)


_running_sum = jax.jit(partial(jnp.cumsum, axis=1))


def large_uniforms(rows, more):
    """The ends, points where XLA's own running sum rises without weight, and more."""
    ends = [0.0, 2.0**-149, 2.0**-24, 0.5, 1 - 2.0**-22, 1 - 2.0**-23, LARGEST]
    rng = np.random.default_rng(3)
    cumulative = np.asarray(_running_sum(rows))
    before = np.maximum.accumulate(cumulative, axis=1)[:, :-1]
    rises = (rows[:, 1:] == 0) & (before < cumulative[:, 1:])
    tricky = rng.random((min(2 + more, 8), 8), np.float32)
    for b in range(8):
        places = np.flatnonzero(rises[b])
        if len(places):
            tricky[:, b] = before[b, rng.choice(places, len(tricky))] / cumulative[b, -1]
    return [np.full(8, s, np.float32) for s in ends] + [*tricky, *rng.random((more, 8), np.float32)]


def large_bonus_failures(verifier, more=8):
    """Bonus draws: every id that comes out has weight."""
    rows = large_rows()
    target = jnp.asarray(rows[:, None])
    none = np.zeros((8, 0), np.float32)
    wrong = []
    for sample in large_uniforms(rows, more):
        out = verifier(none.astype(np.int32), no_draft(target), target, none, sample)
        drawn = np.asarray(out["tokens"])[:, 0]
        wrong += [
            f"row {b}, uniform {sample[b]}: token {y}"
            for b, y in enumerate(drawn)
            if not (0 <= y < LARGE and rows[b, y] > 0)
        ]
    return wrong


ENDS = (128, 256, 512, 1024, 1300)


@cache
def _rows_with_gaps():
    """Rows that are masked before each of the ends, and their cumulative sums."""
    rng = np.random.default_rng(7)
    size = 512, ENDS[-1]
    rows = rng.exponential(size=size) * (rng.random(size) < 0.5)
    for end in ENDS:
        rows[:, end - 9 : end] = 0
    rows = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    return rows, rows.cumsum(axis=1, dtype=np.float64)


def end_of_mass_failures(verifier):
    """Uniforms at the last token before a masked stretch, where rounding may leave none to choose.

    Implementations sum in pieces; the stretches end where such pieces do.
    """
    rows, cumulative = _rows_with_gaps()
    batch = len(rows)
    none = np.zeros((batch, 0), np.float32)
    target = jnp.asarray(rows[:, None])
    wrong = []
    for end in ENDS:
        sample = (cumulative[:, end - 1] / cumulative[:, -1]).astype(np.float32)
        for _ in range(2):
            out = verifier(none.astype(np.int32), no_draft(target), target, none, sample)
            drawn = np.asarray(out["tokens"])[:, 0]
            inside = (drawn >= 0) & (drawn < rows.shape[1])
            bad = ~inside | ~(rows[np.arange(batch), np.where(inside, drawn, 0)] > 0)
            wrong += [f"row {b}: token {drawn[b]}" for b in np.flatnonzero(bad)]
            sample = np.nextafter(sample, np.float32(0))
    return wrong


def narrow_id_failures(verifier, id_type):
    """The ids' type need not hold the size of the vocabulary (300 is 44 in eight bits)."""
    law = np.zeros((1, 1, 300), np.float32)
    law[..., 100], law[..., 290] = 0.75, 0.25
    ids = jnp.asarray(np.array([[100]], id_type))
    half = np.full((1, 1), 0.5, np.float32)
    out = verifier(ids, law, np.concatenate([law, law], 1), half, np.full(1, 0.875, np.float32))
    got = np.asarray(out["tokens"]).tolist()
    return [] if got == [[100, 290]] else [f"{np.dtype(id_type).name}: {got}"]


def wide_id_failures(verifier, token):
    """Cut to 32 bits, these would be -1 or the token that has all of the mass."""
    law = np.array([[[0, 1, 0, 0]]], np.float32)
    with jax.enable_x64(True):
        ids = jnp.asarray(np.array([[token]]))
        assert ids.dtype == token.dtype
        zero = np.zeros((1, 1), np.float32)
        out = verifier(ids, law, np.concatenate([law, law], 1), zero, zero[0])
    got = np.asarray(out["num_accepted"]).tolist(), np.asarray(out["tokens"]).tolist()
    return [] if got == ([0], [[1, -1]]) else [f"{token!r}: {got}"]


def twin_failures(verifier, vocab):
    """One row drawn from alone, as two rows and as eight, at uniforms on the edges of tokens."""
    rng = np.random.default_rng(6)
    row = rng.exponential(size=vocab)
    row = (row / row.sum()).astype(np.float32)
    cumulative = np.cumsum(row.astype(np.float64))
    wrong = []
    for sample in cumulative[rng.integers(0, vocab, 60)] / cumulative[-1]:
        drawn = set()
        for batch in BATCHES:
            none = np.zeros((batch, 0), np.float32)
            target = np.tile(row, (batch, 1, 1))
            uniforms = np.full(batch, sample, np.float32)
            out = verifier(none.astype(np.int32), no_draft(target), target, none, uniforms)
            drawn |= {*np.asarray(out["tokens"])[:, 0].tolist()}
        if len(drawn) > 1:
            wrong.append(f"uniform {sample}: tokens {sorted(drawn)}")
    return wrong
