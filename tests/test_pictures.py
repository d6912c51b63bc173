"""Pictures are what the scripts draw of the library as it is."""

import runpy
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"


def test_the_step_is_drawn_from_what_the_library_gives():
    drawn = runpy.run_path(str(FOLDER / "one_step.py"))["draw"]()
    assert drawn == (FOLDER / "one-step.svg").read_text("utf-8")
