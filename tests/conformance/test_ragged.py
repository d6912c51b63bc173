"""Ragged verifiers: right ones pass, each mutant is refused and named, lengths are what matters."""

import contextlib
import io
from functools import partial

import jax
import numpy as np
import pytest

import speculax as sx
from speculax.conformance import MisuseError, check
from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import fault_of
from speculax.conformance.ragged import mutants, naming
from speculax.conformance.ragged.call import PARAMETERS, lay, run
from speculax.conformance.ragged.instances import draw_batches, wrong_requests
from speculax.conformance.ragged.kind import KIND, LOSSLESS
from speculax.conformance.report import LEVELS
from speculax.conformance.verifier.rules import RULES
from tests.slow import slow_but

QUICK = ["form", "random instances", "edges"]
SEGMENTS = """
import jax
import jax.numpy as jnp


def verify(
    draft_tokens, draft_lengths, draft_probs, target_probs, bonus_probs, accept_uniforms,
    sample_uniforms,
):
    size, batch = draft_tokens.shape[0], draft_lengths.shape[0]
    owner = jnp.repeat(jnp.arange(batch), draft_lengths, total_repeat_length=size)
    starts = jnp.cumsum(draft_lengths) - draft_lengths
    draft = jnp.take_along_axis(draft_probs, draft_tokens[:, None], 1)[:, 0]
    target = jnp.take_along_axis(target_probs, draft_tokens[:, None], 1)[:, 0]
    place = jnp.arange(size) - starts[owner]
    failed = jnp.where(accept_uniforms * draft < target, size, place)
    first = jax.ops.segment_min(failed, owner, num_segments=batch)
    n = jnp.minimum(first, draft_lengths)
    at = jnp.minimum(starts + n, size - 1)
    residual = jnp.maximum(target_probs[at] - draft_probs[at], 0)
    weights = jnp.where((n < draft_lengths)[:, None], residual, bonus_probs)
    sums = jnp.cumsum(weights, 1)
    drawn = jnp.argmax(sums > sample_uniforms[:, None] * sums[:, -1:], 1)[:, None]
    i = jnp.arange(size + 1)[None]
    ids = draft_tokens[jnp.minimum(starts[:, None] + i, size - 1)]
    tokens = jnp.where(i < n[:, None], ids, jnp.where(i == n[:, None], drawn, -1))
    return {"num_accepted": n.astype(jnp.int32), "tokens": tokens.astype(jnp.int32)}
"""


def numpy_candidate(function):
    return Candidate(function, "verify", "my.py:verify", "numpy", compiled=False)


def ours(rule):
    def verify(draft_tokens, *rest):
        return sx.verify_ragged(draft_tokens, *rest, max_draft_length=len(draft_tokens), rule=rule)

    return Candidate(verify, "verify", "my.py:verify", "jax", compiled=True)


def refusals(candidate, level, rule="token", stages=QUICK):
    return {s for s in stages if KIND.stages[s](candidate, rule, level).failures}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rule", LOSSLESS)
def test_right_ones_pass(rule, level):
    candidate = numpy_candidate(mutants.control(rule))
    assert not refusals(candidate, level, rule, KIND.stages)
    assert naming.diagnose(candidate, RULES[rule], level) is None


@pytest.mark.parametrize("rule", slow_but(("greedy",), ["token", "greedy"]))
def test_ours_pass_at_the_strict_level(rule):
    assert not refusals(ours(rule), "strict", rule)


@pytest.mark.slow  # compiles for seconds
@pytest.mark.parametrize("rule", LOSSLESS)
def test_ours_pass_all_stages(rule):
    assert not refusals(ours(rule), "strict", rule, KIND.stages)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_no_seed_accuses_a_right_one(rule):
    candidates = [ours(rule), numpy_candidate(mutants.control(rule))]
    for seed in range(200):
        rng = np.random.default_rng([5, seed])
        for arguments in draw_batches(rng, (6, 3, 4), RULES[rule], "contract", 1):
            assert not any(wrong_requests(c, RULES[rule], arguments) for c in candidates), seed


