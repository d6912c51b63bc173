"""Verifiers that take a key: right ones pass, each mutant is refused and named, power is true."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from scipy.stats import kstest

from speculax.conformance import MisuseError, check
from speculax.conformance.candidate import Candidate, find
from speculax.conformance.keys import law, mutants, naming
from speculax.conformance.keys.call import PARAMETERS
from speculax.conformance.keys.edges import edges_of
from speculax.conformance.keys.joint import LAWS, count_steps, exact_laws, target_law
from speculax.conformance.keys.kind import KIND, OURS, coupled, with_key
from speculax.conformance.report import LEVELS
from speculax.conformance.verifier.rules import RULES
from tests.slow import slow_but

TEXT = """
import jax
import jax.numpy as jnp


def verify(draft_tokens, draft_probs, target_probs, key):
    batch, drafts = draft_tokens.shape
    accept_key, draw_key = jax.random.split(key)
    uniforms = jax.random.uniform(accept_key, (batch, drafts))
    b, i = jnp.arange(batch)[:, None], jnp.arange(drafts)[None]
    target, draft = target_probs[b, i, draft_tokens], draft_probs[b, i, draft_tokens]
    passed = uniforms * draft < target
    n = jnp.cumprod(passed.astype(jnp.int32), axis=1).sum(axis=1)
    weights = target_probs[jnp.arange(batch), n]
    if drafts:
        row = draft_probs[jnp.arange(batch), jnp.minimum(n, drafts - 1)]
        weights = jnp.maximum(weights - jnp.where((n < drafts)[:, None], row, 0), 0)
    drawn = jax.random.categorical(draw_key, jnp.log(weights))
    i = jnp.arange(drafts + 1)[None]
    tail = jnp.where(i == n[:, None], drawn[:, None], -1)
    tokens = jnp.where(i < n[:, None], jnp.pad(draft_tokens, ((0, 0), (0, 1))), tail)
    return {"num_accepted": n.astype(jnp.int32), "tokens": tokens.astype(jnp.int32)}
