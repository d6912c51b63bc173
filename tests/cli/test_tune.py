"""`speculax tune` on the toy model, and what generate makes of it."""

import json

import pytest
from typer.testing import CliRunner

import speculax as sx
from speculax.cli.app import app
from tests.cli import toy

QUICK = ("--repeats=1", "--max-new-tokens=24", "--draft-length=3")


@pytest.fixture(autouse=True)
def _toy_model(monkeypatch, tmp_path):
    monkeypatch.setattr(sx, "load", lambda name: toy.model())
    monkeypatch.setenv("SPECULAX_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def run(*args):
    return CliRunner().invoke(app, list(args))


def test_a_table_a_plot_and_costs_that_generate_uses(tmp_path):
    tuned = ("generate", "--tuned", "six", "--draft-length=3", "--max-new-tokens=8")
    before = run(*tuned)
    assert before.exit_code == 2
    assert "run speculax tune" in before.stderr
    result = run("tune", *QUICK, "--plot=plot.png")
    assert result.exit_code == 0, result.stderr
    head, *rows, empty, last = result.stdout.splitlines()
    assert head.split()[:2] == ["drafts", "of"]
    assert [row.split()[0] for row in rows] == ["0", "3"]
    assert all("#" in row for row in rows)
    assert empty == ""
    assert last.startswith("a draft token holds")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert run(*tuned).exit_code == 0


def test_json():
    shown = json.loads(run("tune", *QUICK, "--json").stdout)
    assert shown["costs"]["widths"] == [0, 3]
    assert shown["measured"][0] == 1


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--prompts=missing"], "missing cannot be read"),
        (["--verify=best"], "verify must be one of"),
        (["--draft-length=-1"], "draft_length must be an integer"),
    ],
)
def test_misuse_is_an_error_with_a_hint(args, problem):
    result = run("tune", *QUICK, *args)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert "hint: " in result.stderr
