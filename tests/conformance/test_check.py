"""Whole checks, each stage in its process: what passes, what fails, and how it is told."""

import re
from importlib.util import find_spec

import pytest

from speculax.conformance import MisuseError, check

from .code import BRANCH, NAMED, NUMPY, RIGHT, TORCH, last_line


def report_on(tmp_path, text, **options):
    path = tmp_path / "my.py"
    path.write_text(text)
    return check(str(path), **{"level": "contract", **options})


def failed(report):
    return [stage.name for stage in report.stages if not stage.passed]


def test_a_right_function_passes(tmp_path):
    report = report_on(tmp_path, RIGHT)
    assert report.passed
    assert not failed(report)
    assert report.diagnosis is None
    names = ["form", "examples", "random instances", "edges", "large", "law", "several steps"]
    assert [stage.name for stage in report.stages] == names
    assert report.function.endswith("my.py:verify")
    assert report.versions["jax"]


@pytest.mark.slow
def test_levels_demand_more(tmp_path):
    assert failed(report_on(tmp_path, RIGHT, level="robust")) == ["edges", "large"]


@pytest.mark.slow
def test_numpy(tmp_path):
    assert report_on(tmp_path, NUMPY, use_jit=False).passed
    (stage,) = report_on(tmp_path, NUMPY).stages
    assert "NumPy" in stage.outcome.failures[0].what
    assert "jax.numpy" in stage.outcome.failures[0].why


@pytest.mark.slow  # torch takes seconds to import in each process
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is in the group reference only")
def test_torch(tmp_path):
    assert report_on(tmp_path, TORCH, use_jit=False).passed
    (stage,) = report_on(tmp_path, TORCH).stages
    assert "--no-jit" in stage.outcome.failures[0].why


def test_a_branch_on_a_traced_value_is_explained(tmp_path):
    (stage,) = report_on(tmp_path, BRANCH).stages
    failure = stage.outcome.failures[0]
    line = BRANCH.splitlines().index("    return {} if n[0] > 0 else None") + 1
    assert f"in line {line}: return {{}} if n[0] > 0 else None" in failure.what
    assert "jnp.where" in failure.why


def test_a_mistake_is_named_and_its_failures_can_be_pasted(tmp_path, monkeypatch):
    report = report_on(tmp_path, NAMED["CorrectionFromTarget"])
    assert report.diagnosis is not None
    assert report.diagnosis.name == "CorrectionFromTarget"
    assert 0.9 * report.diagnosis.probes <= report.diagnosis.agreed <= report.diagnosis.probes
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = [f for stage in report.stages for f in stage.outcome.failures if f.snippet]
    assert len(shown) >= 3
    for failure in shown[:3]:
        names = {}
        exec(re.sub(r"\nverify\(", "\nresult = verify(", failure.snippet), names)
        actual = re.search(r"tokens (\[.*\])", failure.actual)[1]
        assert str(names["result"]["tokens"][0].tolist()) == actual
        assert failure.expected != failure.actual


ENDS = {
    "a crash": ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
    "an exit": ("import sys; sys.exit(3)", "ended with code 3"),
    "an endless loop": ("while True: pass", "stopped after 6 s"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_is_a_failure(tmp_path, end):
    line, message = ENDS[end]
    report = report_on(tmp_path, last_line(line), timeout=6)
    (stage,) = report.stages
    assert message in stage.outcome.failures[0].what


def test_what_a_function_prints_does_no_harm(tmp_path, capfd):
    report = report_on(tmp_path, last_line("print('{'); return None"))
    assert "returned None" in report.stages[0].outcome.failures[0].what
    assert capfd.readouterr().out == ""


def test_an_import_that_ends_the_process(tmp_path):
    with pytest.raises(MisuseError, match=r"importing .* ended with code 0"):
        report_on(tmp_path, RIGHT + "\nimport sys\nsys.exit(0)\n")


@pytest.mark.parametrize("option", ["kind", "level", "rule"])
def test_unknown_options(option):
    with pytest.raises(MisuseError, match=f"no {option} 'nonsense'"):
        check("speculax:verify_token", **{option: "nonsense"})
