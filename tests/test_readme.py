"""Python blocks in README and docs run, and print what the comment beside each print says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A page that builds up one file, piece by piece.
PIECES = "write-the-step.md"
DOCS = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != PIECES)
PAGES = ["README.md", *(f"docs/{name}" for name in DOCS)]


def blocks_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def as_case(page: str, i: int, block: str):
    # Most of the time goes into compiling; what the docs tell of the pair has tests of its own.
    is_slow = 'load("gemma' in block or (page != "README.md" and 'load("demo' in block)
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(block, marks=marks, id=f"{page} {i}")


def test_first_block_is_the_contract():
    assert "verify_token(" in blocks_of("README.md")[0]


@pytest.mark.parametrize(
    "block", [as_case(page, i, block) for page in PAGES for i, block in enumerate(blocks_of(page))]
)
def test_block(block: str, capsys: pytest.CaptureFixture[str]):
    exec(compile(block, "page", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.M)
    assert capsys.readouterr().out.splitlines() == promised
