"""Text on stdout as it is made, with accepted drafts marked; all else goes to stderr."""

import re
import sys
from collections.abc import Iterable
from itertools import chain

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

import speculax as sx
from speculax.cli.errors import writing


def say(line: str) -> None:
    """Write a line to stderr."""
    print(line, file=sys.stderr, flush=True)


class Printer:
    """Writes text to stdout as it comes; marks accepted drafts if that is a terminal."""

    def __init__(self) -> None:
        self.console = Console()
        self.num_shown = 0  # characters
        self.marked = Style()
        if self.console.is_terminal and self.console.color_system is not None:
            colour = None if self.console.no_color else "green"
            self.marked = Style(color=colour, underline=True)
            looks = "underlined" if self.console.no_color else "green and underlined"
            say(f"{looks}: draft tokens that the target accepted; plain: tokens it drew itself")

    def show(self, pieces: Iterable[str], accepted: Iterable[bool]) -> None:
        """Show pieces of text, marked where they are accepted drafts."""
        segments = []
        # There may be one piece more than tokens, which was held back.
        for piece, was_draft in zip(pieces, chain(accepted, [False]), strict=False):
            segments += self._segments(piece, was_draft)
        self._write(segments)

    def finish(self, result: sx.Generation) -> None:
        """Show what an interruption kept from being shown, and end the line on a terminal."""
        self.show([(result.text or "")[self.num_shown :]], [])
        if self.console.is_terminal:
            self._write([Segment("\n")])

    def _segments(self, text: str, was_draft: bool) -> list[Segment]:
        self.num_shown += len(text)
        # A newline is never marked: some terminals would underline the rest of the line.
        return [
            Segment(piece, self.marked if was_draft and piece != "\n" else None)
            for piece in re.split("(\n)", text)
            if piece
        ]

    def _write(self, segments: list[Segment]) -> None:
        if segments:  # as they are: rich would expand tabs and break lines
            with writing():
                self.console.print(Segments(Segment.simplify(segments)), end="", crop=False)
