"""Prompts in a file of JSON lines, as Spec-Bench and others have them."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_EXPECTED = 'a JSON object with a prompt in each line, as in {"prompt": "def fibonacci(n):"}'


class NamedPrompt(NamedTuple):
    """A prompt to measure on.

    Attributes:
        id: What to call it.
        category: What it is compared with.
        text: The prompt.
    """

    id: str
    category: str
    text: str


def read_prompts(path: Path) -> list[NamedPrompt]:
    """Those of a file with a JSON object in each line.

    The text is its "prompt", or the first of its "turns" as Spec-Bench has it; "category" and "id"
    (or "question_id") are optional.

    Raises:
        ValueError: If it is no such file, or two prompts have one id.
        OSError: If it cannot be read.
    """
    prompts = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_read(len(prompts), json.loads(line)))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise ValueError(f"{path} must have {_EXPECTED}; line {number} has none.") from None
    if not prompts:
        raise ValueError(f"{path} must have {_EXPECTED}; it is empty.")
    if len({prompt.id for prompt in prompts}) < len(prompts):
        raise ValueError(f"{path} has two prompts of one id; leave ids out, or make them differ.")
    return prompts


def first_of_each(prompts: Sequence[NamedPrompt], num: int) -> list[NamedPrompt]:
    """The first `num` prompts of each category."""
    taken: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        taken[prompt.category] += 1
        if taken[prompt.category] <= num:
            chosen.append(prompt)
    return chosen


def _read(i: int, line: dict) -> NamedPrompt:
    text = line["prompt"] if "prompt" in line else line["turns"][0]
    if not isinstance(text, str):
        raise TypeError
    name = line.get("id", line.get("question_id", i))
    return NamedPrompt(str(name), str(line.get("category", "prompts")), text)
