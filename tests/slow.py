"""Which of the cases of a test run every time."""

import pytest


def slow_but(quick, cases):
    """All cases, marked as slow but for the quick ones."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
