"""Which known mistake a ragged verifier makes."""

from functools import cache

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import as_candidate, fault_of
from speculax.conformance.matching import Seen, nearest
from speculax.conformance.ragged import mutants
from speculax.conformance.ragged.call import Arguments, run
from speculax.conformance.ragged.edges import cases_of, layouts
from speculax.conformance.ragged.instances import SIZES, draw_batches
from speculax.conformance.report import Diagnosis, Level
from speculax.conformance.verifier.rules import RULES, Rule

FAILED = -9


def diagnose(candidate: Candidate, rule: Rule, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right, or like no other."""
    probes, right, faults = _known(rule.name, level)
    return nearest(results(candidate, probes), right, faults)


@cache
def _known(
    name: str, level: Level
) -> tuple[list[Arguments], list[Seen], dict[str, tuple[str, list[Seen]]]]:
    """The probes, what is right on them, and of each mutant its fault and what it gives."""
    probes = make_probes(RULES[name], level)
    right = results(as_candidate(mutants.control(name)), probes)
    faults = mutants.MUTANTS if name == "token" else {}
    return (
        probes,
        right,
        {
            wrong: (fault_of(mutant), results(as_candidate(mutant), probes))
            for wrong, mutant in faults.items()
        },
    )


def make_probes(rule: Rule, level: Level) -> list[Arguments]:
    """Random batches and the hard cases, as a level demands them."""
    rng = np.random.default_rng(2028)
    probes = [batch for size in SIZES for batch in draw_batches(rng, size, rule, level, 40)]
    for cases in cases_of(rule, level).values():
        for number, one in enumerate(cases):
            probes.append(layouts(one, number, level)[0][1])
    return probes


def results(candidate: Candidate, probes: list[Arguments]) -> list[Seen]:
    """num_accepted and tokens, one row a request; `FAILED` where the call fails."""
    found = []
    for arguments in probes:
        width = len(arguments.draft_tokens) + 1
        try:
            result = run(candidate, arguments)
            tokens = np.full((len(result.tokens), width), -1)
            kept = result.tokens[:, :width]
            tokens[:, : kept.shape[1]] = kept
            found.append(Seen(np.column_stack([result.num_accepted, tokens])))
        except Exception:
            found.append(Seen(np.full((len(arguments.draft_lengths), width + 1), FAILED)))
    return found
