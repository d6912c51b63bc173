"""Wall time, with what goes into compiling and into waiting for the device apart."""

import threading
import time
from typing import Any

import jax
import numpy as np


class Clock:
    """Times a block of code, as a context manager.

    Attributes:
        seconds: Wall time, compiling apart.
        compile_seconds: Time spent tracing and compiling.
        blocked_seconds: Time spent waiting for the device.
    """

    def __enter__(self) -> "Clock":
        self._thread = threading.get_ident()
        self.seconds = self.compile_seconds = self.blocked_seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start - self.compile_seconds
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def wait_for(self, arrays: Any) -> Any:
        """The arrays as NumPy arrays of their own, as soon as the device has made them."""
        start = time.perf_counter()
        jax.block_until_ready(arrays)
        self.blocked_seconds += time.perf_counter() - start
        return jax.tree.map(np.array, arrays)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        # Heard of wherever in the process it happens, but in the thread that compiles.
        if event.startswith("/jax/core/compile/") and threading.get_ident() == self._thread:
            self.compile_seconds += duration_secs
