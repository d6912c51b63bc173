"""What `generate` asks of a rule beyond the contract: drafts of any length, and without laws."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier import cells
from speculax.conformance.verifier.call import as_verifier
from speculax.conformance.verifier.grid import LENGTHS
from speculax.conformance.verifier.law import difference, run_checks
from speculax.conformance.verifier.rules import Rule

DRAFTS = 2


def check_in_loop(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """The law of a step whose rows have fewer drafts, and of one whose drafts have no laws."""
    if level == "contract":
        return Outcome(0, notes=["whether it can be used in generate was left out: see --level"])
    checks: dict[str, Callable[..., list[str]]] = {
        "drafts without laws (draft_probs is None)": partial(_step, "point masses", dense=False)
    }
    missing = []
    if candidate.accepts("draft_lengths"):
        for name, lengths in LENGTHS.items():
            checks[f"draft_lengths: {name}"] = partial(_step, "near", lengths=lengths)
    else:
        what = "there is no keyword draft_lengths, which generate passes"
        wanted = "verify(..., *, draft_lengths=None), int32 (B,): how many drafts each row has"
        missing.append(Failure(what, wanted, "no such parameter"))
    found = run_checks(candidate, rule, checks, _padded(as_verifier(candidate)))
    return replace(found, checks=found.checks + 1, failures=[*missing, *found.failures])


def _step(kind: str, verifier: Callable[..., Any], **how: Any) -> list[str]:
    laws = cells.Laws(2, kind, DRAFTS)
    steps = cells.cut_steps(verifier, [(laws, ())], DRAFTS, **how)
    want = laws.joint(laws.target, (), DRAFTS + 1)
    return difference(cells.law_of_step(steps, 0, DRAFTS + 1), want)


def _padded(verifier: Callable[..., Any]) -> Callable[..., Any]:
    """What lies behind a draft is replaced: token 0, of which draft and target are certain."""

    def verify(
        ids: Any, draft: Any, target: Any, *uniforms: Any, draft_lengths: Any = None
    ) -> dict[str, np.ndarray]:
        if draft_lengths is None:
            return verifier(ids, draft, target, *uniforms)
        behind = np.arange(target.shape[1]) > draft_lengths[:, None]
        certain = np.eye(target.shape[2], dtype=np.float32)[0]
        ids = np.where(behind[:, 1:], 0, ids).astype(np.int32)
        draft = np.where(behind[:, 1:, None], certain, draft)
        target = np.where(behind[..., None], certain, target)
        return verifier(ids, draft, target, *uniforms, draft_lengths=draft_lengths)

    return verify
