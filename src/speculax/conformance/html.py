"""A report as one page that needs nothing else."""

from html import escape

from speculax.conformance.report import Failure, Report, Stage
from speculax.viewer import step_page

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: 0.2rem 1rem 0.2rem 0; text-align: left; }
.ok { color: #176f2c; } .bad { color: #b3261e; font-weight: 600; }
pre { background: #f4f4f4; padding: 0.7rem; overflow-x: auto; }
iframe { width: 100%; height: 50rem; border: 1px solid #999; }
dt { font-weight: 600; } dd { margin: 0 0 0.5rem 1rem; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; } pre { background: #262626; }
  .ok { color: #7bd88f; } .bad { color: #ff8a80; } }
"""


def as_html(report: Report) -> str:
    """The report as HTML, style included."""
    verdict = _verdict(report.passed, "passed", "failed")
    rows = "".join(map(_row, report.stages))
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    parts = [
        f"<h1>{escape(report.function)}: {verdict}</h1>",
        f"<p>Checked as {escape(report.kind)}, held to the {escape(report.rule)} rule at level "
        f"{escape(report.level)}. {escape(versions)}.</p>",
        "<table><tr><th>stage</th><th></th><th>checks</th><th>seconds</th></tr>",
        f"{rows}</table>",
    ]
    if report.diagnosis is not None:
        found = report.diagnosis
        parts.append(
            f"<h2>Its mistake looks like {escape(found.name)}</h2><p>What is wrong there: "
            f"{escape(found.fault)} (The two agree on {found.agreed} of the {found.probes} "
            f"probes that show it.)</p>"
        )
    for stage in report.stages:
        parts += [_failure(stage.name, failure) for failure in stage.outcome.failures]
    notes = dict.fromkeys(note for stage in report.stages for note in stage.outcome.notes)
    if notes:
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
        parts.append(f"<h2>Notes</h2><ul>{listed}</ul>")
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.function)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _verdict(good: bool, yes: str, no: str) -> str:
    return f'<span class="{"ok" if good else "bad"}">{yes if good else no}</span>'


def _row(stage: Stage) -> str:
    passed = "ok" if stage.outcome.checks else "skip"
    return (
        f"<tr><td>{escape(stage.name)}</td><td>{_verdict(stage.passed, passed, 'FAIL')}</td>"
        f"<td>{stage.outcome.checks}</td><td>{stage.seconds:.1f}</td></tr>"
    )


def _failure(stage: str, failure: Failure) -> str:
    told = {"expected": failure.expected, "actual": failure.actual, "why": failure.why}
    terms = "".join(
        f"<dt>{term}</dt><dd>{escape(text)}</dd>" for term, text in told.items() if text
    )
    snippet = f"<pre>{escape(failure.snippet)}</pre>" if failure.snippet else ""
    picture = ""
    if failure.step is not None:
        page = escape(step_page(**failure.step))
        picture = (
            "<details><summary>what the rule does with it, to play with</summary>"
            f'<iframe title="one step" srcdoc="{page}"></iframe></details>'
        )
    return f"<h2>{escape(stage)}: {escape(failure.what)}</h2><dl>{terms}</dl>{picture}{snippet}"
