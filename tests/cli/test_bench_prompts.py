"""`speculax bench prompts` on the toy model."""

import json

import pytest
from typer.testing import CliRunner

import speculax as sx
from speculax.cli.app import app
from tests.cli import toy

LINES = [
    {"prompt": "[b]\n\tsix_é", "category": "cycle"},
    {"turns": ["six", "never shown"], "category": "spec", "question_id": 81},
    {"prompt": "x", "category": "cycle"},
]


@pytest.fixture(autouse=True)
def _toy_model(monkeypatch, tmp_path):
    monkeypatch.setattr(sx, "load", lambda name: toy.model())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, LINES)))


def run(*args):
    return CliRunner().invoke(app, ["bench", "prompts", *args])


def test_a_table_by_category():
    result = run("prompts.jsonl", "--max-new-tokens=20")
    assert result.exit_code == 0, result.stderr
    head, _, *rows = [line.split(" | ") for line in result.stdout.splitlines()]
    assert len(head) == len(rows[0]) == 7
    assert [row[0].removeprefix("| ") for row in rows] == ["cycle", "spec", "all"]
    assert [row[1] for row in rows] == ["2", "1", "3"]
    assert rows[0][6] == "2 of 2 |"


def test_json_and_fewer_prompts():
    result = run("prompts.jsonl", "--max-new-tokens=20", "--per-category=1", "--json", "--seed=4")
    shown = json.loads(result.stdout)
    assert shown["run"]["seed"] == 4
    assert [one["prompts"] for one in shown["categories"]] == [1, 1, 2]


def test_a_journal_is_gone_on_with(tmp_path):
    options = ("prompts.jsonl", "--max-new-tokens=20", "--journal=kept", "--json")
    first = run(*options)
    lines = (tmp_path / "kept").read_text().splitlines()
    assert len(lines) == 4
    (tmp_path / "kept").write_text("\n".join(lines[:3]) + "\n")
    again = run(*options)
    assert (tmp_path / "kept").read_text().splitlines()[:3] == lines[:3]
    assert len((tmp_path / "kept").read_text().splitlines()) == 4
    counts = [
        [(one["block_efficiency"], one["same"]) for one in json.loads(result.stdout)["categories"]]
        for result in (first, again)
    ]
    assert counts[0] == counts[1]
    assert "a journal of another run" in " ".join(run(*options, "--seed=1").stderr.split())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["missing"], "missing cannot be read"),
        (["prompts.jsonl", "--per-category=0"], "--per-category must be at least 1, got 0"),
        (["prompts.jsonl", "--draft-length=-1"], "draft_length must be an integer"),
        (["prompts.jsonl", "--verify=best"], "verify must be one of"),
        (["prompts.jsonl", "--journal=."], ". cannot be used: Is a directory"),
    ],
)
def test_misuse_is_an_error_with_a_hint(args, problem):
    result = run(*args)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert "hint: " in result.stderr


def test_ids_must_differ(tmp_path):
    (tmp_path / "twice").write_text('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": 1}')
    assert "two prompts of one id" in run("twice").stderr
