"""Pages put together from templates in this folder: one file each, which needs no network."""

import json
from importlib.resources import files
from typing import Any


def make_page(name: str, title: str, data: Any, parts: dict[str, str]) -> str:
    """The page `name`: the frame, with the body, style and script of that name.

    Args:
        name: Of the files, and of the element that has the data.
        title: Plain text.
        data: What the script reads, as JSON.
        parts: HTML in place of the marks of the body.
    """
    return _fill(
        _read("frame.html"),
        {
            "<!--TITLE-->": title,
            "/*STYLE*/": _read(f"{name}.css"),
            "<!--BODY-->": _fill(_read(f"{name}.html"), parts),
            "<!--NAME-->": name,
            "<!--DATA-->": _as_script(data),
            "/*SCRIPT*/": _read(f"{name}.js"),
        },
    )


def _fill(template: str, parts: dict[str, str]) -> str:
    """With marks replaced, in the order of the template: a part may hold what looks like a mark."""
    pieces = []
    for mark, part in parts.items():
        before, template = template.split(mark, 1)
        pieces += [before, part]
    return "".join([*pieces, template])


def _as_script(data: Any) -> str:
    """JSON that cannot end the element that it is in."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return files("speculax.viewer").joinpath(name).read_text("utf-8").rstrip("\n")
