"""The formulas against exact enumeration of the rules they are about, and against brute force."""

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from speculax.theory import (
    best_draft_length,
    block_efficiency,
    iid_block_efficiency,
    mean_accepted_block,
    mean_accepted_token,
    speedup,
)

VOCAB = range(3)

quick = settings(max_examples=100, deadline=None, derandomize=True)
fractions = st.floats(0, 1)
costs = st.floats(0.01, 10)


# Exact laws of what the rules accept.


def random_model(rng, length, lowest):
    """A law of rational probabilities after each text of up to `length` tokens."""

    def law():
        weights = rng.integers(lowest, 7, len(VOCAB)).tolist()
        total = sum(weights)
        return [Fraction(weight, total) for weight in weights] if total else law()

    return {text: law() for n in range(length + 1) for text in product(VOCAB, repeat=n)}


def drafts(target, draft, length):
    """Each possible draft, its probability, and the target's over the drafter's of its tokens."""
    for text in product(VOCAB, repeat=length):
        laws = [(target[text[:i]][x], draft[text[:i]][x]) for i, x in enumerate(text)]
        probability = prod(q for _, q in laws)
        if probability:
            yield text, probability, [p / q for p, q in laws]


def token_law(ratios):
    """How likely the token rule accepts 0, ..., G tokens: those before the first failure."""
    law, alive = [], Fraction(1)
    for ratio in ratios:
        passes = min(Fraction(1), ratio)
        law.append(alive * (1 - passes))
        alive *= passes
    return [*law, alive]


def block_law(text, ratios, target, draft):
    """How likely the block rule accepts 0, ..., G tokens: the last place whose own test passes."""
    capped = [Fraction(1)]
    for ratio in ratios:
        capped.append(min(Fraction(1), capped[-1] * ratio))
    passes = [Fraction(1)]
    for i in range(1, len(text)):
        rows = zip(target[text[:i]], draft[text[:i]], strict=True)
        residual = sum(max(capped[i] * p - q, Fraction(0)) for p, q in rows)
        denominator = residual + 1 - capped[i]
        passes.append(residual / denominator if denominator else Fraction(1))
    passes.append(capped[-1])
    return [passes[n] * prod(1 - h for h in passes[n + 1 :]) for n in range(len(passes))]


def mean(law):
    return sum(n * chance for n, chance in enumerate(law))


@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("lowest", [0, 1])  # with and without zeros in the laws
@pytest.mark.parametrize("seed", range(4))
def test_mean_accepted_is_that_of_the_rules_exactly(length, lowest, seed):
    rng = np.random.default_rng(seed)
    target, draft = random_model(rng, length, lowest), random_model(rng, length, lowest)
    texts, weights, ratios = zip(*drafts(target, draft, length), strict=True)
    assert sum(weights) == 1
    cases = list(zip(texts, weights, ratios, strict=True))

    by_token = sum(w * mean(token_law(r)) for _, w, r in cases)
    by_block = sum(w * mean(block_law(text, r, target, draft)) for text, w, r in cases)
    weights, ratios = np.array(weights, float), np.array(ratios, float)
    assert weights @ mean_accepted_token(ratios) == pytest.approx(float(by_token), rel=1e-12)
    assert weights @ mean_accepted_block(ratios) == pytest.approx(float(by_block), rel=1e-12)

    each = [float(mean(token_law(r))) for _, _, r in cases]
    np.testing.assert_allclose(mean_accepted_token(ratios), each, rtol=1e-12)


def test_the_block_rule_accepts_the_first_tokens_with_the_chance_they_add():
    rng = np.random.default_rng(4)
    target, draft = random_model(rng, 3, 1), random_model(rng, 3, 1)
    chances, ratios_of = {}, {}
    for text, weight, ratios in drafts(target, draft, 3):
        law = block_law(text, ratios, target, draft)
        for i in (1, 2, 3):
            ratios_of[text[:i]] = [float(r) for r in ratios[:i]]
            likely, kept = chances.get(text[:i], (0, 0))
            chances[text[:i]] = likely + weight, kept + weight * sum(law[i:])
    for first, (likely, kept) in chances.items():
        ratios = ratios_of[first]
        added = mean_accepted_block(ratios) - mean_accepted_block(ratios[:-1])
        assert added == pytest.approx(float(kept / likely), rel=1e-12)


def test_block_efficiency_is_that_of_the_rules_exactly():
    rng = np.random.default_rng(5)
    target, draft = random_model(rng, 3, 1), random_model(rng, 3, 1)
    for rule in (
        lambda text, ratios: token_law(ratios),
        lambda text, ratios: block_law(text, ratios, target, draft),
    ):
        laws = [(weight, rule(text, r)) for text, weight, r in drafts(target, draft, 3)]
        kept = [sum(w * sum(law[i:]) for w, law in laws) for i in range(4)]  # at least i tokens
        rates = [float(kept[i] / kept[i - 1]) for i in (1, 2, 3)]
        expected = 1 + sum(w * mean(law) for w, law in laws)
        assert block_efficiency(rates) == pytest.approx(float(expected), rel=1e-12)


