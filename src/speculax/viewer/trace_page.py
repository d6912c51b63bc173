"""The page of a trace."""

import html
from itertools import groupby

from speculax.trace import Trace
from speculax.viewer.template import make_page


def trace_page(trace: Trace) -> str:
    """A page that shows the text, and what happened at each step.

    All text of the trace is escaped; without JavaScript the text is shown, with its tokens marked.
    """
    data = {"run": trace.run, "steps": trace.steps, "end": trace.end}
    parts = {"<!--ABOUT-->": html.escape(_about(trace)), "<!--TEXT-->": _marked(trace)}
    return make_page("trace", "speculax trace", data, parts)


def _about(trace: Trace) -> str:
    run = trace.run
    parts = [f"{name} {run[name]}" for name in ("model", "drafter", "verify") if run.get(name)]
    num = sum(len(step["emitted"]) for step in trace.steps)
    parts.append(f"{num} tokens in {len(trace.steps)} steps")
    if run.get("temperature") is not None:
        parts.append(f"temperature {run['temperature']}")
    parts.append(f"seed {run.get('seed')}" if run.get("temperature") else "")
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
