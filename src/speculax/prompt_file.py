"""Prompts in a file of JSON lines, as Spec-Bench and others have them."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


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
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        prompts = [_read(i, json.loads(line)) for i, line in enumerate(lines)]
    except (ValueError, KeyError, TypeError, IndexError):
        prompts = []
    if not prompts or not all(isinstance(prompt.text, str) for prompt in prompts):
        raise ValueError(
            f"{path} must have a JSON object with a prompt in each line, as in "
            '{"prompt": "def fibonacci(n):"}.'
        )
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
    name = line.get("id", line.get("question_id", i))
    return NamedPrompt(str(name), str(line.get("category", "prompts")), text)
