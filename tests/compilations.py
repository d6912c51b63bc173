"""What a piece of code compiles."""

from contextlib import contextmanager

import jax


@contextmanager
def counted_compilations():
    """A list that grows with each program compiled."""
    compiled = []

    def listen(event, duration_secs, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
