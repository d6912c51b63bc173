"""`speculax check`: output, exit codes, and what goes beside the report."""

import json
import re
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from speculax.cli.app import app
from speculax.conformance.self_test import Trial
from tests.conformance.code import BRANCH, NAMED, RIGHT

RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("candidates")
    texts = {"right": RIGHT, "wrong": NAMED["CorrectionFromTarget"], "branch": BRANCH}
    for name, text in {**texts, "broken": "def f(:"}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def check(*arguments):
    return RUN.invoke(app, ["check", *map(str, arguments)])


def test_a_right_function(folder):
    result = check(folder / "right.py", "--level", "contract")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"ok    form +\d+ checks +\d+\.\d s", lines[0])
    assert re.fullmatch(r"passed: .*right\.py:verify, held to the token rule.*contract", lines[-1])


@pytest.mark.slow
def test_a_wrong_function(folder, tmp_path):
    page = tmp_path / "report.html"
    result = check(folder / "wrong.py", "--level", "contract", "--html", page)
    assert result.exit_code == 1
    assert "FAIL  law" in result.stdout
    assert "Its mistake looks like CorrectionFromTarget" in result.stdout
    assert "from wrong import verify" in result.stdout
    assert "      also: " in result.stdout

    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.seen = [], set()

        def handle_starttag(self, tag, attributes):
            self.seen.add(tag)
            assert not {name for name, _ in attributes} & {"src", "href"}  # nothing from elsewhere
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    tags = Tags()
    text = page.read_text(encoding="utf-8")
    tags.feed(text)
    assert not tags.open
    assert {"table", "pre", "style", "iframe"} <= tags.seen  # with a page of the failing step
    assert "CorrectionFromTarget" in text


def test_json(folder):
    result = check(folder / "branch.py", "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert not shown["passed"]
    assert shown["rule"] == "token"
    (stage,) = shown["stages"]
    assert not stage["passed"]
    assert "traced value" in stage["outcome"]["failures"][0]["what"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["broken.py"], "syntax error in line 1"),
        (["nowhere.py"], "no file"),
        (["right.py", "--as", "cake"], "no kind 'cake'"),
        (["right.py", "--level", "cake"], "no level 'cake'"),
        (["right.py", "--rule", "cake"], "no rule 'cake'"),
        (["right.py", "--hint", "1"], "exclude each other"),
        ([], "one of TARGET"),
        (["--self-test", "--as", "cake"], "no kind 'cake'"),
        (["--scaffold", "new.py", "--as", "sampler"], "no stub for --as sampler"),
        (["right.py", "--as", "ragged", "--speed"], "no stage 'speed'"),
        (["right.py", "--html", "nowhere/page.html"], "no folder nowhere"),
        (["--hint", "99"], "--hint must be 1 to"),
    ],
)
def test_misuse(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    result = check(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    problem, blank, hint = result.stderr.splitlines()
    assert problem.startswith("error: ")
    assert message in problem
    assert blank == ""
    assert hint.startswith("hint: ")


@pytest.mark.slow
def test_scaffold(tmp_path):
    path = tmp_path / "mine.py"
    result = check("--scaffold", path)
    assert result.exit_code == 0
    assert f"speculax check {path} --level contract" in result.stdout
    again = check("--scaffold", path)
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    unfinished = check(path)
    assert unfinished.exit_code == 1
    assert "NotImplementedError" in unfinished.stdout

    body = RIGHT[RIGHT.index("    batch, drafts") :]
    path.write_text(path.read_text().replace("    raise NotImplementedError\n", body))
    names = {"__name__": "__main__"}
    exec(path.read_text(), names)
    assert names["example"]["tokens"].tolist() == [[3, 3, -1]]
    assert check(path, "--level", "contract").exit_code == 0


def test_hints_come_one_at_a_time():
    first = check("--hint", 1)
    assert first.exit_code == 0
    assert first.stdout.startswith("1. ")
    assert "2. " not in first.stdout


def test_self_test_fails_if_a_mutant_survives(monkeypatch):
    trials = [
        Trial("verifier", "Right", "token", None, {"form": False, "law": False}, None),
        Trial("verifier", "Wrong", "token", "A fault.", {"form": False, "law": True}, "Wrong"),
        Trial("verifier", "Alive", "token", "A fault.", {"form": False, "law": False}, None),
    ]
    for shown, code in ((trials[:2], 0), (trials, 1)):
        monkeypatch.setattr(
            "speculax.cli.check.self_test", lambda kinds, on_trial, shown=shown: shown
        )
        result = check("--self-test")
        assert result.exit_code == code
        assert ".x  Wrong" in result.stdout
        assert f"1 of {len(shown) - 1} mutants refused, 1 named rightly; 0 of 1" in result.stdout
    assert re.search(r"\.\.  Alive +named nothing  WRONG", result.stdout)
    trials_shown = json.loads(check("--self-test", "--json").stdout)
    assert [trial["as_it_should"] for trial in trials_shown] == [True, True, False]
