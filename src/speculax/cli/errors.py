"""How a command fails: one sentence, a blank line and a hint, on stderr.

Only what a person can mend is told like that. Any other exception is a fault of the program, and
its traceback is shown.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from speculax.models.errors import LoadError


class CommandError(Exception):
    """Something a person can mend: the `problem`, and a `hint` that says how."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@contextmanager
def mendable(kind: type[Exception], hint: str) -> Iterator[None]:
    """Report errors of a `kind`, around a call that raises them for what a person gave it."""
    try:
        yield
    except kind as error:
        raise CommandError(str(error), hint) from error


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command end in a message and exit code 2 on an error, in 130 on Ctrl-C."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except (CommandError, LoadError) as error:
            problem = " ".join(error.problem.split()).rstrip(".")
            print(f"error: {problem}.\n\nhint: {error.hint}", file=sys.stderr)
            raise typer.Exit(2) from None

    return run
