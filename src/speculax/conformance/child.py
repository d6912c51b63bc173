"""One stage in a process of its own: `python -m speculax.conformance.child JOB`.

JOB is the path of a JSON file that says what to do; the result is written beside it. Whatever the
function under test does to its process, the parent is still there.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speculax.conformance.candidate import MisuseError, find
from speculax.conformance.kind import load_kind


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The result of a job: "outcome", "diagnosis", the "origin" that was found, or "misuse"."""
    kind = load_kind(job["kind"])
    try:
        candidate = kind.adapt(find(job["target"], kind.parameters, use_jit=job["use_jit"]))
    except MisuseError as error:
        return {"misuse": [error.problem, error.hint]}
    if job["stage"] is None:
        return {"origin": candidate.origin}
    if job["stage"] == "diagnosis":
        found = kind.diagnose(candidate, job["rule"], job["level"])
        return {"diagnosis": None if found is None else asdict(found)}
    outcome = kind.stages[job["stage"]](candidate, job["rule"], job["level"])
    return {"outcome": asdict(outcome)}


def main() -> None:
    """Read the job, run it, write the result."""
    job = Path(sys.argv[1])
    result = run(json.loads(job.read_text()))
    job.with_suffix(".result").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
