"""Generation loops: right ones pass, each mutant is refused and named, chance keeps its word."""

import contextlib
import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from speculax.conformance import MisuseError, check
from speculax.conformance.candidate import Candidate
from speculax.conformance.generate import law, mutants, naming
from speculax.conformance.generate.acceptance import watch
from speculax.conformance.generate.kind import KIND
from speculax.conformance.generate.laws import EQUAL, LAWS, MASKED, MIXED, UNLIKE
from speculax.conformance.generate.ours import OursLoop
from speculax.conformance.kind import as_candidate

# Written apart from `mutants.Loop`: it asks the target only as far as it must.
LAZY = """
import numpy as np


def generate(target, drafter, prompt, max_new_tokens, eos, seed):
    rng = np.random.default_rng(seed)
    ids, end = list(prompt), len(prompt) + max_new_tokens
    while len(ids) < end:
        drafts, rows = [], []
        for _ in range(4):
            row = drafter(ids + drafts)
            rows.append(row)
            drafts.append(int(rng.choice(len(row), p=row)))
        n, law = 0, target(ids)
        while n < 4 and rng.random() * rows[n][drafts[n]] < law[drafts[n]]:
            n += 1
            law = target(ids + drafts[:n])
        if n < 4:
            law = np.maximum(law - rows[n], 0)
        new = drafts[:n] + [int(rng.choice(len(law), p=law / law.sum()))]
        new = new[: end - len(ids)]
        if eos in new:
            return (ids + new[: new.index(eos) + 1])[len(prompt):]
        ids += new
    return ids[len(prompt):]
"""


class Matching(mutants.Loop):
    """A draft token is kept if the target's own draw is the same, correct."""

    def passes(self, step, i):
        return step.drafts[i] == mutants.draw(step.target[i], step.coins[1, i])

    def run(self, step, n):
        return [*step.drafts[:n], mutants.draw(step.target[n], step.coins[1, n])]


class Tuples(mutants.Loop):
    def __call__(self, *arguments):
        return tuple(super().__call__(*arguments))


def refusals(loop, level="strict"):
    candidate = as_candidate(loop)
    return {s for s, stage in KIND.stages.items() if stage(candidate, "lossless", level).failures}


def lazy(*changes):
    text = LAZY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    names = {}
    exec(text, names)
    return names["generate"]


@pytest.mark.parametrize(
    "loop",
    [
        *(mutants.Loop(length) for length in (1, 2, 5)),
        *(mutants.BlockLoop(length) for length in (1, 3)),
        mutants.PlainLoop(),
        Matching(1),
        Matching(4),
        lazy(),
    ],
    ids=lambda loop: f"{type(loop).__name__}-{getattr(loop, 'draft_length', '')}",
)
def test_right_loops_pass(loop):
    assert not refusals(loop)


@pytest.mark.parametrize("loop", [mutants.BlockLoop(), mutants.PlainLoop(), Matching(), lazy()])
def test_right_loops_get_no_name(loop):
    assert naming.diagnose(as_candidate(loop), "lossless", "contract") is None


@pytest.mark.slow  # ten thousand texts, a call of the verifier for each step
def test_a_loop_around_ours_passes():
    assert not refusals(OursLoop())


def test_the_loop_of_the_docs_passes():
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    candidate = Candidate(names["generate"], "generate", "my.py:generate", "numpy", compiled=False)
    for name, stage in KIND.stages.items():
        assert not stage(candidate, "lossless", "robust").failures, name


def test_ways_to_use_drafts_are_noted():
    def notes(loop):
        return KIND.stages["acceptance"](as_candidate(loop), "lossless", "strict").notes

    assert "never asked" in notes(mutants.PlainLoop())[0]
    for length in (1, 3, 5):
        assert "as chance has it" in notes(Matching(length))[0]
        assert not notes(mutants.Loop(length))


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_each_mutant_is_refused(name):
    candidate = as_candidate(mutants.MUTANTS[name]())
    stages = KIND.stages.values()
    assert any(stage(candidate, "lossless", "strict").failures for stage in stages)


def test_there_are_enough_mutants():
    assert len(mutants.MUTANTS) >= 30


@pytest.mark.parametrize("name", ["EmitsPastEos", "PromptExtended", "NeedsEos", "KeepsLastOfRun"])
def test_mistakes_are_named(name):
    found = naming.diagnose(as_candidate(mutants.MUTANTS[name](4)), "lossless", "robust")
    assert found is not None
    assert found.name == name


@pytest.mark.slow  # every mutant's law is counted
def test_nearly_all_mutants_are_named():
    named = {
        name: naming.diagnose(as_candidate(mutant()), "lossless", "strict")
        for name, mutant in mutants.MUTANTS.items()
    }
    right = [found is not None and found.name == name for name, found in named.items()]
    assert np.mean(right) >= 0.9, named


@pytest.mark.slow  # laws of mutants with another draft length are counted
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([("p=law / law.sum()", "p=target(ids + drafts[:n])")], "CorrectionFromTarget"),
        ([("(ids + new[: new.index(eos) + 1])", "(ids + new)")], "EmitsPastEos"),
        ([("new = new[: end - len(ids)]", "pass")], "LastRunNotCut"),
        ([("drafter(ids + drafts)", "drafter(ids[:-1] + drafts)")], "DraftContextLacksLast"),
        ([("default_rng(seed)", "default_rng(0)")], "OneSeedForAll"),
        ([("int(rng.choice(len(row), p=row))", "int(np.argmax(row))")], "ArgmaxDraftAsSampled"),
    ],
)  # fmt: skip
def test_mistakes_of_another_hand_are_named(changes, name):
    found = naming.diagnose(as_candidate(lazy(*changes)), "lossless", "robust")
    assert found is not None
    assert found.name == name


