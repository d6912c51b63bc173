"""Measures of prompts, what they come to, and the journal that keeps them."""

import json
from dataclasses import replace

import pytest

import speculax as sx
from speculax.prompt_bench import Journal, Measure, measure, summarize
from speculax.prompt_file import NamedPrompt, read_prompts
from tests import toy


class Digits:
    def encode(self, text):
        return [int(digit) for digit in text]

    def decode(self, ids):
        return "".join(str(i) for i in ids)


MODEL = toy.cycle(tokenizer=Digits())
PROMPTS = [NamedPrompt("a", "long", "01234567012345670123"), NamedPrompt("b", "short", "4")]
ONE = Measure("a", "x", 0, 2.0, 1.0, emitted=40, steps=10, drafted=50, accepted=30, same=True)


def run(drafter, **kwargs):
    kwargs = {"verify": "token", "temperature": 0.0, "repeats": 2, "seed": 0} | kwargs
    return list(measure(MODEL, PROMPTS, drafter, max_new_tokens=24, **kwargs))


def test_each_prompt_is_run_with_drafts_and_without():
    measures = run(sx.NGram(7))
    assert [(one.id, one.category, one.repeat) for one in measures] == [
        ("a", "long", 0), ("b", "short", 0), ("a", "long", 1), ("b", "short", 1)
    ]  # fmt: skip
    for one in measures:
        assert one.same
        assert one.emitted == 24
        assert min(one.seconds, one.plain_seconds) > 0
    assert measures[0].accepted > measures[1].accepted
    assert measures[0].steps < 24


@pytest.mark.slow
def test_texts_that_need_not_be_the_same_are_not_compared():
    assert {one.same for one in run(sx.NGram(7), temperature=1.0)} == {None}
    keyed = run(sx.NGram(7), temperature=1.0, verify="coupled", repeats=1)
    assert {one.same for one in keyed} == {True}


def test_what_is_done_is_not_run_again():
    measures = run(sx.NGram(7), is_done=lambda prompt, repeat: prompt.id == "a" or repeat == 0)
    assert [(one.id, one.repeat) for one in measures] == [("b", 1)]


def test_a_summary_adds_up_the_medians_of_prompts():
    measures = [
        ONE,
        replace(ONE, repeat=1, plain_seconds=4.0, seconds=9.0),
        replace(ONE, repeat=2, plain_seconds=3.0, seconds=2.0),
        replace(ONE, id="b", plain_seconds=1.0, seconds=2.0, same=False),
    ]
    [summary] = summarize(measures)
    assert (summary.category, summary.prompts, summary.same) == ("x", 2, 1)
    assert summary.speedup == (3 + 1) / (2 + 2)
    assert summary.worst == 0.5
    assert 0.5 <= summary.low <= 1.0 <= summary.high <= 1.5
    assert (summary.block_efficiency, summary.acceptance_rate) == (4.0, 0.6)


def test_categories_and_then_all():
    other = replace(ONE, id="b", category="y", drafted=0, accepted=0, same=None)
    summaries = summarize([ONE, other])
    assert [(one.category, one.prompts) for one in summaries] == [("x", 1), ("y", 1), ("all", 2)]
    assert summaries[1].acceptance_rate is None
    assert [one.same for one in summaries] == [1, None, None]


def test_a_journal_goes_on_where_it_was_left(tmp_path):
    path = tmp_path / "journal"
    first = Journal(path, {"seed": 1})
    first.add(ONE)
    first.add(replace(ONE, repeat=1))
    path.write_text(path.read_text() + '{"id": "cut sh')
    second = Journal(path, {"seed": 1})
    assert second.measures == first.measures
    assert second.has(NamedPrompt("a", "x", ""), 1)
    assert not second.has(NamedPrompt("a", "x", ""), 2)
    second.add(replace(ONE, repeat=2))
    assert len(Journal(path, {"seed": 1}).measures) == 3
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_journal_of_something_else_is_refused(tmp_path):
    path = tmp_path / "journal"
    Journal(path, {"seed": 1})
    with pytest.raises(ValueError, match="a journal of another run, with seed 1 in place of 2;"):
        Journal(path, {"seed": 2})
    for line in ("hello", "5", "{}", '{"format": 1, "settings": 3}'):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match="must be a journal of prompts"):
            Journal(path, {"seed": 1})


@pytest.mark.parametrize("line", ["{", "5", "{}", '{"prompt": 3}', '{"turns": []}', "\xff"])
def test_a_prompt_file_that_is_none_says_which_line(line, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "with a \xe2\x80\xa8 in it"}\n\n' + line.encode("latin-1"))
    with pytest.raises(ValueError, match=r"a prompt in each line, .*; line 3 has none"):
        read_prompts(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="it is empty"):
        read_prompts(path)
