"""How a command fails: one sentence, a blank line and a hint, on stderr; never a traceback."""

import functools
import sys
from collections.abc import Callable

import typer


class CommandError(Exception):
    """Something a person can mend; `hint` says how."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem)
        self.hint = hint


# What a command may raise, and the hint for messages that bring none themselves.
_HINTS: dict[type[Exception], str] = {
    CommandError: "",
    FloatingPointError: "the weights may be damaged, or overflow on this prompt: try others",
    ModuleNotFoundError: "pip install 'speculax[all]'",
    OSError: "check that files can be read, and that the disk can be written and is not full",
    ValueError: "see speculax generate --help",
}


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command end in a message and exit code 2 on an error, in 130 on Ctrl-C."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # whoever read the output has left, which is no error: typer ends quietly
        except tuple(_HINTS) as error:
            problem, hint = _explain(error)
            print(f"error: {problem}.\n\nhint: {hint}", file=sys.stderr)
            raise typer.Exit(2) from None

    return run


def _explain(error: Exception) -> tuple[str, str]:
    """Problem and hint; the library's messages end in "; " and what to do."""
    message = " ".join(str(error).split()).rstrip(".")
    hint = getattr(error, "hint", None)
    if hint is None:
        _, _, hint = message.rpartition("; ")
        if hint == message:
            hint = next(hint for kind, hint in _HINTS.items() if isinstance(error, kind))
    return message.removesuffix(f"; {hint}"), hint
