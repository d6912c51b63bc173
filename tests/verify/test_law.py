"""The proof: the law of the emitted tokens, counted exactly by `conformance.verifier.grid`."""

import jax
import numpy as np
import pytest

import speculax as sx
from speculax.conformance.verifier import mutants, oracle
from speculax.conformance.verifier.grid import (
    SEQUENCES,
    UNIFORMS,
    Laws,
    dense_failures,
    dense_point_mass_failures,
    greedy_failures,
    point_mass_failures,
    several_steps_failures,
    short_failures,
    short_point_mass_failures,
    step_law,
)

TOKEN, GREEDY = jax.jit(sx.verify_token), jax.jit(sx.verify_greedy)


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
    "LosesLastTile",
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
