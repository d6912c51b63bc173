"""Traces as a page: one file, which needs no network and runs no code but its own."""

from speculax.viewer.page import trace_page

__all__ = ["trace_page"]
