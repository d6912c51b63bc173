"""`speculax bench rules`: how many draft tokens each rule keeps, on real laws."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import speculax as sx
from speculax.cli.errors import CommandError, mendable, reported, usable, writing
from speculax.cli.prompts import read_named_prompts
from speculax.conformance.candidate import MisuseError, find
from speculax.conformance.verifier.call import PARAMETERS
from speculax.replay import EXACT, Recording, record, replay
from speculax.rules import RULES

_LOSSLESS = (*EXACT, "coupled")  # rules of one's own may be or not
_BEST = "block"  # no lossless rule for single drafts keeps more


@reported
def rules(
    recording: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A record to replay.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Generate, and write the record there."),
    ] = None,
    model: Annotated[str, typer.Option(help="The target.")] = "demo",
    draft_model: Annotated[str, typer.Option(help="The draft model.")] = "demo-draft",
    draft_length: Annotated[int, typer.Option(help="Draft tokens a step.")] = 8,
    temperature: Annotated[float, typer.Option(help="Above 0.")] = 1.0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help='JSON lines with a "prompt" each.', show_default="no text at all"
        ),
    ] = None,
    num_texts: Annotated[int, typer.Option(help="Texts to generate without prompts.")] = 64,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the first text.")] = 0,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Also run a rule of your own; may be given more than once.",
            show_default="none",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Compare verification rules: record a run with --record FILE, then replay FILE.

    For token, block and sampled verification the numbers are exact for the drafts of the record;
    those of the other rules are counted in runs of their own.
    """
    if (recording is None) == (to is None):
        raise CommandError(
            "there must be either FILE or --record FILE",
            "speculax bench rules --record run.npz, then speculax bench rules run.npz",
        )
    if rule and to is None:
        raise CommandError("--rule is run for a record", "add --record FILE")
    if to is not None:
        if not temperature > 0:
            raise CommandError(
                f"--temperature must be above 0, got {temperature}",
                "at temperature 0 all lossless rules are the same",
            )
        texts = [""] * num_texts
        if prompts:
            texts = [prompt.text for prompt in read_named_prompts(prompts, "bench rules")]
        own = _own_rules(rule or [])
        _record(to, model, draft_model, draft_length, temperature, texts, max_new_tokens, seed, own)
    else:
        assert recording is not None
        _replay(recording, as_json)


def _own_rules(targets: list[str]) -> list[Callable[..., Any]]:
    try:
        return [find(target, PARAMETERS).function for target in targets]
    except MisuseError as error:
        raise CommandError(error.problem, error.hint) from error


def _record(
    path: Path,
    model: str,
    draft_model: str,
    draft_length: int,
    temperature: float,
    texts: list[str],
    max_new_tokens: int,
    seed: int,
    own_rules: list[Callable[..., Any]],
) -> None:
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {path.parent} for the record", "make it first")
    if path.is_file() and path.stat().st_size:
        raise CommandError(f"{path} exists already", "choose another name, or move it away")
    with usable(path):
        open(path, "ab").close()  # now, not after minutes of work
    info = {
        "target": model,
        "draft": draft_model,
        "draft_length": draft_length,
        "temperature": temperature,
        "texts": len(texts),
        "max_new_tokens": max_new_tokens,
        "seed": seed,
    }
    console = Console(stderr=True)
    with console.status("recording"), mendable(ValueError, "see speculax bench rules --help"):
        drafter = sx.DraftModel(sx.load(draft_model), draft_length)
        made = record(
            sx.load(model),
            texts,
            drafter,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            own_rules=own_rules,
            info=info,
            done=lambda rule: console.print(f"{rule}: run", highlight=False),
        )
    with usable(path):
        made.save(path)
    console.print(f"{len(made.requests)} steps of {len(texts)} texts are in {path}")


def _replay(path: Path, as_json: bool) -> None:
    try:
        recording = Recording.load(path)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {error.strerror or error}", "make one with --record"
        ) from None
    except ValueError as error:
        raise CommandError(str(error), "make one with --record") from None
    estimates = replay(recording)
    gain = estimates.pop("block less token")
    best = estimates[_BEST].mean + 1
    with writing():
        if as_json:
            rows = {
                rule: {"accepted": x.mean, "low": x.low, "high": x.high}
                for rule, x in estimates.items()
            }
            shown = {"run": recording.info, "rules": rows, "block_less_token": gain._asdict()}
            print(json.dumps(shown))
            return
        run = ", ".join(f"{name} {value}" for name, value in recording.info.items())
        print(f"{len(recording.requests)} steps; {run}\n")
        width = max(18, *(len(rule) + 2 for rule in estimates))
        title = f"{'accepted a step':>16}{'95 % interval':>18}{'block':>8}{'of the':>8}"
        print(f"{'rule':<{width}}{title}")
        print(f"{'':<{width}}{'':>16}{'':>18}{'effic.':>8}{'best':>8}")
        for rule, x in estimates.items():
            interval = f"{x.low:.3f} to {x.high:.3f}"
            efficiency = x.mean + 1
            share = f"{efficiency / best:.1%}" if rule in _LOSSLESS else ""
            print(f"{rule:<{width}}{x.mean:>16.3f}{interval:>18}{efficiency:>8.3f}{share:>8}")
        print(
            f"\nblock less token: {gain.mean:.4f} ({gain.low:.4f} to {gain.high:.4f}) a step\n"
            "token, block, sampled: exact for these drafts. ideal: out of reach for any\n"
            "rule that is given a single draft. The others: counted in runs of their own;\n"
            "lossy rules change the law of the texts (thresholds only below 1), and ran with"
        )
        for rule in estimates:
            if rule in RULES and rule.startswith("lossy"):
                print(f"  {_defaults(rule)}")


def _defaults(rule: str) -> str:
    """A rule and what its settings are if they are not given."""
    parameters = inspect.signature(getattr(sx, f"verify_{rule}")).parameters.values()
    numbers = [x for x in parameters if isinstance(x.default, int | float)]
    return " ".join([rule, *(f"{x.name} {x.default:g}" for x in numbers)])
