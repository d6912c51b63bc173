"""Check a function: each stage in a child process, the results put together."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from speculax.conformance.candidate import MisuseError
from speculax.conformance.kind import load_kind
from speculax.conformance.report import LEVELS, Diagnosis, Failure, Level, Outcome, Report, Stage

TIMEOUT = 120.0  # seconds a stage may take


def check(
    target: str,
    *,
    kind: str = "verifier",
    rule: str | None = None,
    level: Level = "robust",
    use_jit: bool = True,
    timeout: float = TIMEOUT,
    with_stages: frozenset[str] = frozenset(),
    on_stage: Callable[[str, Stage | None], None] = lambda name, stage: None,
) -> Report:
    """Check a function that someone wrote.

    Every stage runs in a child process, so that a crash, an endless loop or `sys.exit` in the
    function is a failure of that stage. Deterministic.

    Args:
        target: `file.py`, `file.py:function` or `module:function`.
        kind: What to check it as, one of `KINDS`.
        rule: The rule to hold it to; None for the kind's first.
        level: How much is demanded: "contract" is what the contract itself promises, "robust" adds
            inputs that occur in practice though they are out of contract, "strict" all that this
            library's own functions are held to.
        use_jit: Whether the function runs under `jax.jit`; False for NumPy and PyTorch.
        timeout: Seconds that a stage may take.
        with_stages: Stages to run that run only on demand, such as "speed".
        on_stage: Called with the name of each stage and None before it runs, and the stage after.

    Returns:
        The report.

    Raises:
        MisuseError: If there is no such function, kind, rule or level.

    Examples:
        >>> report = check("speculax:verify_token", level="strict")  # doctest: +SKIP
        >>> report.passed  # doctest: +SKIP
        True
    """
    if level not in LEVELS:
        raise MisuseError(f"there is no level {level!r}", f"one of {', '.join(LEVELS)}")
    known = load_kind(kind)
    rule = known.rules[0] if rule is None else rule
    if rule not in known.rules:
        raise MisuseError(
            f"there is no rule {rule!r} for --as {kind}", f"one of {', '.join(known.rules)}"
        )
    if missing := sorted(with_stages - set(known.stages)):
        raise MisuseError(f"there is no stage {missing[0]!r} for --as {kind}", "leave it out")
    job = {"target": target, "kind": kind, "rule": rule, "level": level, "use_jit": use_jit}

    answer, _ = _run({**job, "stage": None}, timeout)
    if "misuse" in answer:
        raise MisuseError(*answer["misuse"])
    if "origin" not in answer:
        raise MisuseError(
            f"importing {target} {answer['crash']}",
            "guard what runs at import with if __name__ == '__main__':",
        )

    stages = []
    for name in known.stages:
        if name in known.on_demand and name not in with_stages:
            continue
        on_stage(name, None)
        stages.append(_run_stage(name, job, timeout))
        on_stage(name, stages[-1])
        if stages[-1].outcome.stops:
            break
    diagnosis = None
    if not all(s.passed or s.outcome.stops for s in stages):
        named, _ = _run({**job, "stage": "diagnosis"}, timeout)
        if named.get("diagnosis"):
            diagnosis = Diagnosis(**named["diagnosis"])
    return Report(
        target=target,
        function=answer["origin"],
        kind=kind,
        rule=rule,
        level=level,
        stages=stages,
        diagnosis=diagnosis,
        versions=_versions(),
    )


def _run_stage(name: str, job: dict[str, Any], timeout: float) -> Stage:
    answer, seconds = _run({**job, "stage": name}, timeout)
    if "outcome" in answer:
        found = answer["outcome"]
        failures = [Failure(**failure) for failure in found["failures"]]
        outcome = Outcome(found["checks"], failures, found["notes"], found["stops"])
    else:
        problem = answer.get("crash") or "; ".join(answer["misuse"])
        outcome = Outcome(1, [Failure(f"the process of this stage {problem}")], stops=True)
    return Stage(name, round(seconds, 2), outcome)


def _run(job: dict[str, Any], timeout: float) -> tuple[dict[str, Any], float]:
    """The answer of a child, and how long it took; `{"crash": how}` if there is none."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        path, printed = Path(directory) / "job", Path(directory) / "printed"
        path.write_text(json.dumps(job))
        with printed.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "speculax.conformance.child", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                child.wait(timeout)
                how = _end(child.returncode)
            except subprocess.TimeoutExpired:
                how = f"was stopped after {timeout:g} s (--timeout)"
            finally:
                _stop(child)
        seconds = time.perf_counter() - start
        result = path.with_suffix(".result")
        if result.is_file():
            return json.loads(result.read_text()), seconds
        lines = printed.read_text(errors="replace").strip().splitlines()
        last = f"; the last line it printed: {lines[-1][:200]}" if lines else ""
        return {"crash": how + last}, seconds


def _end(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code} before it was done"


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a child and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("speculax", "jax", "jaxlib", "numpy", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
