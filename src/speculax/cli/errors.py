"""How a command fails: one sentence, a blank line and a hint, on stderr.

Only what a person can mend is told like that. Any other exception is a fault of the program, and
its traceback is shown.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import typer

from speculax.models.errors import LoadError

_LESS_MEMORY = "ask for fewer tokens (--max-new-tokens), or shorter drafts (--draft-length)"


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


@contextmanager
def usable(path: object) -> Iterator[None]:
    """Report that a file a person named can be neither read nor written."""
    try:
        yield
    except OSError as error:
        raise CommandError(
            f"{path} cannot be used: {error.strerror or error}", "choose another file"
        ) from error


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Report that a file a person named cannot be read."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", "check the path") from None


@contextmanager
def writing() -> Iterator[None]:
    """Report that stdout takes no more, except that its reader left."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(
            f"the output cannot be written: {error.strerror}", "write it elsewhere, or make room"
        ) from error


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
            _complain(error.problem, error.hint)
            raise typer.Exit(2) from None
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            _complain(f"the device is out of memory ({error})", _LESS_MEMORY)
            raise typer.Exit(2) from None

    return run


def _complain(problem: str, hint: str) -> None:
    print(f"error: {' '.join(problem.split()).rstrip('.')}.\n\nhint: {hint}", file=sys.stderr)
