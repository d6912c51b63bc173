"""Other forms of the exercise: how they are mapped and read, and what the judge says of them."""

import contextlib
import io

import jax.numpy as jnp
import numpy as np
import pytest

from speculax.conformance import MisuseError, check
from speculax.conformance.candidate import Candidate
from speculax.conformance.judge.adapter import adapt
from speculax.conformance.judge.forms import (
    letters,
    lists,
    mask_and_token,
    single,
    swapped,
    synonyms,
)
from speculax.conformance.judge.kind import KIND
from speculax.conformance.judge.names import map_names, role_of
from speculax.conformance.judge.reading import Reading, read, readings
from speculax.conformance.verifier.call import PARAMETERS
from speculax.conformance.verifier.mutants import CONTROLS, MUTANTS

FORMS = [synonyms, letters, swapped, single, lists, mask_and_token]
QUICK = ["other form", "form", "examples", "random instances", "edges"]

BATCHED = """
import jax.numpy as jnp


def {signature}:
    batch, drafts = x.shape
    b, i = jnp.arange(batch)[:, None], jnp.arange(drafts)[None]
    passed = u * q[b, i, x] < p[b, i, x]
    n = jnp.cumprod(passed.astype(jnp.int32), axis=1).sum(axis=1)
    last = q[jnp.arange(batch), jnp.minimum(n, drafts - 1)]
    w = jnp.maximum(p[jnp.arange(batch), n] - jnp.where((n < drafts)[:, None], last, 0), 0)
    sums = jnp.cumsum(w, axis=1)
    y = jnp.argmax(sums > r[:, None] * sums[:, -1:], axis=1)
    i = jnp.arange(drafts + 1)[None]
    tail = jnp.where(i == n[:, None], y[:, None], -1)
    tokens = jnp.where(i < n[:, None], jnp.pad(x, ((0, 0), (0, 1))), tail)
    return {result}
"""
SINGLE = """
import jax.numpy as jnp


def verify(draft, draft_law, target_law, coins):
    drafts = draft.shape[0]
    i = jnp.arange(drafts)
    passed = coins[:-1] * draft_law[i, draft] < target_law[i, draft]
    n = jnp.cumprod(passed.astype(jnp.int32)).sum()
    last = jnp.where(n < drafts, draft_law[jnp.minimum(n, drafts - 1)], 0)
    sums = jnp.cumsum(jnp.maximum(target_law[n] - last, 0))
    return n, jnp.argmax(sums > coins[-1] * sums[-1])
"""


def candidate_of(text, compiled=True):
    names = {}
    exec(text, names)
    function = next(v for k, v in names.items() if callable(v) and not k.startswith("_"))
    framework = "jax" if compiled else "numpy"
    name = function.__name__
    return adapt(Candidate(function, name, f"my.py:{name}", framework, compiled=compiled))


def numpy_candidate(function):
    name = function.__name__
    return adapt(Candidate(function, name, f"my.py:{name}", "numpy", compiled=False))


def refusals(candidate, level="contract", stages=QUICK):
    return {s for s in stages if KIND.stages[s](candidate, "token", level).failures}


def taken_as(candidate):
    (note,) = KIND.stages["other form"](candidate, "token", "contract").notes
    return note


# --- Whole functions


@pytest.mark.parametrize("form", FORMS)
def test_right_ones_pass_in_every_form(form):
    candidate = numpy_candidate(form(CONTROLS["token"]))
    assert not refusals(candidate, "strict", [*QUICK, "law"])


@pytest.mark.parametrize("form", FORMS)
def test_accepting_everything_is_refused_in_every_form(form):
    candidate = numpy_candidate(form(MUTANTS["AcceptsEverything"]))
    assert refusals(candidate) >= {"examples", "random instances", "edges"}
    found = KIND.diagnose(candidate, "token", "contract")
    assert found is not None
    assert found.name == "AcceptsEverything"


@pytest.mark.parametrize(
    ("signature", "result", "said"),
    [
        ("verify(x, q, p, u, r)", "tokens, n", "tokens, and how many"),
        ("verify(p, q, x, u, r)", "(n, tokens)", "tokens, and how many"),
        ("verify(q, p, x, u, r)", "{'accepted': n, 'output_tokens': tokens}", "how many"),
        ("step(x, p, q, u, r, eps=0.0)", "tokens", "padded with -1"),
        ("verify(*, r, u, p, q, x)", "{'n': n, 'next_token': y}", "the token after them"),
    ],
)
def test_forms_in_jax(signature, result, said):
    candidate = candidate_of(BATCHED.format(signature=signature, result=result))
    assert not refusals(candidate, stages=QUICK[:3])
    assert said in taken_as(candidate)


