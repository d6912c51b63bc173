"""Traces: what is in them, and what a reader makes of files that are old, new, cut or damaged."""

import json

import numpy as np
import pytest

import speculax as sx
from speculax.trace import VERSION, Trace, make_trace, read_trace, write_trace
from speculax.viewer import trace_page
from tests import toy

NETWORK = toy.Markov()
LOGITS = toy.random_logits(NETWORK)
DRAFT = toy.softmax(0.5 * toy.random_logits(NETWORK, seed=1)).astype(np.float32)
TEXTS = ["a", "</script>", "<script>alert(1)</script>", "<!--", "&amp;", "\u2028", "é", "\n"]


class Hostile:
    """A tokenizer whose tokens are markup."""

    def encode(self, text):
        return [0]

    def decode(self, ids):
        return "".join(TEXTS[i] for i in ids)


MODEL = toy.model(NETWORK, LOGITS, tokenizer=Hostile())
RUN = {"model": "toy", "drafter": "toy", "verify": "token", "temperature": 0.7, "prompt": "<b>"}


def make(drafter=None, record=True, max_new_tokens=40, **kwargs):
    result = sx.generate(
        MODEL, [1], drafter=drafter, temperature=0.7, seed=4, record=record,
        max_new_tokens=max_new_tokens, **kwargs,
    )  # fmt: skip
    return result, make_trace(result, MODEL.tokenizer, RUN)


def emitted(trace):
    return [token for step in trace.steps for token in step["emitted"]]


def test_steps_are_those_of_the_run():
    result, trace = make(toy.sampling_drafter(DRAFT))
    assert len(trace.steps) == result.stats.steps
    assert [token["token"] for token in emitted(trace)] == result.tokens.tolist()
    assert "".join(token["text"] for token in emitted(trace)) == result.text
    is_accepted = [token["kind"] == "accepted" for token in emitted(trace)]
    assert is_accepted == result.accepted.tolist()
    drafts = [draft for step in trace.steps for draft in step["draft"]]
    assert len(drafts) >= result.stats.drafted
    assert sum(draft["result"] == "accepted" for draft in drafts) == result.stats.accepted
    for step in trace.steps:
        results = [draft["result"] for draft in step["draft"]]
        last = step["emitted"][-1]["kind"]
        assert ("refused" in results) == (last == "correction")
        if last == "bonus":
            assert set(results) == {"accepted"}
    kinds = {token["kind"] for token in emitted(trace)}
    assert kinds == {"accepted", "correction", "bonus"}


def test_a_text_that_ends_at_an_accepted_draft_draws_nothing():
    result, trace = make(toy.perfect_drafter(LOGITS), max_new_tokens=50, stop_ids=[3])
    assert (result.stop_reason, result.accepted[-1]) == ("stop", True)
    last = trace.steps[-1]
    assert (last["sample_uniform"], last["candidates"]) == (None, [])
    assert last["draft"][len(last["emitted"]) - 1]["result"] == "accepted"


def test_a_text_is_cut_before_a_stop_string():
    _, whole = make(toy.sampling_drafter(DRAFT))
    token = emitted(whole)[20]
    result, trace = make(toy.sampling_drafter(DRAFT), stop=token["text"])
    assert "".join(token["text"] for token in emitted(trace)) == result.text
    assert trace.end["stop_reason"] == "stop"


def test_plain_decoding_draws_all_tokens():
    _, trace = make(None)
    assert {token["kind"] for token in emitted(trace)} == {"drawn"}
    assert all(step["draft"] == [] for step in trace.steps)


def test_without_a_record_there_are_no_probabilities():
    _, trace = make(toy.sampling_drafter(DRAFT), record=False)
    _, full = make(toy.sampling_drafter(DRAFT))
    assert len(trace.steps) == len(full.steps)
    assert all(step["draft"] is step["candidates"] is None for step in trace.steps)
    assert {token["kind"] for token in emitted(trace)} == {"accepted", "drawn"}


@pytest.mark.parametrize("kwargs", [{}, {"record": False}, {"max_new_tokens": 0}], ids=str)
def test_a_trace_is_read_as_it_was_written(tmp_path, kwargs):
    _, trace = make(toy.sampling_drafter(DRAFT), **kwargs)
    write_trace(trace, tmp_path / "run.jsonl")
    assert read_trace(tmp_path / "run.jsonl") == trace


