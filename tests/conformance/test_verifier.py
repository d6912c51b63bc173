"""The kit over every rule of the library, and over the mutants."""

import re

import jax
import numpy as np
import pytest

from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import KINDS, load_kind
from speculax.conformance.self_test import self_test
from speculax.conformance.verifier import grid, instances, naming
from speculax.conformance.verifier.call import as_verifier
from speculax.conformance.verifier.kind import KIND
from speculax.conformance.verifier.rules import RULES

from .code import NAMED, RIGHT, changed, last_line

SPECIMENS = {specimen.name: specimen for specimen in KIND.specimens()}
STAGES = [stage for stage in KIND.stages if stage not in KIND.on_demand]
# Stages of one mutant each, so that each stage is seen to fail; all of them are in the self-test.
CAUGHT = {
    "form": "NaNDraftSubtracted",
    "examples": "AcceptsEverything",
    "random instances": "CorrectionFromTarget",
    "edges": "WrapsIds",
    "large": "BareCumsum",
    "law": "SampledDraftAsPointMass",
    "several steps": "BonusFromLastDraftRow",
}


def candidate_of(text):
    names = {}
    exec(text, names)
    return Candidate(names["verify"], "verify", "my.py:verify", "jax", compiled=True)


# The other rules compile for half a minute each; edges and laws of all are in tests/verify.
QUICK = ("greedy",)


@pytest.mark.parametrize(
    "rule",
    [rule if rule in QUICK else pytest.param(rule, marks=pytest.mark.slow) for rule in RULES],
)
def test_ours_pass_at_the_strict_level(rule):
    candidate = SPECIMENS[f"speculax, {rule}"].make()
    for stage in STAGES:
        outcome = KIND.stages[stage](candidate, rule, "strict")
        assert not outcome.failures, (stage, outcome.failures)
    assert naming.diagnose(candidate, RULES[rule], "strict") is None


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_fail(stage):
    specimen = SPECIMENS[CAUGHT[stage]]
    assert KIND.stages[stage](specimen.make(), specimen.rule, "strict").failures


