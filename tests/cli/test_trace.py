"""`speculax generate --trace` and `speculax trace`, in process, with a toy model."""

import json

import pytest
from typer.testing import CliRunner

import speculax as sx
from speculax.cli.app import app
from speculax.trace import read_trace
from tests.cli import toy

PROMPT = "\tsix_é [b]\n\tsix"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "run.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sx, "load", lambda name: toy.model())
        patch.setattr("speculax.cli.generate._keep_compiled_programs", lambda: None)
        options = ["--draft-length=3", "--max-new-tokens=30", "--temperature=0.7", "--seed=5"]
        options += ["--top-k=7", f"--trace={path}"]
        result = CliRunner().invoke(app, ["generate", *options, PROMPT])
    assert result.exit_code == 0, result.stderr
    return path


def run(*args):
    return CliRunner().invoke(app, ["trace", *map(str, args)])


def test_a_run_leaves_its_trace(path):
    trace = read_trace(path)
    assert sum(len(step["emitted"]) for step in trace.steps) == 30
    assert trace.run["prompt"] == PROMPT
    assert trace.run["seed"] == 5
    asked = trace.run["settings"]
    assert (asked["top_k"], asked["draft_length"], asked["deterministic"]) == (7, 3, False)
    assert trace.end is not None


def test_it_is_shown_a_line_a_step_in_ascii(path):
    result = run(path)
    assert result.exit_code == 0
    assert result.stdout.isascii()
    assert len(result.stdout.splitlines()) >= len(read_trace(path).steps)


def test_it_becomes_a_page(path, tmp_path):
    page = tmp_path / "run.html"
    assert run(path, "--html", page).exit_code == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_what_is_no_trace_is_an_error_with_a_hint(path, tmp_path):
    newer = json.loads(path.read_text("utf-8").splitlines()[0]) | {"version": "2.0"}
    other = tmp_path / "other"
    for args, text, problem in (
        ([tmp_path / "missing"], "", "missing cannot be read"),
        ([other], "hello\n", "must be a trace"),
        ([other], json.dumps(newer) + "\n", "2.0"),
        ([path, "--html", tmp_path / "no" / "page.html"], "", "page.html"),
    ):
        other.write_text(text)
        result = run(*args)
        assert result.exit_code == 2
        assert problem in " ".join(result.stderr.split())
        assert "hint: " in result.stderr
