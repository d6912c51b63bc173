"""`speculax generate`: continue a prompt, and show which tokens were accepted drafts."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.status import Status

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
from speculax.cli.printer import Printer, say
from speculax.cli.prompt_text import read_prompt
from speculax.cli.report import as_json as to_json, describe, describe_comparison
from speculax.generation import STEP_WIDTH
from speculax.models.load import cache_directory
from speculax.request import NUMBERS
from speculax.rules import RULES, as_rule
from speculax.trace import make_trace, write_trace

_SEE_HELP = "see speculax generate --help"


@reported
def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The text to continue.", show_default=False),
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read the prompt from a UTF-8 file; - is stdin."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="The target: demo, gemma3-270m, or the path of a .gguf file."),
    ] = "demo",
    draft_model: DraftModelOption = None,
    draft_head: DraftHeadOption = None,
    suffix: SuffixOption = False,
    verify: Annotated[
        str, typer.Option(help=f"The rule that judges drafts: {', '.join(RULES)}.")
    ] = "token",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token; 1 samples the model's own law.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens of this mass; 1 keeps all.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens this likely compared with the likeliest.")
    ] = 0.0,
    order: Annotated[
        str, typer.Option(help="Whether cut-offs look at one law: sequential or joint.")
    ] = "sequential",
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of prompt and text less likely.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from logits of tokens in the text.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="The same, for each time that they are in it.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=X", help="Added to a token's logit; may be repeated."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; may be repeated."),
    ] = None,
    stop_id: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="End with this token; may be repeated."),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --json: log-probabilities of tokens, and the N likeliest in their place.",
            show_default=False,
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Fix the width of steps: with --verify coupled, or at temperature 0, the text is "
            "the same bytes with drafts and without.",
        ),
    ] = False,
    tuned: TunedOption = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes a sampled text repeatable.", show_default="fresh")
    ] = None,
    draft_length: DraftLengthOption = None,
    max_ngram: Annotated[
        int, typer.Option(help="Longest n-gram looked up in the text so far.")
    ] = 3,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Generate plainly.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run without speculation, and compare.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what happened at each step, for speculax trace."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Continue PROMPT; the text goes to stdout, all else to stderr.

    On a terminal, draft tokens that the target accepted are underlined (and green);
    the tokens it drew itself are plain.
    """
    text = read_prompt(prompt, prompt_file)
    _require(
        draft_length is None or draft_length >= 0, "--draft-length", "at least 0", draft_length
    )
    _require(max_ngram >= 1, "--max-ngram", "at least 1", max_ngram)
    if no_draft and (draft_model is not None or draft_head is not None or suffix):
        raise CommandError("a drafter was named, which --no-draft forbids", "leave out one")
    if tuned and no_draft:
        raise CommandError("--tuned adapts drafts, which --no-draft forbids", "leave out one")
    if compare and no_draft:
        raise CommandError(
            "--compare runs with and without drafts, which --no-draft forbids",
            "leave out one of the two",
        )
    if logprobs is not None and not as_json:
        raise CommandError("--logprobs has no place in a text", "add --json")
    requested = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "order": order,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": _read_bias(logit_bias or []),
        "stop": stop or [],
        "stop_ids": stop_id or [],
    }

    for name, number in NUMBERS.items():
        given: Any = requested.get(name)
        if given is not None and not number.holds(given):
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option} must be {number.words}, got {given}", _SEE_HELP)

    _keep_compiled_programs()
    with mendable(ValueError, _SEE_HELP):
        rule = as_rule(verify)
    target = sx.load(model)
    drafter = None
    if not no_draft:
        drafter = choose_drafter(
            target, draft_model, draft_head, suffix, draft_length, "generate", max_ngram
        )
    costs = None
    if tuned and drafter is not None:
        costs = kept_costs(target, drafter, verify, temperature)

    def start(drafter: sx.Drafter | None, seed: int | None) -> sx.Stream:
        with mendable(ValueError, _SEE_HELP):
            return sx.stream(
                target,
                text,
                drafter=drafter,
                verify=verify,
                costs=costs,
                deterministic=deterministic,
                log_probs=logprobs,
                record=trace is not None,
                seed=seed,
                **requested,
            )

    if trace is not None:
        with usable(trace), trace.open("a"):  # before any work is done
            pass
    stream = start(drafter, seed)  # complains of the arguments before anything is shown
    result, interrupted = _run(stream, None if as_json else Printer())
    named = None if no_draft else drafter_name(draft_model, draft_head, suffix)
    settings = {
        "model": model,
        "drafter": named,
        "verify": verify,
        "deterministic": deterministic,
        **requested,
        "logit_bias": logit_bias or [],  # as given: JSON has no infinity
        "draft_length": _asked_length(drafter, draft_length, deterministic),
        "max_ngram": max_ngram,
    }
    if trace is not None:
        about = {
            "model": model,
            "drafter": named,
            "verify": "greedy" if temperature == 0 and rule.becomes_greedy else verify,
            "temperature": temperature,
            "prompt": text,
            "settings": settings,
        }
        with usable(trace):
            write_trace(make_trace(result, target.tokenizer, about), trace)
        say(f"wrote {trace}: speculax trace shows it")
    plain = None
    if compare and not interrupted:
        try:
            result, plain = _time_both(start, drafter, result.seed)
        except KeyboardInterrupt:
            interrupted = True

    if as_json:
        shown = json.dumps(to_json(result, plain, settings), allow_nan=False)
        with writing():
            print(shown)
    else:
        say(describe(result, temperature))
        if plain is not None:
            say(describe_comparison(result, plain, temperature, verify))
    if interrupted:
        raise typer.Exit(130)


