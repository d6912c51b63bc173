"""Pages put together from templates in this folder: one file each, which needs no network."""

import json
from importlib.resources import files
from typing import Any


def fill(name: str, parts: dict[str, str]) -> str:
    """The page `name`.html with its style, its script, and `parts` in place of their marks.

    Marks must be in the order of the template: a part may hold what looks like a later mark.
    """
    page, pieces = _read(f"{name}.html"), []
    style, script = {"/*STYLE*/": _read(f"{name}.css")}, {"/*SCRIPT*/": _read(f"{name}.js")}
    for mark, part in (style | parts | script).items():
        before, page = page.split(mark, 1)
        pieces += [before, part]
    return "".join([*pieces, page])


def as_script(data: Any) -> str:
    """JSON that cannot end the element that it is in."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return files("speculax.viewer").joinpath(name).read_text("utf-8").rstrip("\n")
