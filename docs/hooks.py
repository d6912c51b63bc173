"""What the site does with pages that are also read in the repository.

A page may take in a part of the README, or a file of Python. Links to files outside the docs
become plain text: the site stands by itself.
"""

import re
from pathlib import Path
from typing import Any

from speculax.conformance.verifier.call import as_step
from speculax.conformance.verifier.examples import EXAMPLES
from speculax.viewer import step_page

ROOT = Path(__file__).parents[1]
OUTSIDE = r"(?:\.\./|src/|tests/|benchmarks/|examples|LICENSE|CHANGELOG|CONTRIBUTING|pyproject)"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page as the site has it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    markdown = markdown.replace("<!-- README -->", readme)
    markdown = re.sub(r"<!-- README: (.+?) -->", lambda m: _section(readme, m[1]), markdown)
    markdown = re.sub(r"<!-- FILE: (.+?) -->", lambda m: _listing(ROOT / m[1]), markdown)
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    markdown = re.sub(r'src="docs/', 'src="', markdown)
    return re.sub(rf"\[([^\[\]]+)\]\({OUTSIDE}[^)]*\)", r"\1", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """The page of one step, with the contract's first example in it."""
    example, _ = EXAMPLES[0]
    page = step_page(**as_step("token", example))
    (Path(config["site_dir"]) / "one-step-page.html").write_text(page, "utf-8")


def _section(readme: str, title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", readme, re.M | re.S)
    if match is None:
        raise ValueError(f"README.md must have a section called {title!r}; it has none.")
    return match[1].strip()


def _listing(path: Path) -> str:
    return f"```python\n{path.read_text('utf-8')}```"
