"""What tests of the kit share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_module_of_another_test(monkeypatch):
    """Functions under test are written to a file my.py, which stays imported."""
    monkeypatch.delitem(sys.modules, "my", raising=False)