def test_the_example_of_the_block_verification_paper():
    # Target (1/3, 2/3), drafter (2/3, 1/3), two draft tokens.
    ratios = np.array([[0.5, 0.5], [0.5, 2], [2, 0.5], [2, 2]])
    weights = np.array([4, 2, 2, 1]) / 9
    assert weights @ mean_accepted_token(ratios) == pytest.approx(10 / 9)
    assert weights @ mean_accepted_block(ratios) == pytest.approx(11 / 9)


# Ratios.


@quick
@given(st.lists(st.floats(0, 1e300), max_size=8))
def test_the_block_rule_never_accepts_less(ratios):
    token, block = mean_accepted_token(ratios), mean_accepted_block(ratios)
    assert 0 <= token <= block + 1e-12
    assert block <= len(ratios)


@quick
@given(st.lists(fractions, max_size=8))
def test_where_no_ratio_exceeds_one_the_rules_agree(ratios):
    assert mean_accepted_block(ratios) == pytest.approx(mean_accepted_token(ratios))


@pytest.mark.parametrize("function", [mean_accepted_token, mean_accepted_block])
def test_mean_accepted_at_the_limits(function):
    assert function([0.0, 5.0, 5.0]) == 0
    assert function([1.0, 1.0, 1.0]) == 3
    assert function([]) == 0
    assert function([0.3, 4.0, 0.0, 0.0]) == function([0.3, 4.0])
    ratios = np.random.default_rng(0).gamma(1, 1, (2, 5, 4))
    assert function(ratios).shape == (2, 5)
    assert function(ratios)[1, 3] == function(ratios[1, 3].tolist())
    assert function(np.ones((2, 0))).tolist() == [0, 0]
    assert isinstance(function([0.5]), float)


# Block efficiency.


@quick
@given(fractions, st.integers(0, 12))
def test_equal_rates_give_the_geometric_sum(rate, length):
    expected = float(sum(Fraction(rate) ** i for i in range(length + 1)))
    assert iid_block_efficiency(rate, length) == pytest.approx(expected, rel=1e-14)
    assert block_efficiency([rate] * length) == pytest.approx(expected, rel=1e-14)


def test_equal_rates_close_to_one():
    for rate in (1 - 2.0**-53, 1 - 1e-15, 1 - 1e-9, 1 - 1e-5):
        expected = float(sum(Fraction(rate) ** i for i in range(65)))
        assert iid_block_efficiency(rate, 64) == pytest.approx(expected, rel=1e-15)


def test_block_efficiency_at_the_limits():
    assert iid_block_efficiency(1, 7) == 8
    assert iid_block_efficiency(0, 7) == 1
    assert iid_block_efficiency(0, 0) == iid_block_efficiency(1, 0) == 1
    assert iid_block_efficiency(0.3, 0) == pytest.approx(1)
    assert block_efficiency([]) == 1
    assert block_efficiency([0, 1, 1]) == 1
    assert block_efficiency([1, 1, 1]) == 4


def test_block_efficiency_broadcasts():
    many = iid_block_efficiency(np.array([[0.0], [0.5], [1.0]]), np.arange(3))
    assert many.tolist() == [[1, 1, 1], [1, 1.5, 1.75], [1, 2, 3]]
    assert block_efficiency(np.array([[0.5, 1.0], [1.0, 0.5]])).tolist() == [2, 2.5]
    assert block_efficiency(np.full((2, 3), 1, np.float32)).dtype == np.float64
    assert isinstance(iid_block_efficiency(0.5, 3), float)
    assert isinstance(block_efficiency([0.5]), float)


# Speedup and the best draft length.


def plain_speedup(rates, step_costs, draft_cost):
    """By listing how each step can end."""
    speedups = []
    for length, step_cost in enumerate(step_costs):
        tokens = prod(rates[:length]) * (length + 1)
        for n in range(length):
            tokens += prod(rates[:n]) * (1 - rates[n]) * (n + 1)
        speedups.append(tokens / (length * draft_cost + step_cost) * step_costs[0])
    return speedups


@st.composite
def curves(draw):
    length = draw(st.integers(0, 6))
    rates = draw(st.lists(fractions, min_size=length, max_size=length))
    step_costs = draw(st.lists(costs, min_size=length + 1, max_size=length + 1))
    return rates, step_costs, draw(st.floats(0, 2))


@quick
@given(curves())
def test_speedup_and_best_draft_length_by_brute_force(curve):
    expected = plain_speedup(*curve)
    np.testing.assert_allclose(speedup(*curve), expected, rtol=1e-12)
    assert speedup(*curve)[0] == 1
    assert expected[best_draft_length(*curve)] == pytest.approx(max(expected), rel=1e-12)


