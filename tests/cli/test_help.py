"""What `--help` of every command shows."""

import re

import pytest
from typer.testing import CliRunner

from speculax.cli.app import app

COMMANDS = ["generate", "check", "tune", "trace", "info", "bench rules", "bench prompts"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_an_example(command):
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    [example] = re.findall(r"Example: speculax (.*)", result.stdout)
    assert example.startswith(command)


def test_all_commands_are_listed():
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert all(command.split()[0] in listed for command in COMMANDS)
