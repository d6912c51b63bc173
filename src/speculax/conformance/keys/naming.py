"""Which known mistake a verifier with a key makes.

By what it makes of its key; if that is right, by the law of its verdicts for each draft; if that is
right too, by what it does on hard rows.
"""

from functools import cache

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.keys import mutants
from speculax.conformance.keys.call import run
from speculax.conformance.keys.edges import edges_of, verdicts
from speculax.conformance.keys.form import key_facts
from speculax.conformance.keys.joint import (
    DRAFTS,
    LAWS,
    VOCAB,
    Exact,
    drafts_of,
    exact_laws,
    lay_steps,
)
from speculax.conformance.keys.law import exact_mutants
from speculax.conformance.kind import as_candidate
from speculax.conformance.matching import Bounds, Seen, differ, nearest
from speculax.conformance.report import Diagnosis, Level
from speculax.conformance.verifier.rules import RULES

CALLS, REPEATS = 16, 32  # keys, and rows for each draft, or more, with one key
MASSES = Bounds(0.12, 0.04)  # of verdicts, of which at least 512 are counted for each draft
MEANS = Bounds(0.4)  # of the tokens of hard rows
FAILED = -9.0


def diagnose(candidate: Candidate, rule: str, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right on probes, or like no other."""
    for aspect in ("key", "law", "hard rows"):
        right, wrong = _known(aspect, rule, level)
        own = _see(aspect, candidate, rule, level)
        if differ(own, right).any():
            return nearest(own, right, wrong)
    return None


@cache
def _known(
    aspect: str, rule: str, level: Level
) -> tuple[list[Seen], dict[str, tuple[str, list[Seen]]]]:
    """What a right verifier does; and each mutant, with its fault."""
    found = {}
    laws = {name: _exact(laws) for name, laws in exact_mutants(rule).items()}
    for name, mutant in mutants.mutants_of(rule).items():
        if (name in laws) == (aspect == "key"):  # rows have wrong laws, or share their noise
            continue
        seen = laws[name] if aspect == "law" else _see(aspect, as_candidate(mutant), rule, level)
        found[name] = mutants.fault_of(mutant), seen
    if aspect == "law":
        return _exact(exact_laws(RULES[rule].control)), found
    return _see(aspect, as_candidate(mutants.control(rule)), rule, level), found


def _exact(laws: dict[str, Exact]) -> list[Seen]:
    return [Seen(np.concatenate([exact.verdicts for exact in laws.values()]), MASSES)]


def _see(aspect: str, candidate: Candidate, rule: str, level: Level) -> list[Seen]:
    if aspect == "key":
        return _keys(candidate)
    if aspect == "law":
        return [Seen(_count_verdicts(candidate), MASSES)]
    return _hard_rows(candidate, rule, level)


def _keys(candidate: Candidate) -> list[Seen]:
    try:
        return [Seen(key_facts(candidate)[:, None])]
    except Exception:
        return [Seen(np.full((5, 1), FAILED))]


def _count_verdicts(candidate: Candidate) -> np.ndarray:
    """For each draft the share of each number accepted and token drawn, as `Exact.verdicts`."""
    found = []
    for number, name in enumerate(LAWS):
        drafts = drafts_of(name)
        place = np.tile(np.arange(VOCAB**DRAFTS) % len(drafts), REPEATS)  # one program for all
        step = lay_steps(name, drafts[place])
        counts = np.zeros((len(drafts), DRAFTS + 1, VOCAB + 1))
        try:
            for call in range(CALLS):
                result = run(candidate, step, number * CALLS + call)
                n = np.clip(result.num_accepted, 0, DRAFTS)
                token = np.clip(result.tokens[np.arange(len(n)), n], -1, VOCAB - 1)
                np.add.at(counts, (place, n, token), 1)
            shares = counts / counts.sum(axis=(1, 2), keepdims=True)
        except Exception:
            shares = np.full_like(counts, FAILED)
        found.append(shares.reshape(len(drafts), -1))
    return np.concatenate(found)


def _hard_rows(candidate: Candidate, rule: str, level: Level) -> list[Seen]:
    """Means of what hard rows give: a mistake may leave them to chance."""
    found = []
    for edges in edges_of(rule, level):
        try:
            means = verdicts(candidate, edges).mean(axis=1)
        except Exception:
            means = np.full((len(edges.names), edges.step.target_probs.shape[1] + 1), FAILED)
        found.append(Seen(means, MEANS))
    return found