def test_there_are_enough_mutants():
    assert len(mutants.MUTANTS) >= 20


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_each_mutant_is_refused_and_named(name):
    candidate = numpy_candidate(mutants.MUTANTS[name])
    assert refusals(candidate, "strict", stages=QUICK[1:])
    found = naming.diagnose(candidate, RULES["token"], "strict")
    assert found is not None
    assert found.name == name
    assert found.fault == fault_of(mutants.MUTANTS[name])


def test_padding_is_beyond_the_contract():
    candidate = numpy_candidate(mutants.LastTakesPadding())
    assert not refusals(candidate, "contract")
    assert refusals(candidate, "robust") == {"random instances"}


def test_an_engines_layout_in_jax(tmp_path):
    path = tmp_path / "flat.py"
    path.write_text(SEGMENTS)
    assert check(str(path), kind="ragged", level="contract").passed


@pytest.mark.slow
def test_a_mistake_in_jax_is_named(tmp_path):
    path = tmp_path / "flat.py"
    path.write_text(SEGMENTS.replace("sample_uniforms[:, None]", "sample_uniforms[0]"))
    report = check(str(path), kind="ragged", level="contract")
    assert not report.passed
    assert report.diagnosis is not None
    assert report.diagnosis.name == "OneUniformForAll"


def test_a_width_that_depends_on_values_is_explained(tmp_path):
    path = tmp_path / "flat.py"
    path.write_text(
        SEGMENTS.replace("jnp.arange(size + 1)", "jnp.arange(int(draft_lengths.max()) + 1)")
    )
    (stage,) = check(str(path), kind="ragged", level="contract").stages
    assert "T + 1" in stage.outcome.failures[0].why


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "None"),
        ((1, 2), "a tuple"),
        ({"tokens": 1}, "keys"),
        (
            {"num_accepted": np.zeros(2, np.int32), "tokens": np.zeros((4, 7))},
            "num_accepted of shape",
        ),
        ({"num_accepted": np.zeros(4, np.int32), "tokens": np.zeros((4, 3))}, "at least 4"),
        ({"num_accepted": np.zeros(4, np.int32), "tokens": np.zeros(4)}, "at least 4"),
    ],
)
def test_what_is_no_verdict(result, said):
    candidate = numpy_candidate(lambda *arguments: result)
    outcome = KIND.stages["form"](candidate, "token", "contract")
    assert outcome.stops
    assert said in outcome.failures[0].what


def test_wrong_dtypes_and_padding():
    def floats(*arguments):
        result = mutants.Ragged()(*arguments)
        return result | {"tokens": result["tokens"].astype(np.float32)}

    def zeros(*arguments):
        result = mutants.Ragged()(*arguments)
        return result | {"tokens": np.maximum(result["tokens"], 0)}

    (failure,) = KIND.stages["form"](numpy_candidate(floats), "token", "contract").failures
    assert "dtype" in failure.what
    failures = KIND.stages["form"](numpy_candidate(zeros), "token", "contract").failures
    assert all("not -1" in failure.what for failure in failures)


def test_the_snippet_shows_the_failure():
    wrong = numpy_candidate(mutants.BonusOfFirstRequest())
    failure = KIND.stages["random instances"](wrong, "token", "contract").failures[0]
    text = failure.snippet.replace("from my import verify", "").replace("verify(", "print(verify(")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(
            text + ")",
            {"verify": lambda **named: mutants.BonusOfFirstRequest()(**named)["tokens"].tolist()},
        )
    assert failure.actual.partition("tokens ")[2] in printed.getvalue()
    assert failure.expected != failure.actual


def test_misuse(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("def verify(a, b):\n    return a\n")
    with pytest.raises(MisuseError, match="bonus_probs"):
        check(str(path), kind="ragged")
    assert KIND.parameters == PARAMETERS


def test_requests_are_laid_end_to_end():
    rng = np.random.default_rng(1)
    (arguments,) = draw_batches(rng, (8, 4, 4), RULES["token"], "contract", 1)
    again = lay(arguments.requests())
    jax.tree.map(np.testing.assert_array_equal, again, arguments)
    result = run(numpy_candidate(partial(mutants.Ragged())), arguments)
    assert result.tokens.shape == (4, 9)
