"""Slow and plain references for the verifiers, one row at a time, to judge the fast ones by.

They share no code with `speculax`. With ``number=Fraction`` every comparison and every sum is
exact; with ``number=float`` a row is worked out in float64, which is what large vocabularies need.
"""

# pyright: basic, reportMissingParameterType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportIncompatibleMethodOverride=false

from fractions import Fraction
from functools import partial
from math import exp, fsum, isfinite, isinf, isnan, log

import numpy as np

LARGEST = 1 - 2.0**-24  # the largest float32 below one


def clipped(uniform):
    """The uniform as the contract reads it: NaN stays NaN, the rest lies in [0, 1 - 2**-24]."""
    uniform = float(uniform)
    return uniform if isnan(uniform) else min(max(uniform, 0.0), LARGEST)


def stop(ids, length):
    """How many drafts the row really has."""
    return len(ids) if length is None else min(max(int(length), 0), len(ids))


def entries(token, draft_row, target_row):
    """The draft's and the target's probability of a token; None if it cannot be judged.

    ``draft_row`` None is the point mass on the token.
    """
    if not 0 <= token < len(target_row):
        return None
    draft = 1.0 if draft_row is None else float(draft_row[token])
    target = float(target_row[token])
    return None if isnan(draft) or isnan(target) else (max(draft, 0.0), max(target, 0.0))


def passes(token, draft_row, target_row, uniform, number):
    """The acceptance test of one position; ``draft_row`` None is the point mass on the token."""
    both, uniform = entries(token, draft_row, target_row), clipped(uniform)
    if both is None or isnan(uniform):
        return False
    draft, target = both
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
    weights = whole(target[n], number)
    if weights is None or n == end or not 0 <= int(ids[n]) < len(weights):
        return n, weights
    rest = residual(number(1), target[n], draft_row(ids, draft, n, len(weights)), number)
    return n, weights if rest is None or not rest.sum() > 0 else rest


def whole(target_row, number):
    """The weights of a target row; None if it cannot be drawn from."""
    if not np.all(np.isfinite(np.asarray(target_row, np.float64))):
        return None
    weights = numbers(target_row, number)
    return weights if weights.sum() > 0 else None


def draft_row(ids, draft, i, vocab):
    """The draft's law at a position, written out."""
    if draft is not None:
        return np.asarray(draft[i], np.float64)
    return (np.arange(vocab) == int(ids[i])).astype(np.float64)


def residual(factor, target_row, row, number):
    """max(factor * target - draft, 0); None if it cannot be summed up.

    An infinite draft entry takes all there is.
    """
    if np.any(np.isnan(row)) or not np.all(np.isfinite(np.asarray(target_row, np.float64))):
        return None
    draft = numbers(np.where(np.isinf(row), 0, row), number)
    rest = np.maximum(factor * numbers(target_row, number) - draft, number(0))
    return np.where(np.isposinf(row), number(0), rest)


def block_plan(ids, draft, target, accept, length=None, number=Fraction):
    """The same for the block rule; the definition of Sun et al., prefix by prefix.

    The draft ends before a token that cannot be judged. A prefix whose residual cannot be summed up
    is judged by its ratio alone.
    """
    end, ratios = 0, [number(1)]
    while end < stop(ids, length):
        both = entries(int(ids[end]), None if draft is None else draft[end], target[end])
        if both is None:
            break
        ratios.append(joint_ratio(ratios[-1], *both, number))
        end += 1
    rests = [
        residual(ratios[i], target[i], draft_row(ids, draft, i, len(target[i])), number)
        for i in range(end)
    ]

    def holds(i):
        uniform, ratio = clipped(accept[i - 1]), ratios[i]
        if isnan(uniform):
            return False
        uniform = number(uniform)
        if i == end or rests[i] is None:
            return uniform < ratio
        mass = rests[i].sum()
        return uniform * (mass + 1 - ratio) < mass or (mass == 0 and ratio == 1)

    n = max([i for i in range(1, end + 1) if holds(i)], default=0)
    weights = whole(target[n], number)
    if weights is None or n == end or rests[n] is None or not rests[n].sum() > 0:
        return n, weights
    return n, rests[n]


def joint_ratio(before, draft, target, number):
    """min(1, before * target / draft), whatever the numbers."""
    if before == 0 or target == 0 or isinf(draft):
        return number(0)
    if draft == 0 or isinf(target):
        return number(1)
    return min(number(1), before * number(target) / number(draft))


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


def block_row(ids, draft, target, accept, sample, length=None, number=Fraction):
    """The block rule for one row."""
    n, weights = block_plan(ids, draft, target, accept, length, number)
    return verdict(ids, n, draw(weights, sample))


def sampled_row(ids, draft, target, accept, sample, length=None, number=Fraction):
    """The target's own tokens, as far as the draft has them and one further."""
    end = stop(ids, length)
    for i in range(end + 1):
        uniform = accept[i] if i < end else sample
        own = draw(whole(target[i], number), uniform)
        if i == end or isnan(uniform) or own == -1 or own != int(ids[i]):
            return verdict(ids, i, own)


# --- Lossy rules: tests (token, target row, uniform in contract, place, number) of one position


def typical(token, row, uniform, place, number, *, epsilon=0.09, delta=0.3):
    """Target > min(epsilon, delta * exp(-entropy))."""
    row = np.maximum(np.asarray(row, np.float64), 0.0).tolist()
    entropy = -fsum(p * log(p) for p in row if p != 0)
    threshold = min(np.float32(epsilon), np.float32(delta) * exp(-entropy))
    return row[token] > threshold and not isnan(entropy)


def thresholds(token, row, uniform, place, number, *, threshold_single=1.0, threshold_acc=1.0):
    """Below the target's probability, scaled; or a probability that will do in any case."""
    target = float(row[token])
    if isnan(target) or isnan(uniform):
        return False
    scaled = number(uniform) * number(float(np.float32(threshold_acc)))
    return target >= np.float32(threshold_single) or scaled < number(target)


def top_k(token, row, uniform, place, number, *, k=1):
    """Fewer than k tokens are likelier."""
    return row[token] > 0 and sum(1 for p in row if p > row[token]) < k


def synthetic(token, row, uniform, place, number, *, rates=0.8):
    """At a rate."""
    rate = np.float32(rates if np.ndim(rates) == 0 else rates[place])
    return uniform < rate


def lossy_row(test, ids, draft, target, accept, sample, length=None, number=Fraction):
    """A lossy rule for one row: tests from the left, then the target's row at the failure."""
    n, end = 0, stop(ids, length)
    vocab = len(target[0])

    def passed(i):
        token = int(ids[i])
        return 0 <= token < vocab and test(token, target[i], clipped(accept[i]), i, number)

    while n < end and passed(n):
        n += 1
    weights = whole(target[n], number)
    if weights is not None and test.func is thresholds and n < end and 0 <= int(ids[n]) < vocab:
        others = np.where(np.arange(vocab) == int(ids[n]), number(0), weights)
        weights = others if others.sum() > 0 else weights
    return verdict(ids, n, draw(weights, sample))


def lossy(test, **settings):
    """The rule for one row that a test and its settings make."""
    return partial(lossy_row, partial(test, **settings))


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
