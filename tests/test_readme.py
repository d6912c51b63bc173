"""The README's Python blocks run, and print what the comment beside each print says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def as_case(block: str):
    marks = [pytest.mark.slow] if "load(" in block else []
    return pytest.param(block, marks=marks)


def test_first_block_is_the_contract():
    assert "verify_token(" in BLOCKS[0]


@pytest.mark.parametrize("block", [as_case(block) for block in BLOCKS])
def test_block(block: str, capsys: pytest.CaptureFixture[str]):
    exec(compile(block, "README.md", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", block, re.M)
    assert capsys.readouterr().out.splitlines() == promised
