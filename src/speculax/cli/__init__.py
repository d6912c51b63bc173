"""The command line, `speculax`: the only part of the library that prints."""

import io
import os
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line; the entry point of the console script `speculax`."""
    try:
        from speculax.cli.interrupt import listen

        listen()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a text may hold any character
        from speculax.cli.app import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("rich", "typer"):
            raise
        print(
            f"error: the command line needs the package {package}, which is not installed.\n\n"
            "hint: pip install 'speculax[cli]', or -e '.[cli]' in a clone",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        _leave(130)
    except SystemExit as end:
        if isinstance(end.code, int) and end.code:
            _leave(end.code)
        raise


def _leave(code: int) -> NoReturn:
    """Leave without the interpreter's tidying up.

    After an interrupted compilation, jaxlib may crash in it; and it would write once more to an
    output that has failed, and complain.
    """
    try:
        print(end="", flush=True)
    except OSError:
        pass
    finally:  # also if Ctrl-C is pressed again
        os._exit(code)
