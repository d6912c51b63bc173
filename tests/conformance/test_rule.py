"""`--as rule`: whatever is kept, the target's law comes out. All specimens are in the self-test."""

import numpy as np
import pytest

from speculax.conformance.candidate import Candidate
from speculax.conformance.rule.kind import KIND
from speculax.conformance.verifier.rules import RULES

STAGES = [stage for stage in KIND.stages if stage not in KIND.on_demand]
TOKEN = type(RULES["token"].control)


def candidate_of(function):
    return Candidate(function, "verify", "my.py:verify", "numpy", compiled=False)


def refusing(function, level="robust", stages=STAGES):
    candidate = candidate_of(function)
    return {s for s in stages if KIND.stages[s](candidate, "lossless", level).failures}


class OneUniform(TOKEN):
    """Lossless, and another rule than any of the package: one uniform a row for all tests."""

    def passes(self, a):
        draft, target = self.draft_at_token(a), self.target_at_token(a)
        ratios = np.where(target > 0, np.minimum(target / np.where(draft > 0, draft, 1e-30), 1), 0)
        ratios = np.where(a.valid, ratios, 0)
        return a.accept[:, :1] < np.cumprod(ratios, axis=1)


class SameUniform(TOKEN):
    """What comes to mind first; the tests are not independent."""

    def passes(self, a):
        a.accept = np.broadcast_to(a.accept[:, :1], a.accept.shape)
        return super().passes(a)


@pytest.mark.parametrize("level", ["contract", "robust", "strict"])
def test_a_rule_of_its_own_passes(level):
    assert not refusing(OneUniform(), level)


def test_tests_that_depend_on_each_other_are_refused():
    assert {"law", "several steps"} <= refusing(SameUniform())


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("AcceptsZeroMass", "hard inputs"),
        ("BareCumsum", "large"),
        ("IgnoresLengths", "in generate"),
        ("BonusFromPaddedRow", "in generate"),
    ],
)
def test_mistakes_are_seen_where_they_show(name, stage):
    assert refusing(RULES["token"].mutants[name], stages=[stage])


def test_a_rule_that_generate_cannot_call_is_told_so():
    def verify(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
        assert draft_probs is not None
        return OneUniform()(
            draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms
        )

    outcome = KIND.stages["in generate"](candidate_of(verify), "lossless", "robust")
    lengths, without = (failure.what for failure in outcome.failures)
    assert "there is no keyword draft_lengths" in lengths
    assert "draft_probs is None" in without
    assert not refusing(verify, "contract")
