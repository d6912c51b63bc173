"""The command line, `speculax`: the only part of the library that prints."""

import sys


def main() -> None:
    """Run the command line; the entry point of the console script `speculax`."""
    try:
        from speculax.cli.app import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("rich", "typer"):
            raise
        print(
            f"error: the command line needs the package {package}, which is not installed.\n\n"
            "hint: pip install 'speculax[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