"""


def changed(old, new):
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


NAMED = {
    "CorrectionFromTarget": changed("jnp.where((n < drafts)[:, None], row, 0), 0)", "0, 0)"),
    "TargetRowShifted": changed("target_probs[b, i, draft", "target_probs[b, i + 1, draft"),
    "CountsBeyondFirstFailure": changed("jnp.cumprod(passed.astype(jnp.int32), axis=1)", "passed"),
    "KeyIgnored": changed("split(key)", "split(jax.random.key(0))"),
    "OneNoiseForAllTests": changed("accept_key, (batch, drafts)", "accept_key, (batch, 1)"),
    "BonusFromLastDraftRow": changed("(batch), n]", "(batch), jnp.minimum(n, drafts - 1)]"),
}  # fmt: skip


def numpy_candidate(function):
    return Candidate(function, "verify", "my.py:verify", "numpy", compiled=False)


def ours(rule):
    return Candidate(partial(with_key, rule=rule), "verify", "my.py:verify", "jax", compiled=True)


def of_text(text, tmp_path, **options):
    path = tmp_path / "my.py"
    path.write_text(text)
    return find(str(path), PARAMETERS, **options)


def refusals(candidate, level, rule="token", stages=KIND.stages):
    return {s for s in stages if KIND.stages[s](candidate, rule, level).failures}


# --- Right ones


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rule", OURS)
def test_right_ones_pass(rule, level):
    candidate = numpy_candidate(mutants.control(rule))
    assert not refusals(candidate, level, rule)
    assert naming.diagnose(candidate, rule, level) is None


@pytest.mark.parametrize("rule", OURS)
def test_ours_pass(rule):
    assert not refusals(ours(rule), "strict", rule, ["edges", "law"])


def test_the_coupled_verifier_passes():
    candidate = Candidate(coupled, "verify", "my.py:verify", "jax", compiled=True)
    assert not refusals(candidate, "strict", "sampled")


@pytest.mark.slow  # compiles for seconds
@pytest.mark.parametrize("rule", OURS)
def test_ours_pass_all_stages(rule):
    assert not refusals(ours(rule), "strict", rule)
    assert naming.diagnose(ours(rule), rule, "strict") is None


def test_one_in_jax_passes_by_contract(tmp_path):
    candidate = of_text(TEXT, tmp_path)
    assert not refusals(candidate, "contract")
    assert refusals(candidate, "robust") == {"edges"}


@pytest.mark.parametrize(("rule", "other"), [("token", "block"), ("block", "token")])
def test_the_other_rule_is_refused(rule, other):
    """The text is right, but accepted as another rule does."""
    outcome = KIND.stages["law"](numpy_candidate(mutants.control(other)), rule, "contract")
    assert outcome.failures
    assert all(law.ACCEPTED in failure.what for failure in outcome.failures)


# --- Wrong ones


@pytest.mark.parametrize(
    ("rule", "name"), [(rule, name) for rule in OURS for name in mutants.mutants_of(rule)]
)
def test_each_mutant_is_refused_and_named(rule, name):
    candidate = numpy_candidate(mutants.mutants_of(rule)[name])
    assert refusals(candidate, "strict", rule)
    found = naming.diagnose(candidate, rule, "strict")
    assert found is not None
    # A row that always emits its draft gets the same verdict by all keys.
    assert found.name == {"SampledEmitsDraft": "OneNoiseForTheBatch"}.get(name, name)
    assert found.fault


@pytest.mark.parametrize("name", slow_but(list(NAMED)[:2], NAMED))
def test_mistakes_in_jax_are_named(name, tmp_path):
    candidate = of_text(NAMED[name], tmp_path)
    assert refusals(candidate, "contract", stages=["form", "law"])
    found = naming.diagnose(candidate, "token", "contract")
    assert found is not None
    assert found.name == name


def test_a_key_that_is_not_split_is_refused(tmp_path):
    text = changed("accept_key, draw_key = jax.random.split(key)", "accept_key = draw_key = key")
    assert refusals(of_text(text, tmp_path), "contract") == {"law"}


@pytest.mark.parametrize("rule", OURS)
def test_what_no_key_shows_has_the_right_law(rule):
    """Else it would be among those that must be refused."""
    right = exact_laws(RULES[rule].control)
    for name in mutants.UNSEEN & {*RULES[rule].mutants}:
        for laws, exact in exact_laws(RULES[rule].mutants[name]).items():
            for want, got in zip(right[laws][:2], exact[:2], strict=True):
                np.testing.assert_allclose(got, want, atol=2e-3, err_msg=name)


# --- Power, and false alarms


@pytest.mark.parametrize("rule", OURS)
def test_the_power_against_each_mutant_is_told(rule):
    notes = " ".join(law.notes(rule))
    assert "accused with a chance of 1e-06" in notes
    assert all(name in notes for name in [*RULES[rule].mutants, *mutants.mutants_of(rule)])
    powers = law.power_against(rule)
    assert sum(power > 0.999 for power, _ in powers.values()) >= len(powers) // 2
    assert all(power > 0.999 or distance < 1e-5 for power, distance in powers.values())


def test_exact_laws_are_those_that_are_counted():
    for name in ("BlockOneUniform", "BlockWeightOfPrefixBefore"):
        mutant = mutants.mutants_of("block")[name]
        for laws, exact in law.exact_mutants("block")[name].items():
            counts = count_steps(numpy_candidate(mutant), laws, calls=40)
            joint, accepted = (x[:-1] / x.sum() for x in (counts.joint, counts.accepted))
            np.testing.assert_allclose(joint, exact.joint, atol=4e-3)
            np.testing.assert_allclose(accepted, exact.accepted, atol=4e-3)
            assert counts.joint[-1] == 0


def test_exact_laws_of_right_ones():
    for rule in OURS:
        for laws, exact in exact_laws(RULES[rule].control).items():
            np.testing.assert_allclose(exact.joint, target_law(laws), atol=2e-6)
            np.testing.assert_allclose(exact.accepted.sum(), 1)
            np.testing.assert_allclose(exact.verdicts.sum(axis=1), 1)


def test_laws_of_hard_rows_are_those_of_the_oracle():
    rng = np.random.default_rng(3)
    for rule in OURS:
        for edges in edges_of(rule, "strict"):
            for c, expected in enumerate(edges.laws):
                step = edges.step.take(np.array([c]))
                draft = None if step.draft_probs is None else step.draft_probs[0]
                for _ in range(20):
                    n, tokens = RULES[rule].row(
                        step.draft_tokens[0], draft, step.target_probs[0],
                        rng.random(2, np.float32), rng.random(dtype=np.float32),
                    )  # fmt: skip
                    assert expected.get((n, *tokens), 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", OURS)
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "float64"])
def test_p_values_are_uniform(rule, is_ours):
    """Over 200 seeds, those of each test."""
    candidate = ours(rule) if is_ours else numpy_candidate(mutants.control(rule))
    found = [law.p_values(candidate, rule, seed) for seed in range(1, 201)]
    assert len(found[0]) == law.TESTS == 3 * len(LAWS)
    for test in found[0]:
        assert kstest([p_values[test] for p_values in found], "uniform").pvalue > 1e-4, test
    assert min(min(p_values.values()) for p_values in found) > law.FALSE_ALARM / law.TESTS


# --- Form and misuse


FORMS = {
    "None": ("    return {", "    return None\n    return {", "returned None"),
    "padding": ("drawn[:, None], -1)", "drawn[:, None], 0)", "is not -1"),
    "a dtype": (
        '"tokens": tokens.astype(jnp.int32)',
        '"tokens": tokens.astype(jnp.float32)',
        "wrong dtype",
    ),
    "keys": ('"num_accepted"', '"n"', "returned the keys"),
    "a branch": ("    if drafts:", "    if n[0] > 1: pass\n    if drafts:", "a Python if"),
}


@pytest.mark.parametrize("form", FORMS)
def test_wrong_forms(tmp_path, form):
    old, new, message = FORMS[form]
    outcome = KIND.stages["form"](of_text(changed(old, new), tmp_path), "token", "contract")
    assert re.search(message, outcome.failures[0].what)


def test_failures_can_be_pasted(tmp_path, monkeypatch):
    candidate = of_text(NAMED["TargetRowShifted"], tmp_path)
    failures = KIND.stages["edges"](candidate, "token", "contract").failures
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {}
    exec(failures[0].snippet.replace("\nverify(", "\nresult = verify("), names)
    told = [int(x) for x in re.search(r"tokens \[(.*)\], in", failures[0].actual)[1].split(",")]
    assert told in names["result"]["tokens"].tolist()


def test_numpy_gets_the_seed(tmp_path):
    text = """
