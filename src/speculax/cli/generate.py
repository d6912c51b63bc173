"""`speculax generate`: continue a prompt, and show which tokens were accepted drafts."""

import dataclasses
import errno
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.segment import Segment, Segments
from rich.status import Status
from rich.style import Style

import speculax as sx
from speculax.cli.errors import CommandError, mendable, reported, writing
from speculax.cli.interrupt import check
from speculax.models.load import cache_directory
from speculax.request import NUMBERS
from speculax.rules import RULES, as_rule

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
    draft_model: Annotated[
        str | None,
        typer.Option(help="Draft with this model, such as demo-draft.", show_default="n-grams"),
    ] = None,
    draft_head: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draft with a RecurrentHead trained for the model."),
    ] = None,
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
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of prompt and text less likely.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from logits of tokens in the text.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="The same, for each time that they are in it.")
    ] = 0.0,
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
    tuned: Annotated[
        bool,
        typer.Option("--tuned", help="Adapt draft lengths to the costs that tune has measured."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes a sampled text repeatable.", show_default="fresh")
    ] = None,
    draft_length: Annotated[
        int | None,
        typer.Option(
            help="Most tokens drafted in a step.", show_default="15; 4 with a model, 2 with a head"
        ),
    ] = None,
    max_ngram: Annotated[
        int, typer.Option(help="Longest n-gram looked up in the text so far.")
    ] = 3,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Generate plainly.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run without speculation, and compare.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Continue PROMPT; the text goes to stdout, all else to stderr.

    On a terminal, draft tokens that the target accepted are underlined (and green); the tokens
    it drew itself are plain.
    """
    text = _read_prompt(prompt, prompt_file)
    if draft_length is None:
        draft_length = 2 if draft_head is not None else 15 if draft_model is None else 4
    _require(draft_length >= 0, "--draft-length", "at least 0", draft_length)
    _require(max_ngram >= 1, "--max-ngram", "at least 1", max_ngram)
    if no_draft and (draft_model is not None or draft_head is not None):
        raise CommandError("a draft model drafts, which --no-draft forbids", "leave out one")
    if draft_model is not None and draft_head is not None:
        raise CommandError("--draft-model and --draft-head exclude each other", "leave out one")
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
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": stop or [],
        "stop_ids": stop_id or [],
    }

    for name, number in NUMBERS.items():
        if (given := requested.get(name)) is not None and not number.holds(given):
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"{option} must be {number.words}, got {given}", _SEE_HELP)

    _keep_compiled_programs()
    with mendable(ValueError, _SEE_HELP):
        as_rule(verify)
        drafter: sx.Drafter | None = None
        if not no_draft and draft_model is None and draft_head is None:
            drafter = sx.NGram(draft_length=draft_length, max_ngram=max_ngram)
    target = sx.load(model)
    if draft_model is not None:
        draft = sx.load(draft_model)
        with mendable(ValueError, _SEE_HELP):
            drafter = sx.DraftModel(draft, draft_length)

    if draft_head is not None:
        with mendable(ValueError, _SEE_HELP), mendable(OSError, "check the path"):
            drafter = sx.RecurrentHead.load(draft_head, target, draft_length)

    costs = None
    if tuned and drafter is not None:
        costs = sx.load_costs(target, drafter)
        if costs is None:
            raise CommandError(
                "--tuned needs costs of this model and drafter on this machine, and there are none",
                "run speculax tune with the same options first",
            )

    def start(drafter: sx.Drafter | None, seed: int | None) -> sx.Stream:
        with mendable(ValueError, _SEE_HELP):
            return sx.stream(
                target,
                text,
                drafter=drafter,
                verify=verify,
                adaptive=True if costs else None,
                costs=costs,
                deterministic=deterministic,
                log_probs=logprobs,
                seed=seed,
                **requested,
            )

    stream = start(drafter, seed)  # complains of the arguments before anything is shown
    result, interrupted = _run(stream, None if as_json else _Printer())
    plain = None
    if compare and not interrupted:
        try:
            result, plain = _time_both(start, drafter, result.seed)
        except KeyboardInterrupt:
            interrupted = True

    if as_json:
        settings = {
            "model": model,
            "drafter": None if no_draft else draft_model or str(draft_head or "ngram"),
            "verify": verify,
            "deterministic": deterministic,
            **requested,
            "draft_length": draft_length,
            "max_ngram": max_ngram,
        }
        shown = json.dumps(_as_json(result, plain, settings), allow_nan=False)
        with writing():
            print(shown)
    else:
        _say(_describe(result, temperature))
        if plain is not None:
            _say(_describe_comparison(result, plain, temperature, verify))
    if interrupted:
        raise typer.Exit(130)


def _read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The prompt exactly as it was given: a newline at the end of a file is part of it."""
    if (prompt is None) == (prompt_file is None):
        raise CommandError(
            "a prompt is needed" if prompt is None else "PROMPT and --prompt-file were both given",
            'pass PROMPT or --prompt-file FILE, as in speculax generate "def fibonacci(n):"',
        )
    if prompt_file is None:
        name, read = "PROMPT", lambda: os.fsencode(prompt or "")
    elif prompt_file == "-":
        name, read = "the prompt on stdin", _read_stdin
    else:
        name, read = f"the prompt file {prompt_file}", Path(prompt_file).read_bytes
    try:
        return read().decode("utf-8")
    except OSError as error:
        raise CommandError(
            f"{name} could not be read: {error.strerror}", "--prompt-file takes a text file"
        ) from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        what = f"character {error.start} is half a surrogate pair"
        if isinstance(error, UnicodeDecodeError):
            what = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise CommandError(
            f"{name} is not UTF-8 text: {what}", "convert it, for example with iconv -t utf-8"
        ) from None


def _read_stdin() -> bytes:
    if sys.stdin is None:  # so it is if the shell closed it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdin.buffer.read()


def _require(condition: bool, option: str, expected: str, given: float) -> None:
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


def _run(stream: sx.Stream, printer: "_Printer | None" = None) -> tuple[sx.Generation, bool]:
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


class _Printer:
    """Writes text to stdout as it comes; marks accepted drafts if that is a terminal."""

    def __init__(self) -> None:
        self.console = Console()
        self.num_shown = 0  # characters
        self.marked = Style()
        if self.console.is_terminal and self.console.color_system is not None:
            colour = None if self.console.no_color else "green"
            self.marked = Style(color=colour, underline=True)
            looks = "underlined" if self.console.no_color else "green and underlined"
            _say(f"{looks}: draft tokens that the target accepted; plain: tokens it drew itself")

    def show(self, pieces: Iterable[str], accepted: Iterable[bool]) -> None:
        segments = []
        # There may be one piece more than tokens, which was held back.
        for piece, was_draft in zip(pieces, chain(accepted, [False]), strict=False):
            segments += self._segments(piece, was_draft)
        self._write(segments)

    def finish(self, result: sx.Generation) -> None:
        """Show what an interruption kept from being shown, and end the line on a terminal."""
        self.show([(result.text or "")[self.num_shown :]], [])
        if self.console.is_terminal:
            self._write([Segment("\n")])

    def _segments(self, text: str, was_draft: bool) -> list[Segment]:
        self.num_shown += len(text)
        # A newline is never marked: some terminals would underline the rest of the line.
        return [
            Segment(piece, self.marked if was_draft and piece != "\n" else None)
            for piece in re.split("(\n)", text)
            if piece
        ]

    def _write(self, segments: list[Segment]) -> None:
        if segments:  # as they are: rich would expand tabs and break lines
            with writing():
                self.console.print(Segments(Segment.simplify(segments)), end="", crop=False)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _describe(result: sx.Generation, temperature: float) -> str:
    stats = result.stats
    parts = [f"{len(result.tokens)} tokens in {stats.steps} steps"]
    if stats.steps:
        parts += [
            f"{stats.tokens_per_second:.1f} tok/s",
            f"block efficiency {stats.block_efficiency:.2f}",
            f"acceptance rate {stats.acceptance_rate:.2f}" if stats.drafted else "no drafts",
            f"first token after {stats.time_to_first_token:.2f} s",
        ]
    if temperature > 0:
        parts.append(f"seed {result.seed}")
    if result.stop_reason == "interrupted":
        parts.append("interrupted")
    return ", ".join(parts)


def _speedup(result: sx.Generation, plain: sx.Generation) -> float:
    rate, plain_rate = result.stats.tokens_per_second, plain.stats.tokens_per_second
    return rate / plain_rate if plain_rate else math.nan


def _describe_comparison(
    result: sx.Generation, plain: sx.Generation, temperature: float, verify: str
) -> str:
    if np.array_equal(result.tokens, plain.tokens):
        same = "same text"
    elif verify.startswith("lossy"):
        same = "another text, as a lossy rule may"
    elif temperature > 0:
        same = "another text, as sampling may: the law is the same"
    else:
        same = "NOT the same text"
    return (
        f"without speculation: {len(plain.tokens)} tokens, "
        f"{plain.stats.tokens_per_second:.1f} tok/s, {same}; "
        f"speedup {_speedup(result, plain):.2f}x (tokens per second of decoding on "
        f"{jax.default_backend()}, one request, both warm)"
    )


def _as_json(
    result: sx.Generation, plain: sx.Generation | None, settings: dict[str, Any]
) -> dict[str, Any]:
    shown = {
        "text": result.text,
        "tokens": result.tokens.tolist(),
        "accepted": result.accepted.tolist(),
        "stop_reason": result.stop_reason,
        "seed": result.seed,
        "log_probs": _log_probs_as_json(result.log_probs),
        "stats": _stats_as_json(result.stats),
        "settings": settings,
    }
    if plain is not None:
        shown["comparison"] = {
            "speedup": _finite(_speedup(result, plain)),
            "same_text": np.array_equal(result.tokens, plain.tokens),
            "compared": "tokens per second of decoding; one request, both runs warm",
            "stats": _stats_as_json(plain.stats),
        }
    return shown


def _log_probs_as_json(log_probs: sx.TokenLogProbs | None) -> dict[str, Any] | None:
    if log_probs is None:
        return None
    shown = {name: part.tolist() for name, part in log_probs._asdict().items()}
    for name in ("model", "sampled"):  # -inf where the law leaves a token out
        shown[name] = [_finite(x) for x in shown[name]]
    return shown


def _stats_as_json(stats: sx.Stats) -> dict[str, Any]:
    rates = ("acceptance_rate", "block_efficiency", "tokens_per_second", "acceptance_by_position")
    shown = dataclasses.asdict(stats) | {name: getattr(stats, name) for name in rates}
    return {
        name: [_finite(x) for x in value] if isinstance(value, tuple) else _finite(value)
        for name, value in shown.items()
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN: a rate of nothing is null."""
    return value if math.isfinite(value) else None