def test_a_file_that_was_cut_short_has_all_whole_lines(tmp_path):
    _, trace = make(toy.sampling_drafter(DRAFT))
    path = tmp_path / "run.jsonl"
    write_trace(trace, path)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in {
        ends[0],
        ends[0] + 1,
        ends[3] - 1,
        ends[3],
        ends[-2],
        len(whole) - 5,
        len(whole) - 1,
    }:
        path.write_bytes(whole[:cut])
        read = read_trace(path)
        num_lines = sum(end <= cut for end in ends) - 1
        # The last line may be whole but for its line end.
        assert read.steps[:num_lines] == trace.steps[:num_lines]
        assert len(read.steps) <= num_lines + 1
    path.write_bytes(whole[: ends[0] - 5])
    with pytest.raises(ValueError, match="must be a trace"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head: head | {"version": "2.0"}, r"of version '2.0', .* reads up to 1\.\*"),
        (lambda head: head | {"format": "other"}, "must be a trace"),
        (lambda head: head | {"version": "?"}, "must be a trace"),
        (lambda head: [], "must be a trace"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, change, message):
    _, trace = make()
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(change(trace.run)) + "\n")
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_what_may_be_missing_is_null(tmp_path):
    _, trace = make()
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(trace.run) + '\n{"type": "step", "emitted": []}\n' + STEP + "\n")
    steps = read_trace(path).steps
    assert steps[0] == {
        "type": "step", "number": 0, "emitted": [], "draft": None, "sample_uniform": None,
        "candidates": None,
    }  # fmt: skip
    assert steps[1]["number"] == 1


def test_a_request_that_failed_shows_the_step_in_which_it_did():
    logits = LOGITS.copy()
    logits[5] = np.nan
    model = toy.model(NETWORK, logits)
    [result] = sx.generate(
        model, [[1]], drafter=toy.sampling_drafter(DRAFT), temperature=1.0, seed=0, record=True
    )
    assert result.stop_reason == "error"
    trace = make_trace(result, None, RUN)
    assert len(trace.steps) == result.stats.steps
    assert trace.end["error"]


def test_a_later_minor_version_is_read(tmp_path):
    _, trace = make()
    later = VERSION.split(".")[0] + ".99"
    steps = [{"type": "thought"}, trace.steps[0] | {"mood": "good"}]
    path = tmp_path / "run.jsonl"
    lines = [trace.run | {"version": later}, *steps, trace.end]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(read_trace(path).steps) == 1


STEP = (
    '{"type": "step", "number": 0, "emitted": [{"token": 1, "text": "a", "kind": "drawn"}], '
    '"draft": [{"text": "a", "target": 1, "draft": 1, "uniform": 0, "result": "accepted"}]}'
)
DAMAGES = [
    "{", '{"type": "step"}', "[]", '{"emitted": []}', "[" * 100_000, '{"type": "end"}',
    STEP.replace('"target": 1', '"target": NaN'), STEP.replace('"a"', '"\\ud800"'),
    STEP.replace('"uniform": 0', '"uniform": "0"'), STEP.replace(', "result": "accepted"', ""),
    STEP.replace('"draft": [', '"draft": 3, "rest": ['),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_line_is_named(tmp_path, damage):
    _, trace = make()
    path = tmp_path / "run.jsonl"
    write_trace(trace, path)
    lines = path.read_text().splitlines()
    lines[4] = damage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="line 5 is no step"):
        read_trace(path)


# --- The page; what it does in a browser is tested in test_viewer.py


def embedded(page):
    start = page.index('<script type="application/json" id="trace">')
    start = page.index(">", start) + 1
    return json.loads(page[start : page.index("</script>", start)])


@pytest.mark.parametrize("kwargs", [{}, {"record": False}, {"max_new_tokens": 0}], ids=str)
def test_all_text_is_escaped(kwargs):
    _, trace = make(toy.sampling_drafter(DRAFT), **kwargs)
    page = trace_page(trace)
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "alert(1)</script" not in page
    assert "<b>" not in page
    assert embedded(page) == {"run": trace.run, "steps": trace.steps, "end": trace.end}


def test_a_page_needs_no_network():
    page = trace_page(Trace({"seed": 0}, [], None))
    for mark in ("http:", "https:", "src=", "@import", "url("):
        assert mark not in page
    assert "the file was cut short" in page
