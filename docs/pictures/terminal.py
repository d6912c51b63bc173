"""Draw terminal.svg: what `speculax generate` prints on a terminal, as it comes."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND = "speculax generate --draft-model demo-draft --max-new-tokens 128 --compare 'class Stack:'"
COLUMNS, ROWS = 100, 40
UP, WIPE = "\x1b[1A", "\x1b[2K"  # one line up; clear the line

# A terminal without a font of its own, which would come from the network.
PAGE = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
{styles}
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
</style>
<defs>
{lines}
</defs>
<rect fill="#1d1f21" width="{width}" height="{height}" rx="8"/>
<g transform="translate(12, 12)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run_on_terminal(command: str) -> str:
    """What a command writes, escape codes included, where it believes that a person looks on."""
    ours, theirs = pty.openpty()
    environment = os.environ | {
        "COLUMNS": str(COLUMNS),
        "LINES": str(ROWS),
        "TERM": "xterm-256color",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        shlex.split(command), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as child:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # on Linux, the end
                break
            if not piece:
                break
            written += piece
    assert child.returncode == 0, written.decode()
    return written.decode()


def draw() -> str:
    """The picture."""
    lines: list[str] = []
    for line in run_on_terminal(COMMAND).split("\n"):
        if UP in line:  # a status line is wiped away
            lines.pop()
        lines.append(line.rstrip("\r").rsplit(WIPE, 1)[-1])
    with open(os.devnull, "w") as nothing:
        console = Console(record=True, width=COLUMNS, file=nothing, force_terminal=True)
        console.print(f"$ {COMMAND}", style="bold", highlight=False)
        for line in lines:
            console.print(Text.from_ansi(line))
        return console.export_svg(title="", theme=MONOKAI, code_format=PAGE, unique_id="terminal")


if __name__ == "__main__":
    Path(__file__).with_name("terminal.svg").write_text(draw(), "utf-8")