FORMS = {
    "None": (last_line("return None"), "returned None"),
    "a tuple": (last_line("return n, tokens"), "returned a tuple, not a dict"),
    "wrong keys": (last_line("return {'n': n, 'tokens': tokens}"), r"keys \['n', 'tokens'\]"),
    "a wrong dtype": (changed('n.astype(jnp.int32), ', 'n.astype(jnp.float32), '), "wrong dtype"),
    "a wrong shape": (changed('tokens.astype(jnp.int32)}', 'drawn}'), "tokens of shape"),
    "padding with 0": (changed("drawn[:, None], -1)", "drawn[:, None], 0)"), "is not -1"),
    "an exception": (last_line("raise ValueError('no way')"), "raises ValueError, in line"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_wrong_forms(form):
    text, message = FORMS[form]
    failures = KIND.stages["form"](candidate_of(text), "token", "contract").failures
    assert re.search(message, failures[0].what)


def test_retracing_is_seen():
    inner = candidate_of(RIGHT).function

    def verify(*arrays):
        jax.clear_caches()
        return inner(*arrays)

    candidate = Candidate(verify, "verify", "my.py:verify", "jax", compiled=True)
    failures = KIND.stages["form"](candidate, "token", "contract").failures
    assert any("trace the function again" in failure.what for failure in failures)


# --- Right functions that are easily accused


def refusals(candidate, rule, level, stages=STAGES):
    return {stage for stage in stages if KIND.stages[stage](candidate, rule, level).failures}


def numpy_candidate(function):
    return Candidate(function, "verify", "my.py:verify", "numpy", compiled=False)


@pytest.mark.parametrize("rule", ["token", "sampled"])
def test_sums_in_single_precision_pass_by_contract(rule):
    """They rise at tokens without weight (robust demands otherwise), but not far off."""

    class InSinglePrecision(type(RULES[rule].control)):
        def draw(self, weights, uniform):
            cumulative = np.cumsum(weights.astype(np.float32), axis=1)
            return (cumulative <= uniform.astype(np.float32)[:, None] * cumulative[:, -1:]).sum(1)

    candidate = numpy_candidate(InSinglePrecision())
    assert not refusals(candidate, rule, "contract", ["examples", "random instances", "law"])


def test_a_wrapper_that_takes_anything_passes_by_contract():
    right = candidate_of(RIGHT).function

    def verify(*arrays, **named):
        return right(*arrays, **named)

    candidate = Candidate(verify, "verify", "my.py:verify", "jax", compiled=True)
    assert not refusals(candidate, "token", "contract", ["edges"])
    assert naming.diagnose(candidate, RULES["token"], "contract") is None


def test_one_that_writes_into_its_inputs_is_told_so_and_judged_by_its_results():
    def verify(*arrays, **named):
        result = RULES["token"].control(*arrays, **named)
        for array in arrays:
            if array is not None:
                array[...] = 0
        return result

    candidate = numpy_candidate(verify)
    assert not refusals(candidate, "token", "strict", ["random instances", "large"])
    assert not KIND.stages["form"](candidate, "token", "contract").failures
    (failure,) = KIND.stages["form"](candidate, "token", "robust").failures
    assert failure.what.startswith("it writes into draft_tokens and draft_probs and")


# --- Wrong ones whose fault shows oddly


def test_an_id_beyond_the_vocabulary_is_told():
    class OneBeyond(type(RULES["token"].control)):
        def draw(self, weights, uniform):
            return np.full(len(weights), weights.shape[1])

    outcome = KIND.stages["large"](numpy_candidate(OneBeyond()), "token", "robust")
    end, masked, *_ = outcome.failures
    assert "tokens [1030, 1030, 1030]" in end.actual
    assert "token without probability" in masked.what
    assert "token 262144" in masked.actual


def test_an_exception_that_comes_later_is_told():
    calls = 0

    def verify(*arrays, **named):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise ValueError("now and then")
        return RULES["token"].control(*arrays, **named)

    candidate = Candidate(verify, "verify", "my.py:verify", "numpy", compiled=False)
    outcome = KIND.stages["form"](candidate, "token", "contract")
    assert "raises ValueError, in line" in outcome.failures[0].what
    assert not outcome.stops


def test_noise_of_its_own_is_told():
    rng = np.random.default_rng(0)

    def verify(*arrays, **named):
        result = RULES["block"].control(*arrays, **named)
        result["tokens"][rng.random(len(arrays[0])) < 0.1, 0] = 0
        return result

    outcome = KIND.stages["law"](numpy_candidate(verify), "block", "contract")
    assert "is it a function of its arguments only?" in outcome.failures[0].what


def test_what_is_no_array_of_integers_is_told():
    def verify(*arrays, **named):
        result = RULES["token"].control(*arrays, **named)
        return {name: array.astype(np.float32) for name, array in result.items()}

    outcome = KIND.stages["law"](numpy_candidate(verify), "token", "contract")
    assert "returned num_accepted of float32, not of integers" in outcome.failures[0].what


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of JAX, for what it refuses after
def test_a_generator_is_told():
    def verify(*arrays):
        yield arrays

    candidate = Candidate(verify, "verify", "my.py:verify", "jax", compiled=True)
    (failure,) = KIND.stages["form"](candidate, "token", "contract").failures
    assert "it returned a generator, which jax.jit does not take" in failure.what


@pytest.mark.slow  # compiles for a minute
@pytest.mark.parametrize("rule", RULES)
def test_no_seed_accuses_ours(rule):
    """200 seeds of instances of each size; and of laws on the grid, where thresholds lie on it."""
    candidate = SPECIMENS[f"speculax, {rule}"].make()
    for number, size in enumerate(instances.SIZES):
        for seed in range(200):
            rng = np.random.default_rng([7, number, seed])
            arguments = next(instances.draw_instances(rng, *size, RULES[rule].row))
            assert not instances.compare(candidate, RULES[rule], arguments)
    if rule in ("token", "sampled"):
        for seed in range(200):
            laws = grid.Laws(seed)
            step = grid.step_law(as_verifier(candidate), laws)
            size = grid.DRAFTS + 1
            assert grid.law_of_tokens(step, laws, size) == grid.target_law(laws, size)


def test_there_are_enough_mutants():
    names = [name for rule in RULES.values() for name in rule.mutants]
    assert len(names) >= 80
    assert sum(name.startswith("Block") for name in names) >= 10


@pytest.mark.parametrize("name", NAMED)
def test_mistakes_in_jax_are_named(name):
    found = naming.diagnose(candidate_of(NAMED[name]), RULES["token"], "contract")
    assert found is not None
    assert found.name == name
    assert found.fault


def test_a_mistake_that_is_not_known_gets_no_name():
    odd = RIGHT.replace("drawn[:, None], -1)", "(drawn[:, None] + 1) % weights.shape[1], -1)")
    assert odd != RIGHT
    assert naming.diagnose(candidate_of(odd), RULES["token"], "contract") is None


def test_the_right_function_gets_none():
    assert naming.diagnose(candidate_of(RIGHT), RULES["token"], "contract") is None


@pytest.mark.slow  # minutes
def test_self_test():
    trials = self_test()
    assert {trial.kind for trial in trials} == set(KINDS)
    assert not [trial.name for trial in trials if not trial.as_it_should]
    mutants = [trial for trial in trials if trial.fault is not None]
    assert np.mean([trial.named == trial.name for trial in mutants]) >= 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_whole(kind):
    known = load_kind(kind)
    assert known.name == kind
    assert known.rules
    assert known.on_demand <= set(known.stages)
    assert {specimen.rule for specimen in known.specimens()} <= set(known.rules)
