"""`speculax check`: what is right, what is wrong, and which mistake it is."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from speculax.cli.errors import CommandError, reported, writing
from speculax.conformance.candidate import MisuseError
from speculax.conformance.check import TIMEOUT, check as run_check
from speculax.conformance.html import as_html
from speculax.conformance.kind import KINDS
from speculax.conformance.report import LEVELS, Failure, Report, Stage
from speculax.conformance.scaffold import HINTS, stub
from speculax.conformance.self_test import Trial, self_test

_INDENT = "      "


@reported
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="file.py, file.py:function or module:function.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--as", help=f"What the function is: {', '.join(KINDS)}.", show_default="verifier"
        ),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="The rule to hold it to.", show_default="the kind's first")
    ] = None,
    level: Annotated[
        str, typer.Option(help=f"How much is demanded: {', '.join(LEVELS)}.")
    ] = "robust",
    no_jit: Annotated[
        bool, typer.Option("--no-jit", help="Call it plainly: for NumPy and PyTorch.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that a stage may take.")] = TIMEOUT,
    speed: Annotated[
        bool, typer.Option("--speed", help="Also time it, beside the textbook form and ours.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report as one page.")
    ] = None,
    scaffold: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a stub to fill in, and check nothing."),
    ] = None,
    hint: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"Show hint 1 to {len(HINTS)} for the stub, and no more."),
    ] = None,
    test_self: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Check the checks, of all kinds or one: they must refuse every known mistake.",
        ),
    ] = False,
) -> None:
    """Check a function that someone wrote against the contract; exit code 0, or 1 if it fails."""
    asked = [target is not None, scaffold is not None, hint is not None, test_self]
    if sum(asked) != 1:
        raise CommandError(
            "there must be one of TARGET, --scaffold, --hint and --self-test"
            if not any(asked)
            else "TARGET, --scaffold, --hint and --self-test exclude each other",
            "see speculax check --help",
        )
    if kind not in (None, "verifier") and (scaffold is not None or hint is not None):
        raise CommandError(
            f"there is no stub for --as {kind}", "leave --as out: it is a verifier's"
        )
    if scaffold is not None:
        _write_stub(scaffold)
    elif hint is not None:
        _show_hint(hint)
    elif test_self:
        _test_self(kind, as_json)
    else:
        assert target is not None
        _check(target, kind or "verifier", rule, level, no_jit, timeout, speed, as_json, html)


def _check(
    target: str,
    kind: str,
    rule: str | None,
    level: str,
    no_jit: bool,
    timeout: float,
    speed: bool,
    as_json: bool,
    html: Path | None,
) -> None:
    if html is not None and not html.parent.is_dir():
        raise CommandError(f"there is no folder {html.parent} for the page", "make it first")
    progress = Console(stderr=True)
    out = Console(highlight=False, soft_wrap=True)

    def on_stage(name: str, stage: Stage | None) -> None:
        if stage is None:
            status.update(f"{target}: {name} ...")
        elif not as_json:
            _print_stage(out, stage)

    with Status(f"{target}: import ...", console=progress) as status:
        if not progress.is_terminal:
            status.stop()
        try:
            report = run_check(
                target,
                kind=kind,
                rule=rule,
                level=level,  # type: ignore[arg-type]
                use_jit=not no_jit,
                timeout=timeout,
                with_stages=frozenset({"speed"} if speed else ()),
                on_stage=on_stage,
            )
        except MisuseError as error:
            raise CommandError(error.problem, error.hint) from error
    if html is not None:
        try:
            html.write_text(as_html(report), encoding="utf-8")
        except OSError as error:
            raise CommandError(
                f"{html} cannot be written: {error.strerror}", "choose another"
            ) from error
    with writing():
        if as_json:
            print(json.dumps(report.as_dict()))
        else:
            _print_rest(out, report)
    if not report.passed:
        raise typer.Exit(1)


def _print_stage(out: Console, stage: Stage) -> None:
    word = "[green]ok  [/]" if stage.outcome.checks else "skip"
    if not stage.passed:
        word = "[bold red]FAIL[/]"
    checks = f"{stage.outcome.checks} check{'s' * (stage.outcome.checks != 1)}"
    out.print(f"{word}  {stage.name:<18}{checks:>11}{stage.seconds:>8.1f} s")


def _print_rest(out: Console, report: Report) -> None:
    if report.diagnosis is not None:
        found = report.diagnosis
        out.print(
            f"\nIts mistake looks like [bold]{escape(found.name)}[/]: the two agree on "
            f"{found.agreed} of the {found.probes} probes that show it. What is wrong there:"
            f"\n{_INDENT}"
            f"{escape(found.fault)}"
        )
    for stage in report.stages:
        if stage.passed:
            continue
        first, *others = stage.outcome.failures
        out.print(f"\n[bold]{escape(stage.name)}: {escape(first.what)}[/]")
        for line in _describe(first):
            out.print(f"{_INDENT}{escape(line)}")
        if first.snippet:
            out.print(f"\n{escape(first.snippet)}\n")
        for what in dict.fromkeys(failure.what for failure in others):
            out.print(f"{_INDENT}also: {escape(what)}")
    notes = [note for stage in report.stages for note in stage.outcome.notes]
    if notes:
        out.print()
    for note in dict.fromkeys(notes):
        out.print(f"note: {escape(note)}")
    outcomes = {stage.name: stage.passed for stage in report.stages}
    by_law = outcomes.get("law") and outcomes.get("several steps")
    if report.kind == "verifier" and by_law and not outcomes.get("random instances"):
        out.print(
            "\nnote: the law that comes out is the target's. If it is another rule than "
            f"{escape(report.rule)}: --rule NAME, or --as rule for one of your own"
        )
    held = f"{report.function}, held to the {report.rule} rule at level {report.level}"
    if report.passed:
        out.print(f"\n[green]passed[/]: {escape(held)}")
    else:
        failed = [stage.name for stage in report.stages if not stage.passed]
        out.print(f"\n[bold red]failed[/]: {escape(held)}: {', '.join(failed)}")


def _describe(failure: Failure) -> list[str]:
    """The lines of a failure after its first."""
    lines = []
    if failure.expected:
        lines.append(f"expected  {failure.expected}")
    if failure.actual:
        lines.append(f"actual    {failure.actual}")
    if failure.why:
        lines.append(failure.why)
    return lines


def _write_stub(path: Path) -> None:
    if path.exists():
        raise CommandError(f"{path} exists already", "choose another name, or move it away")
    try:
        path.write_text(stub(), encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written: {error.strerror}", "choose another"
        ) from error
    with writing():
        print(f"wrote {path}. Fill it in, then run: speculax check {path} --level contract")
        print(f"Stuck? speculax check --hint 1, and on to --hint {len(HINTS)}.")


def _show_hint(number: int) -> None:
    if not 1 <= number <= len(HINTS):
        raise CommandError(
            f"--hint must be 1 to {len(HINTS)}, got {number}", f"the last is --hint {len(HINTS)}"
        )
    with writing():
        print(f"{number}. {HINTS[number - 1]}")


def _test_self(kind: str | None, as_json: bool) -> None:
    out, progress = Console(highlight=False, soft_wrap=True), Console(stderr=True)
    done: list[Trial] = []

    def on_trial(trial: Trial) -> None:
        done.append(trial)
        status.update(f"{len(done)} done, last {trial.name} ...")

    with Status("starting ...", console=progress) as status:
        if not progress.is_terminal:
            status.stop()
        try:
            trials = self_test(None if kind is None else [kind], on_trial=on_trial)
        except MisuseError as error:
            raise CommandError(error.problem, error.hint) from error
    with writing():
        if as_json:
            print(json.dumps([_trial_as_dict(trial) for trial in trials]))
        else:
            _print_matrix(out, trials)
    if not all(trial.as_it_should for trial in trials):
        raise typer.Exit(1)


def _trial_as_dict(trial: Trial) -> dict[str, Any]:
    return vars(trial) | {"refused": trial.refused, "as_it_should": trial.as_it_should}


def _print_matrix(out: Console, trials: list[Trial]) -> None:
    """One line a specimen, one column a stage."""
    for kind in dict.fromkeys(trial.kind for trial in trials):
        those = [trial for trial in trials if trial.kind == kind]
        stages = list(those[0].failed)
        out.print(f"[bold]{kind}[/]: x where a stage refuses; stages {', '.join(stages)}")
        for trial in those:
            marks = "".join("x" if bad else "." for bad in trial.failed.values())
            named = "" if trial.fault is None else f"named {trial.named or 'nothing'}"
            wrong = "" if trial.as_it_should else "  [bold red]WRONG[/]"
            out.print(f"  {marks}  {trial.name:<34}{named}{wrong}")
    mutants = [trial for trial in trials if trial.fault is not None]
    named = sum(trial.named == trial.name for trial in mutants)
    right = [trial for trial in trials if trial.fault is None]
    out.print(
        f"{sum(t.refused for t in mutants)} of {len(mutants)} mutants refused, {named} named "
        f"rightly; {sum(t.refused for t in right)} of {len(right)} right functions accused"
    )
