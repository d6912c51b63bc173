"""The commands, put together."""

from importlib.metadata import version
from typing import Annotated

import typer

from speculax.cli.bench_prompts import prompts
from speculax.cli.bench_rules import rules
from speculax.cli.check import check
from speculax.cli.generate import generate
from speculax.cli.info import info
from speculax.cli.trace import trace
from speculax.cli.tune import tune

app = typer.Typer(
    name="speculax",
    help="Speculative sampling for JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog='Example: speculax generate --compare "class Stack:"')(generate)
app.command(epilog="Example: speculax check my_step.py:verify --rule block")(check)
app.command(epilog="Example: speculax tune --draft-model demo-draft --plot speeds.png")(tune)
app.command(epilog="Example: speculax trace run.jsonl --html run.html")(trace)
app.command(epilog="Example: speculax info --json")(info)
bench = typer.Typer(help="Measure.", no_args_is_help=True)
bench.command(epilog="Example: speculax bench rules --record rules.npz --draft-model demo-draft")(
    rules
)
bench.command(epilog="Example: speculax bench prompts prompts.jsonl --journal run.jsonl")(prompts)
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"speculax {version('speculax')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    del version