import numpy as np
from speculax.conformance.verifier.mutants import CONTROLS


def verify(draft_tokens, draft_probs, target_probs, key):
    rng = np.random.default_rng(key)
    batch, drafts = draft_tokens.shape
    accept, sample = rng.random((batch, drafts)), rng.random(batch)
    return CONTROLS["token"](draft_tokens, draft_probs, target_probs, accept, sample)
"""
    assert not refusals(of_text(text, tmp_path, use_jit=False), "strict")


@pytest.mark.slow  # a process for each stage
def test_a_whole_check(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(NAMED["CorrectionFromTarget"])
    report = check(str(path), kind="keys", level="contract")
    assert not report.passed
    assert report.diagnosis.name == "CorrectionFromTarget"


def test_misuse(tmp_path):
    with pytest.raises(MisuseError, match="no function with the parameters"):
        of_text("def verify(draft_tokens, key):\n    return draft_tokens\n", tmp_path)
    with pytest.raises(MisuseError, match="no rule 'greedy' for --as keys"):
        check("speculax:verify_token", kind="keys", rule="greedy")


def test_a_key_of_jax_is_typed():
    seen = []

    def verify(draft_tokens, draft_probs, target_probs, key):
        seen.append(jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key))
        return with_key(draft_tokens, draft_probs, target_probs, key)

    KIND.stages["form"](
        Candidate(verify, "verify", "my.py:verify", "jax", compiled=False), "token", "contract"
    )
    assert all(seen)
