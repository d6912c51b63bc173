"""What happened at each step of a run, as data: JSON lines, one a step.

The first line says what was run, each further one is a step, the last says how it ended; see
docs/trace.md. A version is MAJOR.MINOR: a reader takes later minors, which only add.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from speculax.json_numbers import finite
from speculax.models.tokenizer import text_stream
from speculax.row import Generation

FORMAT, VERSION = "speculax-trace", "1.0"
_MAJOR = int(VERSION.split(".")[0])


class Trace(NamedTuple):
    """A trace as read: plain dicts, as in the file.

    Attributes:
        run: What was run.
        steps: What happened.
        end: How it ended; None if the file was cut short.
    """

    run: dict[str, Any]
    steps: list[dict[str, Any]]
    end: dict[str, Any] | None


def make_trace(result: Generation, tokenizer: Any, run: dict[str, Any]) -> Trace:
    """The trace of a result, with probabilities if it has a record.

    Args:
        result: Of `generate`, best with `record=True`.
        tokenizer: The model's; None if it has none.
        run: What to say of the run: model, drafter, verify, prompt and the like.
    """
    head = {"type": "run", "format": FORMAT, "version": VERSION, "speculax": version("speculax")}
    rates = ("block_efficiency", "acceptance_rate", "tokens_per_second")
    stats = dataclasses.asdict(result.stats)
    stats |= {name: getattr(result.stats, name) for name in rates}
    end = {
        "type": "end",
        "stop_reason": result.stop_reason,
        "error": result.error,
        "stats": {name: finite(value) for name, value in stats.items()},
    }
    return Trace(head | run | {"seed": result.seed}, list(_steps(result, tokenizer)), end)


def write_trace(trace: Trace, path: Path) -> None:
    """Write it as JSON lines.

    Raises:
        OSError: If the file cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        for line in [trace.run, *trace.steps, *([trace.end] if trace.end else [])]:
            file.write(json.dumps(line, allow_nan=False) + "\n")