def test_one_sequence_in_jax():
    candidate = candidate_of(SINGLE)
    assert not refusals(candidate)
    note = taken_as(candidate)
    assert "draft is draft_tokens" in note
    assert "without a batch axis" in note
    assert "in one array" in note


def test_p_and_q_the_other_way_round():
    text = BATCHED.format(signature="verify(x, p, q, u, r)", result="tokens, n")
    text = text.replace("u * q[b, i, x] < p[b, i, x]", "u * p[b, i, x] < q[b, i, x]")
    text = text.replace("last = q[", "last = p[").replace("maximum(p[", "maximum(q[")
    candidate = candidate_of(text)
    assert not refusals(candidate)
    assert "p is draft_probs, q is target_probs" in taken_as(candidate)


def test_a_branch_on_a_traced_value_is_explained():
    candidate = candidate_of(
        SINGLE.replace("    return n,", "    if n > 9:\n        n = 9\n    return n,")
    )
    assert not KIND.stages["other form"](candidate, "token", "contract").failures  # not compiled
    outcome = KIND.stages["form"](candidate, "token", "contract")
    assert "jnp.where" in outcome.failures[0].why
    assert "if n > 9" not in outcome.failures[0].snippet


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "can be read"),
        ("return {'yes': 'no'}", "can be read"),
        ("return x.nothing", "AttributeError"),
    ],
)
def test_what_is_no_verdict(body, said):
    candidate = candidate_of(f"def verify(x, q, p, u, r):\n    {body}\n", compiled=False)
    outcome = KIND.stages["other form"](candidate, "token", "contract")
    assert outcome.stops
    assert said in outcome.failures[0].what


def test_strict_is_robust_without_lengths():
    wrong = numpy_candidate(synonyms(MUTANTS["NaNRowGivesToken"]))  # only strict demands -1
    assert not refusals(wrong, "strict")

    def verify(x, q, p, u, r, *, draft_lengths=None):
        return MUTANTS["NaNRowGivesToken"](x, q, p, u, r, draft_lengths=draft_lengths)

    assert "edges" in refusals(numpy_candidate(verify), "strict")


@pytest.mark.parametrize("form", [synonyms, letters, swapped, single, mask_and_token])
def test_snippets_run(form):
    function = form(MUTANTS["CorrectionFromTarget"])
    candidate = numpy_candidate(function)
    failure = KIND.stages["random instances"](candidate, "token", "contract").failures[0]
    text = failure.snippet.replace("from my import verify", "")
    assert text != failure.snippet
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(text, {"verify": function})
    n, tokens = failure.actual.removeprefix("num_accepted ").split(", tokens ")
    drawn = [int(x) for x in tokens.strip("[]").split(",")][int(n)]
    assert str(drawn) in printed.getvalue()


@pytest.mark.slow  # ten processes
def test_whole_checks(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SINGLE.replace(" * sums[-1]", ""))
    report = check(str(path), kind="judge", level="contract")
    assert not report.passed
    assert report.diagnosis is not None
    assert report.diagnosis.name.startswith("ResidualNotNormalised")
    assert "verify(draft=draft_tokens[b]" in report.stages[2].outcome.failures[0].snippet


# --- Names


@pytest.mark.parametrize(
    ("names", "role"),
    [
        (
            "draft_tokens draft_token_ids draft_ids x draftTokens candidate_input_ids",
            "draft_tokens",
        ),
        ("draft_probs q draft_distributions p_draft q_probs draftProbs small_probs", "draft_probs"),
        ("target_probs p target_distributions p_target big_model_dist p_x", "target_probs"),
        ("accept_uniforms u_accept acceptance_coins accept_rand", "accept_uniforms"),
        (
            "sample_uniforms u_sample bonus_uniform resample_noise final_coin r_next",
            "sample_uniforms",
        ),
        ("u r uniforms random_values coins coin rand", "uniforms"),
        ("key rng prng_key generator seed", "key"),
        ("logits target_logits", "logits"),
        ("gamma k num_draft_tokens draft_length G K", "G"),
        ("vocab_size V", "V"),
        ("draft drafted proposal", "draft"),
        ("stuff eps temperature", ""),
    ],
)
def test_roles(names, role):
    assert {name: role_of(name) for name in names.split()} == dict.fromkeys(names.split(), role)


