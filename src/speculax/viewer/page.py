"""The page of a trace, put together from its template, style and script."""

import html
import json
from importlib.resources import files
from itertools import groupby

from speculax.trace import Trace


def trace_page(trace: Trace) -> str:
    """A page that shows the text, and what happened at each step.

    All text of the trace is escaped; without JavaScript the text is shown, with its tokens marked.
    """
    parts = {
        "/*STYLE*/": _read("trace.css"),
        "<!--ABOUT-->": html.escape(_about(trace)),
        "<!--TEXT-->": _marked(trace),
        "<!--TRACE-->": _as_script(trace),
        "/*SCRIPT*/": _read("trace.js"),
    }
    page = _read("trace.html")
    pieces = []
    for mark, part in parts.items():  # in the order of the template: a part may hold a later mark
        before, page = page.split(mark)
        pieces += [before, part]
    return "".join([*pieces, page])


def _read(name: str) -> str:
    return files("speculax.viewer").joinpath(name).read_text("utf-8").rstrip("\n")


def _about(trace: Trace) -> str:
    run = trace.run
    parts = [f"{name} {run[name]}" for name in ("model", "drafter", "verify") if run.get(name)]
    num = sum(len(step["emitted"]) for step in trace.steps)
    parts.append(f"{num} tokens in {len(trace.steps)} steps")
    if run.get("temperature") is not None:
        parts.append(f"temperature {run['temperature']}")
    parts.append(f"seed {run['seed']}" if run.get("temperature") else "")
    parts.append("the file was cut short" if trace.end is None else "")
    return ", ".join(part for part in parts if part)


def _marked(trace: Trace) -> str:
    """The text as HTML."""
    tokens = [token for step in trace.steps for token in step["emitted"]]
    runs = ((kind, list(some)) for kind, some in groupby(tokens, lambda token: token["kind"]))
    return "".join(
        f'<span class="token {html.escape(kind)}">'
        f"{html.escape(''.join(token['text'] for token in some))}</span>"
        for kind, some in runs
    )


def _as_script(trace: Trace) -> str:
    """JSON that cannot end the element that it is in."""
    data = json.dumps({"run": trace.run, "steps": trace.steps, "end": trace.end})
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
