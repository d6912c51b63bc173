"""Pages to look at: a trace, and a step to play with. One file each, without network."""

from speculax.viewer.step_page import step_page
from speculax.viewer.trace_page import trace_page

__all__ = ["step_page", "trace_page"]