def mapped(signature):
    names = {}
    exec(f"def verify({signature}): pass", names)
    return map_names(names["verify"], "verify")


@pytest.mark.parametrize(
    ("signature", "order"),
    [
        ("x, q, p, u, r", "x q p u r"),
        ("p_target, p_draft, draft_ids, rand, rand_2", "draft_ids p_draft p_target rand rand_2"),
        ("draft, draft_probs, target, coins, coin", "draft draft_probs target coins coin"),
        ("draft_tokens, draft, target, u, bonus_u", "draft_tokens draft target u bonus_u"),
        ("bonus_coin, coins, x, q, p", "x q p coins bonus_coin"),
        ("x, q, p, u, what", "x q p u what"),
        ("x, q, p, u, r, eps=1e-9, key=None, *rest, **named", "x q p u r"),
        ("*, x, q, p, u, r=None", "x q p u r"),
    ],
)
def test_signatures(signature, order):
    assert list(mapped(signature).names.values()) == order.split()


def test_one_array_of_uniforms():
    mapping = mapped("x, q, p, uniforms")
    assert mapping.is_joint
    assert list(mapping.names) == list(PARAMETERS[:4])


def test_sizes_are_handed_over():
    assert mapped("x, q, p, u, r, gamma, vocab_size").numbers == {"gamma": "G", "vocab_size": "V"}


@pytest.mark.parametrize(
    ("signature", "problem", "hint"),
    [
        ("x, q, p, key", "random numbers from key", "--as keys"),
        ("x, q, p, u, rng", "random numbers from rng", "--as keys"),
        ("x, q_logits, p_logits, u, r", "takes logits, q_logits", "logarithms"),
        ("a, b, c, d, e", "a and b and c and d and e could be anything", "--as verifier"),
        ("x, q, u, r", "none of which seems to be target_probs", "rename"),
        ("x, q, p, u, r, v, s", "v and s could be anything|v", "rename"),
        ("x, q, p, target_probs, u, r", "p and target_probs seem to be the same", "rename"),
        ("", "none of which", "rename"),
    ],
)
def test_what_cannot_be_mapped(signature, problem, hint):
    with pytest.raises(MisuseError) as caught:
        mapped(signature)
    assert any(part in caught.value.problem for part in problem.split("|"))
    assert hint in caught.value.hint


def test_misuse_ends_a_check(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def verify(x, q, p, rng):\n    return x\n")
    with pytest.raises(MisuseError, match="random numbers"):
        check(str(path), kind="judge")


# --- Results

IDS = np.array([3, 2], np.int32)
KEPT = (1, [3, 0, -1])


@pytest.mark.parametrize(
    ("result", "reading"),
    [
        ({"num_accepted": 1, "tokens": [3, 0, -1]}, Reading(1, 0)),
        (([3, 0, -1], 1), Reading(0, 1)),
        ((np.int64(1), np.array([3, 0, -1])), Reading(1, 0)),
        (np.array([3, 0, -1, -1, -1]), Reading(0)),
        ([3, 0], Reading(0)),
        (([3], 0), Reading(0, 1, "token")),
        ((np.array([True, False]), 0), Reading(0, 1, "token")),
        (([True, False], 0), Reading(0, 1, "token")),
        ((1, 0), Reading(None, 0, extra=1)),
        ([[3], 0], Reading(0, 1, "token")),
    ],
)
def test_results_of_one_sequence(result, reading):
    assert reading in list(readings(result, 0))
    n, tokens = read(result, reading, IDS)
    assert (int(n), tokens.tolist()) == KEPT
    assert n.dtype == tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("result", "reading"),
    [
        ([[3, 0], [1, 2, 2]], Reading(0)),
        ((np.array([1, 2]), np.array([0, 2])), Reading(None, 0, extra=1)),
        (jnp.array([[3, 0, -1], [1, 2, 2]]), Reading(0)),
    ],
)
def test_results_of_two_sequences(result, reading):
    assert reading in list(readings(result, 1))
    n, tokens = read(result, reading, np.array([[3, 2], [1, 2]], np.int32))
    assert (n.tolist(), tokens.tolist()) == ([1, 2], [[3, 0, -1], [1, 2, 2]])