@quick
@given(st.floats(0, 0.999), st.integers(0, 12), st.floats(0, 1))
def test_speedup_of_flat_costs_is_the_classical_formula(rate, length, cost):
    expected = (1 - rate ** (length + 1)) / ((1 - rate) * (length * cost + 1))
    assert speedup(rate, np.ones(length + 1), cost)[-1] == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("rate", [0.05, 0.35, 0.65, 0.85, 0.95])
def test_best_draft_length_of_flat_costs(rate, cost):
    # A token more pays while a^(G+1) (1 - a) (G c + 1) > c (1 - a^(G+1)); not at all unless a > c.
    best = 0
    while rate ** (best + 1) * (1 - rate) * (best * cost + 1) > cost * (1 - rate ** (best + 1)):
        best += 1
    assert (best > 0) == (rate > cost)
    assert best_draft_length(rate, np.ones(80), cost) == best


def test_best_draft_length_at_the_limits():
    assert best_draft_length(1, np.ones(8)) == 7
    assert best_draft_length(0, np.ones(8)) == 0  # of equals the shortest
    assert best_draft_length(0.9, [1.0]) == 0
    assert best_draft_length([0.5, 1.0, 1.0], [1, 1.6, 1.6, 1.6]) == 3  # beyond a dip
    assert best_draft_length(0.9, [1, 2, 3, 4]) == 0


def test_the_unit_of_cost_does_not_matter():
    rates, seconds = [0.9, 0.7], np.array([0.02, 0.03, 0.05])
    np.testing.assert_allclose(
        speedup(rates, seconds, 0.002), speedup(rates, seconds / 0.02, 0.1), rtol=1e-12
    )


def test_speedup_broadcasts():
    rates = np.random.default_rng(1).random((5, 1, 3))
    step_costs = np.array([[1, 1, 1, 1], [1, 1.5, 2, 2.5]])
    many = speedup(rates, step_costs, np.array([0.1, 0.2]))
    assert many.shape == (5, 2, 4)
    np.testing.assert_allclose(many[4, 1], plain_speedup(rates[4, 0], step_costs[1], 0.2))
    lengths = best_draft_length(rates, step_costs, np.array([0.1, 0.2]))
    assert lengths.tolist() == many.argmax(-1).tolist()

    one_rate_a_row = speedup(np.array([[0.5], [0.8]]), step_costs)
    np.testing.assert_allclose(one_rate_a_row[1], plain_speedup([0.8] * 3, step_costs[1], 0))


# Errors.


@pytest.mark.parametrize("bad", [-0.1, 1.1, 80, np.nan, np.inf])
def test_rates_are_fractions(bad):
    message = f"must be from 0 to 1, got {float(bad)}; pass a fraction"
    for call in (
        lambda: block_efficiency([0.5, bad]),
        lambda: iid_block_efficiency(bad, 3),
        lambda: speedup([0.5, bad], [1, 1, 1]),
        lambda: best_draft_length(bad, [1, 1, 1]),
    ):
        with pytest.raises(ValueError, match=f"^acceptance_rates? {message}"):
            call()


@pytest.mark.parametrize("function", [mean_accepted_token, mean_accepted_block])
@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_ratios_are_finite_and_not_negative(function, bad):
    with pytest.raises(ValueError, match=f"^ratios must be finite and at least 0, got {bad}; "):
        function([[0.5, bad]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_efficiency(0.5), r"^acceptance_rates must have shape .*got the number 0.5"),
        (lambda: mean_accepted_token(0.5), r"^ratios must have shape .*got the number 0.5"),
        (lambda: mean_accepted_block(0.5), r"^ratios must have shape .*got the number 0.5"),
        (lambda: iid_block_efficiency(0.5, -1), "^draft_length .* at least 0, got -1.0"),
        (lambda: iid_block_efficiency(0.5, [1, 2.5]), "^draft_length .* whole number, got 2.5"),
        (lambda: speedup(0.5, []), r"^step_costs must have shape .*got \(0,\)"),
        (lambda: speedup(0.5, 1.0), r"^step_costs must have shape .*got \(\)"),
        (lambda: speedup(0.5, [1, 0]), "^step_costs must be finite and positive, got 0.0"),
        (lambda: speedup(0.5, [1, np.nan]), "^step_costs must be finite and positive, got nan"),
        (lambda: speedup(0.5, [1, 1], -1), "^draft_cost must be finite and at least 0, got -1.0"),
        (lambda: speedup([0.5, 0.5], [1, 1]), r"must broadcast, got shapes \(2,\), \(2,\) and"),
        (lambda: speedup(0.5, np.ones((2, 3)), np.ones(4)), r"must broadcast.* and \(4,\)"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
