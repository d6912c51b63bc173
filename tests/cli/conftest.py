"""Toys are compiled with little effort here too."""

from tests.loop.conftest import _little_effort as _little_effort
