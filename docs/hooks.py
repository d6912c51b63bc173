"""What the site does with pages that are also read in the repository.

A page may take in a part of the README. Links to files outside the docs become plain text: the
site stands by itself.
"""

import re
from pathlib import Path
from typing import Any

from speculax.viewer import step_page

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


def on_post_build(config: Any, **_: Any) -> None:
    """The page of one step, with the README's example in it."""
    # As in the first block of the README, which tests hold to be the contract's example.
    page = step_page(
        draft_tokens=[3, 2],
        draft_probs=[[0.2, 0.59, 0.04, 0.17], [0.12, 0.43, 0.42, 0.03]],
        target_probs=[[0.04, 0.44, 0.24, 0.28], [0.27, 0.36, 0.23, 0.14], [0.19, 0.34, 0.07, 0.4]],
        accept_uniforms=[0.27, 0.79],
        sample_uniform=0.92,
    )
    (Path(config["site_dir"]) / "one-step-page.html").write_text(page, "utf-8")


def _section(readme: str, title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", readme, re.M | re.S)
    if match is None:
        raise ValueError(f"README.md must have a section called {title!r}; it has none.")
    return match[1].strip()
