"""Prompts in a file of JSON lines."""

import json
from pathlib import Path

from speculax.cli.errors import CommandError
from speculax.prompt_bench import Prompt


def read_prompts(path: Path) -> list[Prompt]:
    """Those of a file with a JSON object in each line.

    The text is its "prompt", or the first of its "turns" as Spec-Bench has it; "category" and "id"
    (or "question_id") are optional.
    """
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        prompts = [_read(i, json.loads(line)) for i, line in enumerate(lines)]
        if not prompts or not all(isinstance(prompt.text, str) for prompt in prompts):
            raise ValueError("no prompts")
        if len({prompt.id for prompt in prompts}) < len(prompts):
            raise CommandError(
                f"{path} has two prompts of one id", "leave ids out, or make them differ"
            )
        return prompts
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise CommandError(
            f"{path} must have a JSON object with a prompt in each line",
            'as in {"prompt": "def fibonacci(n):"}',
        ) from None


def _read(i: int, line: dict) -> Prompt:
    text = line["prompt"] if "prompt" in line else line["turns"][0]
    name = line.get("id", line.get("question_id", i))
    return Prompt(str(name), str(line.get("category", "prompts")), text)