def read_trace(path: Path) -> Trace:
    """Read what `write_trace` wrote; of a file that was cut short, all whole lines.

    Raises:
        ValueError: If it is no trace, one of a newer major version, or damaged before its last
            line.
        OSError: If it cannot be read.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
        run = _parse(lines[0])
        major = int(run["version"].split(".")[0]) if run["format"] == FORMAT else 0
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        run, major, lines, rest = {}, 0, [], b""
    if major < 1:
        raise ValueError(f"{path} must be a trace, as speculax generate --trace writes one.")
    if major > _MAJOR:
        raise ValueError(
            f"{path} is a trace of version {run['version']!r}, and this program reads up to "
            f"{_MAJOR}.*; install a newer speculax."
        )
    steps: list[dict[str, Any]] = []
    end = None
    for number, line in enumerate(lines[1:] + [rest] * bool(rest), 2):
        try:
            entry = _parse(line)
            if entry["type"] == "step":
                steps.append(_checked(entry) | {"number": len(steps)})
            elif entry["type"] == "end":
                end = entry
                _require(isinstance(end["stop_reason"], str))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number > len(lines):  # the last one, without its line end
                break
            raise ValueError(f"{path} is damaged: line {number} is no step of a trace.") from error
    return Trace(run, steps, end)


def _parse(line: bytes) -> dict[str, Any]:
    """A line of a trace; ValueError if it is no JSON, or has what JSON or UTF-8 does not."""

    def refuse(number: str) -> None:
        raise ValueError(number)

    entry = json.loads(line, parse_constant=refuse)
    # Half a surrogate pair cannot be written, nor a number that is too large.
    json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
    _require(isinstance(entry, dict))
    return entry


def _checked(step: dict[str, Any]) -> dict[str, Any]:
    """The step, if it has what readers rely on; what may be left out is null."""
    step = {"draft": None, "sample_uniform": None, "candidates": None} | step
    _require(_is_number(step["sample_uniform"]))
    for token in step["emitted"]:
        _require(isinstance(token["text"], str) and isinstance(token["kind"], str))
    for name, numbers in (
        ("draft", ("target", "draft", "uniform")),
        ("candidates", ("draw", "target", "draft")),
    ):
        for token in step[name] or []:
            _require(isinstance(token["text"], str))
            _require(all(_is_number(token[number]) for number in numbers))
    _require(all(isinstance(draft["result"], str) for draft in step["draft"] or []))
    return step


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _require(condition: bool) -> None:
    if not condition:
        raise TypeError


def _steps(result: Generation, tokenizer: Any) -> Iterator[dict[str, Any]]:
    texts = _pieces(result, tokenizer)
    lengths = list(_run_lengths(result))
    if result.record is not None:  # a request that failed has a step without tokens
        lengths += [0] * (len(result.record.accepted) - len(lengths))
    place = 0
    for number, length in enumerate(lengths):
        kept = int(result.accepted[place : place + length].sum())
        record = None if result.record is None else _read_record(result, number, tokenizer)
        num_drafts = None if record is None else len(record["draft"])
        is_cut = kept == length  # nothing was drawn
        kinds = ["accepted"] * kept + [_kind(kept, num_drafts)] * (length - kept)
        if record is not None:
            for i, draft in enumerate(record["draft"]):
                is_tested = i == kept and not is_cut
                draft["result"] = "accepted" if i < kept else "refused" if is_tested else "untested"
        yield {
            "type": "step",
            "number": number,
            "emitted": [
                {"token": int(result.tokens[place + i]), "text": texts[place + i], "kind": kind}
                for i, kind in enumerate(kinds)
            ],
            **(record or {"draft": None, "sample_uniform": None, "candidates": None}),
        }
        place += length


def _kind(kept: int, num_drafts: int | None) -> str:
    """What the token is that the target drew itself."""
    if not num_drafts:
        return "drawn"
    return "bonus" if kept == num_drafts else "correction"


def _run_lengths(result: Generation) -> Iterator[int]:
    """How many tokens each step emitted: accepted drafts, and one more but where the text ends."""
    length = 0
    for is_accepted in result.accepted:
        length += 1
        if not is_accepted:
            yield length
            length = 0
    if length:
        yield length


def _read_record(result: Generation, number: int, tokenizer: Any) -> dict[str, Any]:
    record = result.record
    assert record is not None
    has_draft = record.draft_tokens[number] >= 0
    names = ("draft_tokens", "target_probs", "draft_probs", "accept_uniforms")
    drafts = zip(
        *(getattr(record, name)[number][has_draft].tolist() for name in names), strict=True
    )
    names = (
        "candidates",
        "candidate_draw_probs",
        "candidate_target_probs",
        "candidate_draft_probs",
    )
    candidates = zip(*(getattr(record, name)[number].tolist() for name in names), strict=True)
    return {
        "draft": [
            {"token": token, "text": _text(tokenizer, token), "target": finite(target),
             "draft": finite(draft), "uniform": finite(uniform)}
            for token, target, draft, uniform in drafts
        ],
        "sample_uniform": finite(record.sample_uniforms[number].item()),
        "candidates": [
            {"token": token, "text": _text(tokenizer, token), "draw": finite(draw),
             "target": target, "draft": draft}
            for token, draw, target, draft in candidates
            if token >= 0 and draw != 0
        ],
    }  # fmt: skip


def _pieces(result: Generation, tokenizer: Any) -> Sequence[str]:
    """The text that each token made certain; all of it together is that of the result."""
    if tokenizer is None:
        return [f" {token}" for token in result.tokens.tolist()]
    stream = text_stream(tokenizer)
    pieces = [stream.push(token) for token in result.tokens.tolist()]
    if pieces:
        pieces[-1] += stream.flush()
    left = len(result.text or "")  # before a stop string
    for i, piece in enumerate(pieces):
        pieces[i] = piece[:left]
        left -= len(pieces[i])
    return pieces


def _text(tokenizer: Any, token: int) -> str:
    return f" {token}" if tokenizer is None else tokenizer.decode([token])
