"""Slow and plain references for the verifiers, one row at a time, to judge the fast ones by.

They share no code with `speculax`. With ``number=Fraction`` every comparison and every sum is
exact; with ``number=float`` a row is worked out in float64, which is what large vocabularies need.
"""

from fractions import Fraction
from math import isfinite, isnan

import numpy as np

LARGEST = 1 - 2.0**-24  # the largest float32 below one


def clipped(uniform):
    """The uniform as the contract reads it: NaN stays NaN, the rest lies in [0, 1 - 2**-24]."""
    uniform = float(uniform)
    return uniform if isnan(uniform) else min(max(uniform, 0.0), LARGEST)


def stop(ids, length):
    """How many drafts the row really has."""
    return len(ids) if length is None else min(max(int(length), 0), len(ids))


def passes(token, draft_row, target_row, uniform, number):
    """The acceptance test of one position; ``draft_row`` None is the point mass on the token."""
    if not 0 <= token < len(target_row):
        return False
    draft = 1.0 if draft_row is None else float(draft_row[token])
    target = float(target_row[token])
    uniform = clipped(uniform)
    if isnan(draft) or isnan(target) or isnan(uniform):
        return False
    draft, target = max(draft, 0.0), max(target, 0.0)
    if not (isfinite(draft) and isfinite(target)):
        return uniform * draft < target
    return number(uniform) * number(draft) < number(target)


def numbers(row, number):
    """The row without its negative entries, in the arithmetic asked for."""
    row = np.maximum(np.asarray(row, np.float64), 0.0)
    return row if number is float else np.array([number(x) for x in row.tolist()], dtype=object)


def plan(ids, draft, target, accept, length=None, number=Fraction):
    """How many tokens of one row are accepted, and the weights the next one is drawn from.

    Args:
        ids: G draft tokens.
        draft: (G, V) their laws, or None for point masses.
        target: (G + 1, V) the target's laws.
        accept: G uniforms.
        length: how many of the G are drafts, or None for all.
        number: ``Fraction`` or ``float``.

    Returns:
        ``(n, weights)``; weights is None where no token can be drawn.
    """
    n, end = 0, stop(ids, length)
    while n < end and passes(
        int(ids[n]), None if draft is None else draft[n], target[n], accept[n], number
    ):
        n += 1
    if not np.all(np.isfinite(np.asarray(target[n], np.float64))):
        return n, None
    weights = numbers(target[n], number)
    if not weights.sum() > 0:
        return n, None
    if n == end or not 0 <= int(ids[n]) < len(weights):
        return n, weights
    if draft is None:
        row = np.zeros(len(weights))
        row[int(ids[n])] = 1.0
    else:
        row = np.asarray(draft[n], np.float64)
    if np.any(np.isnan(row)):
        return n, weights
    # An infinite draft entry takes all there is; ids of finite entries keep what the draft leaves.
    residual = np.maximum(weights - numbers(np.where(np.isinf(row), 0, row), number), number(0))
    residual = np.where(np.isposinf(row), number(0), residual)
    return n, residual if residual.sum() > 0 else weights


def draw(weights, uniform):
    """The smallest id whose cumulative probability exceeds the uniform; -1 without weights."""
    if weights is None:
        return -1
    uniform = clipped(uniform)
    uniform = 0.0 if isnan(uniform) else uniform
    cumulative = np.cumsum(weights)
    if weights.dtype == object:
        uniform = Fraction(uniform)
    return int(np.argmax(cumulative > uniform * cumulative[-1]))


def greedy_choice(target_row):
    """The id of largest probability, the lowest of equals; -1 if the row names none."""
    row = np.asarray(target_row, np.float64)
    if not np.all(np.isfinite(row)) or not np.any(row > 0):
        return -1
    return int(np.argmax(row))


def verdict(ids, n, extra):
    """One row of the result."""
    return n, [int(x) for x in ids[:n]] + [extra] + [-1] * (len(ids) - n)


def token_row(ids, draft, target, accept, sample, length=None, number=Fraction):
    """The token rule for one row."""
    n, weights = plan(ids, draft, target, accept, length, number)
    return verdict(ids, n, draw(weights, sample))


def greedy_row(ids, draft, target, accept, sample, length=None, number=Fraction):
    """The greedy rule for one row; laws of the draft and uniforms have no say."""
    n, end = 0, stop(ids, length)
    while n < end and int(ids[n]) >= 0 and int(ids[n]) == greedy_choice(target[n]):
        n += 1
    return verdict(ids, n, greedy_choice(target[n]))


def batched(row_rule, number=Fraction):
    """A verifier with the public signature made from the rule for one row."""

    def verifier(
        draft_tokens,
        draft_probs,
        target_probs,
        accept_uniforms,
        sample_uniforms,
        *,
        draft_lengths=None,
    ):
        rows = [
            row_rule(
                np.asarray(draft_tokens)[b],
                None if draft_probs is None else np.asarray(draft_probs)[b],
                np.asarray(target_probs)[b],
                np.asarray(accept_uniforms)[b],
                np.asarray(sample_uniforms)[b],
                None if draft_lengths is None else np.asarray(draft_lengths)[b],
                number,
            )
            for b in range(len(np.asarray(target_probs)))
        ]
        return {
            "num_accepted": np.array([n for n, _ in rows], np.int32),
            "tokens": np.array([tokens for _, tokens in rows], np.int32),
        }

    return verifier


token_rule = batched(token_row)
greedy_rule = batched(greedy_row)