def _asked_length(
    drafter: sx.Drafter | None, draft_length: int | None, deterministic: bool
) -> int | None:
    """The most draft tokens of a step; one less than its width if that is fixed."""
    if drafter is None:
        return draft_length
    return min(drafter.draft_length, STEP_WIDTH - 1) if deterministic else drafter.draft_length


def _read_bias(given: list[str]) -> dict[int, float]:
    bias = {}
    for one in given:
        token, _, value = one.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise CommandError(
                f"--logit-bias must be a token id, =, and a number, got {one}",
                "as in --logit-bias 13=-2.5; -inf forbids a token",
            ) from None
    return bias


def _require(condition: bool, option: str, expected: str, given: float | None) -> None:
    if not condition:
        raise CommandError(f"{option} must be {expected}, got {given}", _SEE_HELP)


def _keep_compiled_programs() -> None:
    """Let later runs start without compiling, unless the environment names another place."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
    # Where that fails, programs are compiled as ever: nothing a person need know.
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")


def _status(doing: str) -> Status:
    """A spinner on stderr where that is a terminal, else nothing."""
    return Console(stderr=True).status(doing)


def _chunks(stream: sx.Stream) -> Iterator[list[sx.NewTokens]]:
    """What `stream` yields, until Ctrl-C is pressed."""
    hint = "the weights may be damaged, or overflow on this prompt: try others"
    with mendable(FloatingPointError, hint):
        check()
        for chunk in stream:
            yield chunk
            check()
        for result in stream.results():
            if result.error is not None:
                raise FloatingPointError(result.error)


def _run(stream: sx.Stream, printer: "Printer | None" = None) -> tuple[sx.Generation, bool]:
    """What `stream` makes, shown as it comes; and whether Ctrl-C ended it."""
    interrupted = False
    try:
        with _status("generating") as status:
            for chunk in _chunks(stream):
                if printer:
                    status.stop()
                    for new in chunk:
                        printer.show(new.pieces or [], new.accepted)
    except KeyboardInterrupt:
        interrupted = True
    [result] = stream.results()
    if printer:
        printer.finish(result)
    return result, interrupted


def _time_both(
    start: Callable[[sx.Drafter | None, int], sx.Stream], drafter: sx.Drafter | None, seed: int
) -> tuple[sx.Generation, sx.Generation]:
    """With and without drafts, timed after each has compiled all that it needs.

    The former has: it was just run. The latter compiles in its first chunk.
    """
    with _status("comparing"):
        next(_chunks(start(None, seed)), None)
        streams = [start(drafter, seed), start(None, seed)]
        for stream in streams:
            for _ in _chunks(stream):
                pass
    [drafted], [plain] = (stream.results() for stream in streams)
    return drafted, plain
