"""Ctrl-C that is not lost.

Usually it raises `KeyboardInterrupt` at once. But in some places an exception goes no further:
Python discards those of callbacks, of which JAX has one at each garbage collection, and XLA some of
those that arise while it compiles. So it is remembered too, to be looked at between chunks.
"""

import signal
import sys
from types import FrameType

_pressed = False


def listen() -> None:
    """From now on, remember Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _on_ctrl_c)
    sys.unraisablehook = _on_discarded


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
    if _pressed:
        raise KeyboardInterrupt


def _on_ctrl_c(signum: int, frame: FrameType | None) -> None:
    global _pressed
    _pressed = True
    raise KeyboardInterrupt


def _on_discarded(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_type is not KeyboardInterrupt:  # nothing to complain of: it is remembered
        sys.__unraisablehook__(unraisable)
