"""`speculax bench prompts`: what drafts are worth on the prompts of a file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.progress import Progress

import speculax as sx
from speculax.cli.drafter import (
    DraftHeadOption,
    DraftLengthOption,
    DraftModelOption,
    SuffixOption,
    TunedOption,
    choose_drafter,
    drafter_name,
    kept_costs,
)
from speculax.cli.errors import CommandError, mendable, reported, usable, writing
from speculax.cli.interrupt import check
from speculax.cli.prompts import read_named_prompts
from speculax.prompt_bench import Journal, Summary, measure, summarize
from speculax.prompt_file import first_of_each

_SEE_HELP = "see speculax bench prompts --help"


@reported
def prompts(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON lines with a prompt each, as Spec-Bench has."),
    ],
    model: Annotated[str, typer.Option(help="The target, as for generate.")] = "demo",
    draft_model: DraftModelOption = None,
    draft_head: DraftHeadOption = None,
    suffix: SuffixOption = False,
    draft_length: DraftLengthOption = None,
    tuned: TunedOption = False,
    verify: Annotated[str, typer.Option(help="The rule that judges drafts.")] = "token",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 128,
    per_category: Annotated[
        int | None, typer.Option(help="Prompts of each category.", show_default="all")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the first run.")] = 0,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep measures there, and go on where it was left."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not Markdown.")] = False,
) -> None:
    """Run prompts with drafts and without, and print speedups by category as Markdown."""
    chosen = read_named_prompts(file, "bench prompts")
    if per_category is not None:
        if per_category < 1:
            raise CommandError(f"--per-category must be at least 1, got {per_category}", _SEE_HELP)
        chosen = first_of_each(chosen, per_category)
    target = sx.load(model)
    drafter = choose_drafter(target, draft_model, draft_head, suffix, draft_length, "bench prompts")
    costs = kept_costs(target, drafter, verify, temperature) if tuned else None
    settings = {
        "model": model,
        "drafter": drafter_name(draft_model, draft_head, suffix),
        "costs": costs and asdict(costs),
        "draft_length": drafter.draft_length,
        "verify": verify,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    with mendable(ValueError, "choose another file"), usable(journal):
        kept = Journal(journal, settings | {"file": file.name}) if journal else None
    wanted = {(prompt.id, repeat) for prompt in chosen for repeat in range(repeats)}
    measures = [one for one in kept.measures if (one.id, one.repeat) in wanted] if kept else []
    console = Console(stderr=True)
    with (
        mendable(ValueError, _SEE_HELP),
        mendable(FloatingPointError, "try other prompts: the weights may overflow on this one"),
        Progress(console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("prompts", total=len(chosen) * repeats, completed=len(measures))
        for one in measure(
            target,
            chosen,
            drafter,
            verify=verify,
            costs=costs,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            repeats=repeats,
            seed=seed,
            is_done=kept.has if kept else lambda prompt, repeat: False,
        ):
            measures.append(one)
            if kept:
                kept.add(one)
            check()
            bar.update(task, advance=1, description=one.category)
    summaries = summarize(measures)
    with writing():
        if as_json:
            print(json.dumps({"run": settings, "categories": [asdict(one) for one in summaries]}))
        else:
            print(_as_markdown(summaries))


def _as_markdown(summaries: list[Summary]) -> str:
    lines = [
        "| category | prompts | block efficiency | accepted | speedup (95 %) | worst | same text |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in summaries:
        accepted = "-" if one.acceptance_rate is None else f"{one.acceptance_rate:.2f}"
        same = "-" if one.same is None else f"{one.same} of {one.prompts}"
        interval = "-" if one.low is None else f"{one.low:.2f} to {one.high:.2f}"
        lines.append(
            f"| {one.category} | {one.prompts} | {one.block_efficiency:.2f} | {accepted} | "
            f"{one.speedup:.2f} ({interval}) | {one.worst:.2f} | {same} |"
        )
    return "\n".join(lines)
