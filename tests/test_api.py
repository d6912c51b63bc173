"""The page of the API has all public names, and none that is not there."""

import importlib
import inspect
import re
from pathlib import Path

import speculax as sx

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
NAMED = re.findall(r"^::: (\S+)$", PAGE.read_text("utf-8"), re.M)


def public_names(module):
    """What is meant for users: no submodules, which importing leaves behind."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }


def test_all_of_the_package_is_on_the_page():
    named = {name.removeprefix("speculax.") for name in NAMED if name.count(".") == 1}
    assert named - {"theory", "training"} == public_names(sx)
    assert inspect.ismodule(sx.theory)
    assert len(NAMED) == len({*NAMED})


def test_all_that_is_on_the_page_is_there_and_documented():
    for name in NAMED:
        place, _, last = name.rpartition(".")
        if place == "speculax" and last in ("theory", "training"):
            assert importlib.import_module(name).__doc__
        else:
            assert inspect.getdoc(getattr(importlib.import_module(place), last)), name
