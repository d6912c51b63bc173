"""Strings that end a text, found as the text comes in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Takes a text in pieces, and gives back what is certain to come before any stop string.

    Attributes:
        pending: What was taken and not yet given, as it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self.pending = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """The text that has become certain, and whether a stop string is complete: the first."""
        text = self.pending + piece
        found = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.pending = ""
            return text[: min(found)], True
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self.pending = text[len(text) - held :]
        return text[: len(text) - held], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        text, self.pending = self.pending, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the string, not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
