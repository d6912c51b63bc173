"""`speculax tune`: what drafts of each length cost and bring on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

import speculax as sx
from speculax.cli.drafter import (
    DraftHeadOption,
    DraftLengthOption,
    DraftModelOption,
    SuffixOption,
    choose_drafter,
)
from speculax.cli.errors import CommandError, mendable, reported, usable, writing
from speculax.cli.interrupt import check
from speculax.cli.prompts import read_named_prompts
from speculax.json_numbers import finite
from speculax.tuning import Tuning, save_costs

_SEE_HELP = "see speculax tune --help"
_BAR = 24  # characters of the longest bar
_PROMPTS = ("class Stack:\n", "import os\n", "def read_lines(path):\n", "for name in names:\n")


@reported
def tune(
    model: Annotated[str, typer.Option(help="The target, as for generate.")] = "demo",
    draft_model: DraftModelOption = None,
    draft_head: DraftHeadOption = None,
    suffix: SuffixOption = False,
    draft_length: DraftLengthOption = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON lines with a prompt each.", show_default="Python"),
    ] = None,
    verify: Annotated[str, typer.Option(help="The rule that judges drafts.")] = "token",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each prompt.")] = 3,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot it too, in the format of its ending."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Measure draft lengths, and keep the costs for `speculax generate --tuned`."""
    texts = [one.text for one in read_named_prompts(prompts, "tune")] if prompts else list(_PROMPTS)
    if plot is not None:
        _need_matplotlib()
    target = sx.load(model)
    drafter = choose_drafter(target, draft_model, draft_head, suffix, draft_length, "tune")
    console = Console(stderr=True)
    with (
        mendable(ValueError, _SEE_HELP),
        mendable(FloatingPointError, "try other prompts: the weights may overflow on this one"),
        Progress(console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("measuring", total=None)

        def advance(width: int) -> None:
            check()
            bar.update(task, advance=1, description=f"drafts of {width}")

        found = sx.tune(
            target,
            drafter,
            texts,
            verify=verify,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            done=advance,
        )
    with writing():
        print(_as_json(found) if as_json else _as_text(found))
    if plot is not None:
        with usable(plot):
            _plot(found, plot)
    try:
        kept = save_costs(target, drafter, found.costs, verify=verify, temperature=temperature)
    except OSError as error:
        raise CommandError(
            f"the costs cannot be kept: {error}", "make room in the cache, or set SPECULAX_CACHE"
        ) from error
    console.print(f"costs kept in {kept}", highlight=False)


def _as_text(found: Tuning) -> str:
    lines = [
        f"{'drafts of':>9}{'ms a step':>11}{'predicted':>11}{'measured':>10}  speed over plain"
    ]
    most = max(found.measured)
    for width, seconds, predicted, measured in zip(
        found.costs.widths, found.costs.seconds, found.predicted, found.measured, strict=True
    ):
        bar = "#" * max(1, round(_BAR * measured / most))
        lines.append(f"{width:>9}{1000 * seconds:>11.2f}{predicted:>11.2f}{measured:>10.2f}  {bar}")
    rates = " ".join("-" if rate != rate else f"{rate:.2f}" for rate in found.acceptance)
    return "\n".join([*lines, "", f"a draft token holds if those before it did: {rates}"])


def _as_json(found: Tuning) -> str:
    rates = {"acceptance": finite(found.acceptance)}
    return json.dumps(asdict(found) | rates, allow_nan=False)


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CommandError(
            "--plot needs matplotlib, which is not installed", "pip install matplotlib"
        ) from None


def _plot(found: Tuning, path: Path) -> None:
    from matplotlib.figure import Figure

    widths = found.costs.widths
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    costs, rates, speeds = figure.subplots(1, 3)
    costs.plot(widths, [1000 * one for one in found.costs.seconds], "o-", color="C0")
    costs.set(xlabel="draft tokens", ylabel="ms a step", ylim=(0, None))
    rates.plot(range(1, len(found.acceptance) + 1), found.acceptance, "o-", color="C0")
    rates.set(xlabel="place in the draft", ylabel="holds, if those before did", ylim=(0, 1.02))
    speeds.plot(widths, found.measured, "o-", color="C0", label="measured")
    speeds.plot(widths, found.predicted, "s--", color="C1", label="predicted")
    speeds.axhline(1, color="0.7", linewidth=0.8)
    speeds.set(xlabel="draft tokens", ylabel="speed over plain decoding", ylim=(0, None))
    speeds.legend(frameon=False)
    figure.savefig(path, dpi=130)
