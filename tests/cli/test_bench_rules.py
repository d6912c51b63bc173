"""`speculax bench rules`, in process, with toy models."""

import json
import re

import jax
import pytest
from typer.testing import CliRunner

import speculax as sx
from speculax.cli.app import app
from tests.cli import toy


@pytest.fixture(autouse=True, scope="module")
def _toy():
    def load(name):
        model = toy.model()
        if name == "target":
            return model
        return sx.Model(model.network, 0.5 * model.params, model.tokenizer, (), "draft")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sx, "load", load)
        yield


OWN = """
import speculax as sx

def own_rule(*arrays, draft_lengths=None):
    return sx.verify_token(*arrays, draft_lengths=draft_lengths)
"""


def run(*args: str):
    return CliRunner().invoke(app, ["bench", "rules", *args])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "run.npz"
    rule = path.with_name("rule.py")
    rule.write_text(OWN)
    jax.config.update("jax_disable_most_optimizations", True)  # undone by each test
    result = run(
        "--record", str(path), "--model=target", "--draft-model=draft", "--draft-length=3",
        "--num-texts=6", "--max-new-tokens=30", f"--rule={rule}:own_rule",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert re.search(r"\d+ steps of 6 texts are in", result.stderr.replace("\n", " "))
    return path


@pytest.mark.slow
def test_a_record_is_replayed_as_a_table(recorded):
    result = run(str(recorded))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "target target, draft draft, draft_length 3" in lines[0]
    rules = [line.split()[0] for line in lines if re.search(r" to \d\.\d{3}", line)]
    assert rules[:4] == ["token", "block", "sampled", "ideal"]
    assert {"coupled", "lossy_typical", "lossy_thresholds", "lossy_top_k", "own_rule"} <= set(rules)
    assert all(len(line) <= 80 for line in lines[1:])


@pytest.mark.slow
def test_a_replay_as_json(recorded):
    shown = json.loads(run(str(recorded), "--json").stdout)
    rules = shown["rules"]
    assert shown["run"]["max_new_tokens"] == 30
    assert rules["sampled"]["accepted"] < rules["token"]["accepted"] <= rules["block"]["accepted"]
    assert 0 < rules["own_rule"]["accepted"] < 3  # in a run of its own
    for rule in rules.values():
        assert rule["low"] <= rule["accepted"] <= rule["high"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "there must be either FILE or --record FILE"),
        (["a.npz", "--record", "b.npz"], "there must be either FILE or --record FILE"),
        (["missing.npz"], "missing.npz cannot be read"),
        (["--record", "no/such/folder/run.npz"], "there is no folder no/such/folder"),
        (["--record", "run.npz", "--temperature=0"], "--temperature must be above 0"),
        (["--record", "run.npz", "--num-texts=1"], "a record needs at least 2 texts"),
        (["--record", "."], ". cannot be used: Is a directory"),
        (["--record", "run.npz", "--max-new-tokens=8"], "above the draft length"),
        (["--record", "run.npz", "--prompts=missing"], "missing cannot be read"),
        (["run.npz", "--rule=rule.py:own"], "--rule is run for a record"),
        (["--record", "run.npz", "--rule=missing.py:own"], "missing.py"),
        (["--record", "run.npz", "--rule=speculax:verify_block"], "no other rule has, got block"),
    ],
)
def test_misuse_is_an_error_with_a_hint(args, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert problem in " ".join(result.stderr.split())
    assert "hint: " in result.stderr


def test_files_that_are_neither_records_nor_prompts(tmp_path):
    path = tmp_path / "file"
    path.write_text('{"text": "no prompt"}')
    assert "must be a record" in " ".join(run(str(path)).stderr.split())
    result = run("--record", str(tmp_path / "run.npz"), "--prompts", str(path))
    assert "a JSON object with a prompt in each line" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_prompts_of_a_file(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "six"}\n\n{"prompt": "_"}\n')
    result = run(
        "--record", str(tmp_path / "run.npz"), "--model=target", "--draft-model=draft",
        "--prompts", str(prompts), "--max-new-tokens=30",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "of 2 texts" in " ".join(result.stderr.split())
