"""Wheel and sdist in empty environments, as a user gets them."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run(*command, check=True):
    """In a process that knows nothing of this clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, env=environment, cwd="/")
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True,
        capture_output=True,
    )  # fmt: skip
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def environment(folder, wanted):
    """Where the programs of a new environment are, with a package installed."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", wanted)
    return folder / "bin"


def test_what_is_in_them(built):
    wheel, sdist = built
    packed = zipfile.ZipFile(wheel).namelist()
    for name in ("viewer/trace.html", "viewer/trace.js", "viewer/trace.css", "py.typed"):
        assert f"speculax/{name}" in packed
    assert not [name for name in packed if name.startswith(("tests", "benchmarks", "docs"))]
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "mkdocs.yml", "docs/generate.md"} <= names


def test_with_the_extras_the_command_line_works(built, tmp_path):
    programs = environment(tmp_path / "venv", f"{built[0]}[cli,models]")
    speculax = programs / "speculax"
    assert run(speculax, "generate", "--model", "demo", "--max-new-tokens", "8", "x = ").stdout
    run(speculax, "check", "--scaffold", tmp_path / "my_step.py")
    checked = run(speculax, "check", tmp_path / "my_step.py", check=False)
    assert checked.returncode == 1
    assert "FAIL  form" in checked.stdout  # the stub is still to be filled in


def test_without_them_the_missing_extra_is_named(built, tmp_path):
    programs = environment(tmp_path / "venv", built[1])  # from the sdist
    told = run(programs / "speculax", "info", check=False)
    assert told.returncode == 2
    assert "pip install 'speculax[cli]'" in told.stderr
    run(programs / "python", "-c", "import speculax; speculax.NGram()")
