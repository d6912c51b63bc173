"""What is checked is found, or it is said why not: `find`, and the errors of the command line."""

import sys

import pytest

from speculax.conformance.candidate import MisuseError, find
from speculax.conformance.verifier.call import PARAMETERS

from .code import BRANCH, NUMPY, RIGHT


@pytest.fixture(autouse=True)
def _imports(monkeypatch):
    """What a file puts into the list of modules and the path leaves with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def found(tmp_path, text, name="my.py", suffix="", **options):
    path = tmp_path / name
    path.write_text(text)
    return find(f"{path}{suffix}", PARAMETERS, **options)


def test_a_file_a_name_and_a_module(tmp_path, monkeypatch):
    assert found(tmp_path, RIGHT).name == "verify"
    assert found(tmp_path, RIGHT, suffix=":verify").origin.endswith("my.py:verify")
    assert found(tmp_path, f"{RIGHT}\n\ndef other(x):\n    return x\n").name == "verify"
    assert find("speculax:verify_token", PARAMETERS).name == "verify_token"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find("my:verify", PARAMETERS).framework == "jax"


def test_by_five_parameters_of_other_names(tmp_path):
    text = "def helper(a, b):\n    pass\n\n\ndef step(x, q, p, u, s, scale=1.0):\n    pass\n"
    assert found(tmp_path, text).name == "step"


def test_a_jitted_function(tmp_path):
    assert found(tmp_path, f"{RIGHT}\nimport jax\nverify = jax.jit(verify)\n").name == "verify"


def test_frameworks(tmp_path):
    assert found(tmp_path, NUMPY, use_jit=False).framework == "numpy"
    assert found(tmp_path, RIGHT, "mine.py", use_jit=False).framework == "jax"
    assert found(tmp_path, RIGHT, "his.py").compiled


MISUSES = {
    "a syntax error": ("def f(:\n", "", r"syntax error in line 1"),
    "a failing import": (
        "x = 1\nimport nothing_of_that_name\n",
        "",
        r"line 2 of my.py.*nothing_of",
    ),
    "an exception at import": ("def f():\n    1 / 0\nf()\n", "", r"line 2 of my.py: ZeroDivision"),
    "wrong arity": ("def f(a, b):\n    pass\n", ":f", r"must take 5 arguments.*\(a, b\)"),
    "no function": ("x = 1\n", "", r"no function with the parameters \(draft_tokens"),
    "not callable": ("f = 3\n", ":f", r"'f' in .* is a int, which cannot be called"),
    "no such name": (BRANCH, ":verfy", r"has no 'verfy'"),
    "two candidates": (f"{RIGHT}\n{RIGHT.replace('verify', 'again')}", "", r"2 functions.*again"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse(tmp_path, misuse):
    text, suffix, message = MISUSES[misuse]
    with pytest.raises(MisuseError, match=message) as error:
        found(tmp_path, text, suffix=suffix)
    assert error.value.hint
    assert "\n" not in error.value.problem


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "no file 'nowhere.py'"),
        ("nowhere:f", "no module 'nowhere'"),
        ("speculax.nowhere:f", "no module 'speculax.nowhere'"),
        ("speculax:nowhere", "no 'nowhere'"),
        ("whatever", r"neither a file that ends in \.py nor module:function"),
    ],
)
def test_nothing_there(target, message):
    with pytest.raises(MisuseError, match=message):
        find(target, PARAMETERS)
