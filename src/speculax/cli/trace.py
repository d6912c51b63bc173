"""`speculax trace`: look at what happened at each step of a run."""

from pathlib import Path
from typing import Annotated

import typer

from speculax.cli.errors import CommandError, mendable, readable, reported, usable, writing
from speculax.trace import Trace, read_trace
from speculax.viewer import trace_page


@reported
def trace(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What speculax generate --trace wrote.")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page to look at in a browser.")
    ] = None,
) -> None:
    """Show the steps of a run: in the terminal, or as a page."""
    with readable(file), mendable(ValueError, "speculax generate --trace FILE writes one"):
        read = read_trace(file)
    if html is None:
        with writing():
            print(_as_text(read))
        return
    if html.exists() and html.samefile(file):
        raise CommandError("the page would overwrite the trace", "give it another name")
    with usable(html):
        html.write_text(trace_page(read), "utf-8")
    typer.echo(f"wrote {html}: open it in a browser", err=True)


def _as_text(trace: Trace) -> str:
    """A line a step: what was kept of its draft, and what was drawn, in ASCII."""
    lines = ["step  kept  text: [accepted drafts] and what the target drew"]
    for step in trace.steps:
        kept = [token["text"] for token in step["emitted"] if token["kind"] == "accepted"]
        drawn = [token["text"] for token in step["emitted"] if token["kind"] != "accepted"]
        of = "" if step["draft"] is None else f"/{len(step['draft'])}"
        shown = f"[{_ascii(kept)}] " if kept else ""
        lines.append(f"{step['number'] + 1:>4}  {f'{len(kept)}{of}':>5} {shown}{_ascii(drawn)}")
    if trace.end is None:
        lines.append("the file was cut short")
    else:
        lines.append(f"ended: {_ascii([trace.end['stop_reason']])}")
    return "\n".join(lines)


def _ascii(texts: list[str]) -> str:
    return "".join(texts).encode("unicode_escape").decode("ascii")
