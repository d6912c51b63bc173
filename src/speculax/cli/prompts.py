"""The prompts in a file that a person named."""

from pathlib import Path

from speculax.cli.errors import mendable, readable
from speculax.prompt_file import NamedPrompt, read_prompts


def read_named_prompts(path: Path, command: str) -> list[NamedPrompt]:
    """See `read_prompts`."""
    with readable(path), mendable(ValueError, f"see speculax {command} --help"):
        return read_prompts(path)
