"""The kit over every rule of the library, and over the mutants."""

import re

import jax
import numpy as np
import pytest

from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import KINDS, load_kind
from speculax.conformance.self_test import self_test
from speculax.conformance.verifier import naming
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
QUICK = ("token", "greedy", "sampled")


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
