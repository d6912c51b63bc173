"""The one prompt of a command: an argument, a file or stdin."""

import errno
import os
import sys
from pathlib import Path

from speculax.cli.errors import CommandError


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The prompt exactly as it was given: a newline at the end of a file is part of it."""
    if (prompt is None) == (prompt_file is None):
        raise CommandError(
            "a prompt is needed" if prompt is None else "PROMPT and --prompt-file were both given",
            'pass PROMPT or --prompt-file FILE, as in speculax generate "def fibonacci(n):"',
        )
    if prompt_file is None:
        name, read = "PROMPT", lambda: os.fsencode(prompt or "")
    elif prompt_file == "-":
        name, read = "the prompt on stdin", _read_stdin
    else:
        name, read = f"the prompt file {prompt_file}", Path(prompt_file).read_bytes
    try:
        return read().decode("utf-8")
    except OSError as error:
        raise CommandError(
            f"{name} could not be read: {error.strerror}", "--prompt-file takes a text file"
        ) from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        what = f"character {error.start} is half a surrogate pair"
        if isinstance(error, UnicodeDecodeError):
            what = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise CommandError(
            f"{name} is not UTF-8 text: {what}", "convert it, for example with iconv -t utf-8"
        ) from None


def _read_stdin() -> bytes:
    if sys.stdin is None:  # so it is if the shell closed it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdin.buffer.read()
