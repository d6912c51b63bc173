"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
import pkgutil

import speculax


def test_examples():
    attempted = 0
    for module in pkgutil.walk_packages(speculax.__path__, "speculax."):
        if module.name.startswith("speculax.cli"):
            continue
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
        attempted += result.attempted
    assert attempted
