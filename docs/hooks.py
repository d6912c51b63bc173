"""What the site does with pages that are also read in the repository.

A page may take in a part of the README. Links to files outside the docs become plain text: the
site stands by itself.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = r"(?:\.\./|src/|tests/|benchmarks/|examples/|LICENSE|CHANGELOG|CONTRIBUTING|pyproject)"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as the site has it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    markdown = markdown.replace("<!-- README -->", readme)
    markdown = re.sub(r"<!-- README: (.+?) -->", lambda m: _section(readme, m[1]), markdown)
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r'src="docs/', 'src="', markdown)
    return re.sub(rf"\[([^\[\]]+)\]\({OUTSIDE}[^)]*\)", r"\1", markdown)


def _section(readme: str, title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", readme, re.M | re.S)
    if match is None:
        raise ValueError(f"README.md must have a section called {title!r}; it has none.")
    return match[1].strip()