@pytest.mark.slow
def test_a_mistake_that_is_not_known_gets_no_name():
    odd = lazy(("rng.random()", "rng.random() ** 3"))
    assert refusals(odd, "contract") == {"law"}
    assert naming.diagnose(as_candidate(odd), "lossless", "contract") is None


@pytest.mark.parametrize("name", ["PromptEosEndsText", "PromptExtended"])
def test_levels(name):
    assert not refusals(mutants.MUTANTS[name](), "contract")
    assert refusals(mutants.MUTANTS[name](), "robust")


def test_strict_is_about_lists_and_empty_prompts():
    def no_empty_prompt(target, drafter, prompt, *rest):
        prompt[-1]
        return mutants.Loop()(target, drafter, prompt, *rest)

    assert not refusals(Tuples(), "robust")
    assert "form" in refusals(Tuples())
    assert not refusals(no_empty_prompt, "robust")
    assert refusals(no_empty_prompt) == {"form", "greedy"}


# --- Laws and chance


@pytest.mark.parametrize("laws", LAWS, ids=lambda laws: laws.name)
def test_joint_laws(laws):
    joint = laws.joint([1], 3)
    np.testing.assert_allclose(joint.sum(), 1)
    for text in itertools.product(range(4), repeat=3):
        ids, probability = [1], 1.0
        for token in text:
            probability *= laws.target(ids)[token]
            ids.append(token)
        np.testing.assert_allclose(joint[text], probability)
    for places, marginal in law.exact(laws.name):
        np.testing.assert_allclose(marginal.sum(), 1)
        assert len(marginal) == 4 ** len(places)


def test_masked_rows_rule_tokens_out_on_both_sides():
    zeros = [(MASKED.target_rows[w] == 0, MASKED.draft_rows[w] == 0) for w in MASKED.target_rows]
    assert any((t & ~d).any() for t, d in zeros)
    assert any((d & ~t).any() for t, d in zeros)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="ids are 0 to 3"):
        UNLIKE.target([0, 4])


def test_a_text_that_cannot_be_is_an_alarm():
    texts = np.zeros((100, law.LENGTH), int)
    impossible = int(np.flatnonzero(MASKED.target([*law.PROMPT]) == 0)[0])
    texts[:, 0] = impossible
    assert min(law.test(texts, MASKED)) == 0


@pytest.mark.slow  # a hundred thousand texts
@pytest.mark.parametrize("laws", [UNLIKE, MIXED], ids=lambda laws: laws.name)
def test_p_values_of_right_loops_are_uniform(laws):
    candidate = as_candidate(mutants.Loop())
    runs = [law.test(law.draw_texts(candidate, laws, 1000 * i, 400), laws) for i in range(200)]
    for p_values in np.transpose(runs)[[0, 3, len(law.PLACES) - 1]]:
        assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-3
    assert np.min(runs) > law.FALSE_ALARM / len(law.PLACES)


def test_refusals_are_seen():
    def refused(loop):
        return watch(as_candidate(loop), EQUAL, range(20)).refused

    assert refused(mutants.Loop(4)) == refused(mutants.BlockLoop()) == 0
    assert refused(mutants.DraftContextLacksLast()) > 20


# --- Manners


def test_whole_checks(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LAZY)
    report = check(str(path), kind="generate", level="contract")
    assert report.passed
    assert [stage.name for stage in report.stages] == list(KIND.stages)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "None"),
        ("1, 2", "a str"),
        ({"tokens": [1]}, "a dict"),
        ([[1, 2]], "no flat list|not a flat list"),
        ([0.5], "no integers"),
        (3, "an int|a int"),
    ],
)
def test_what_is_no_text(result, said):
    candidate = Candidate(lambda *arguments: result, "f", "my.py:f", "numpy", compiled=False)
    outcome = KIND.stages["form"](candidate, "lossless", "contract")
    assert outcome.stops
    assert any(word in outcome.failures[0].what for word in said.split("|"))


def test_an_exception_is_told():
    def broken(target, drafter, prompt, max_new_tokens, eos, seed):
        return [target([9])]

    candidate = as_candidate(broken)
    for name, stage in KIND.stages.items():
        failure = stage(candidate, "lossless", "contract").failures[0]
        assert "ValueError" in failure.what, name
        assert "ids are 0 to 3" in failure.actual


def test_misuse(tmp_path):
    path = tmp_path / "other.py"
    path.write_text("def generate(prompt, seed):\n    return prompt\n")
    with pytest.raises(MisuseError, match="max_new_tokens"):
        check(str(path), kind="generate")


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("GoesOnAfterEos", "stopping"),
        ("KeepsLastOfRun", "greedy"),
        ("LastRunNotCut", "form"),
        ("CorrectionFromTarget", "law"),
        ("DraftContextLacksLast", "acceptance"),
    ],
)
def test_snippets_run(name, stage):
    loop = mutants.MUTANTS[name]()
    candidate = Candidate(loop, "generate", "my.py:generate", "numpy", compiled=False)
    failure = KIND.stages[stage](candidate, "lossless", "contract").failures[0]
    text = failure.snippet.replace("from my import generate", "")
    assert text != failure.snippet
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(text, {"generate": loop})
    if stage in ("stopping", "greedy", "form"):
        assert printed.getvalue().strip() == failure.actual
    else:
        assert printed.getvalue().strip()
