"""The drafter that the options of a command name, and what it costs."""

from pathlib import Path
from typing import Annotated

import typer

import speculax as sx
from speculax.cli.errors import CommandError, mendable

DraftModelOption = Annotated[
    str | None,
    typer.Option(help="Draft with this model, such as demo-draft.", show_default="n-grams"),
]
DraftHeadOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draft with a RecurrentHead trained for the model."),
]
SuffixOption = Annotated[
    bool, typer.Option("--suffix", help="Draft what most often followed the longest suffix.")
]
DraftLengthOption = Annotated[
    int | None,
    typer.Option(
        help="Most tokens drafted in a step.", show_default="15; 4 with a model, 2 with a head"
    ),
]
TunedOption = Annotated[
    bool, typer.Option("--tuned", help="Adapt draft lengths to the costs that tune has measured.")
]


def choose_drafter(
    target: sx.Model,
    draft_model: str | None,
    draft_head: Path | None,
    suffix: bool,
    draft_length: int | None,
    command: str,
    max_ngram: int = 3,
) -> sx.Drafter:
    """A draft model, a head or suffixes; n-grams if none is named."""
    if (draft_model is not None) + (draft_head is not None) + suffix > 1:
        raise CommandError(
            "--draft-model, --draft-head and --suffix exclude each other", "leave all out but one"
        )

    def length(default: int) -> int:
        return default if draft_length is None else draft_length

    with mendable(ValueError, f"see speculax {command} --help"):
        if draft_model is not None:
            return sx.DraftModel(sx.load(draft_model), length(4))
        if draft_head is not None:
            with mendable(OSError, "check the path"):
                return sx.RecurrentHead.load(draft_head, target, length(2))
        return sx.Suffix(length(15)) if suffix else sx.NGram(length(15), max_ngram)


def drafter_name(draft_model: str | None, draft_head: Path | None, suffix: bool) -> str:
    """What to call it in a report."""
    return draft_model or str(draft_head or ("suffix" if suffix else "ngram"))


def kept_costs(
    target: sx.Model, drafter: sx.Drafter, verify: str, temperature: float
) -> sx.StepCosts:
    """What `speculax tune` measured of these on this machine."""
    costs = sx.load_costs(target, drafter, verify=verify, temperature=temperature)
    if costs is None:
        raise CommandError(
            "--tuned needs costs of this model, drafter and rule on this machine, and there are "
            f"none at temperature {'0' if temperature == 0 else 'above 0'}",
            "run speculax tune with the same --model, drafter, --verify and --temperature first",
        )
    return costs
