"""Which known mistake a verifier makes: its results on probes, matched with the mutants'."""

from functools import cache

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import as_candidate, fault_of
from speculax.conformance.matching import Seen, nearest
from speculax.conformance.report import Diagnosis, Level
from speculax.conformance.verifier import edges, grid
from speculax.conformance.verifier.call import Arguments, run
from speculax.conformance.verifier.edge_cases import demanded
from speculax.conformance.verifier.rules import RULES, Rule

FEWEST, FAILED = 3, -9


def make_probes(rule: Rule, level: Level, has_lengths: bool) -> list[Arguments]:
    """Steps on a grid where every comparison is exact, and the hard cases that a level demands."""
    probes = [_on_grid(seed) for seed in range(4)]
    probes += [_batch_on_grid()]
    for edge, cases in rule.edges.items():
        for one in demanded(rule, edge, cases, level):
            if one.length is None or has_lengths:
                positional, named = edges.arrays([one], with_lengths=has_lengths)
                probes.append(Arguments(*positional, **named))
    return probes


def _on_grid(seed: int, count: int = 256) -> Arguments:
    """A sample of the enumeration that the law is counted from."""
    rng = np.random.default_rng([7, seed])
    laws = grid.Laws(seed)
    weights = [float(laws.probability(laws.draft, (), x)) for x in grid.SEQUENCES]
    chosen = rng.choice(len(grid.SEQUENCES), count, p=weights)
    paths = [grid.SEQUENCES[i] for i in chosen]
    uniforms = grid.UNIFORMS[rng.integers(0, len(grid.UNIFORMS), count)]
    return Arguments(
        np.array(paths, np.int32),
        np.stack([laws.rows(laws.draft, (), x)[:-1] for x in paths]),
        np.stack([laws.rows(laws.target, (), x) for x in paths]),
        uniforms[:, :-1],
        uniforms[:, -1],
    )


def _batch_on_grid() -> Arguments:
    """Few rows: a mistake about the batch shows in the first ones."""
    return _on_grid(9).take(slice(5))


def results(verifier: Candidate, probes: list[Arguments]) -> list[Seen]:
    """num_accepted and tokens, one row a row of a batch; `FAILED` where the call fails."""
    found = []
    for arguments in probes:
        try:
            result = run(verifier, arguments)
            found.append(Seen(np.column_stack([result.num_accepted, result.tokens])))
        except Exception:
            batch, drafts = arguments.draft_tokens.shape
            found.append(Seen(np.full((batch, drafts + 2), FAILED)))
    return found


def diagnose(candidate: Candidate, rule: Rule, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right, or like no other."""
    has_lengths = level == "strict" and candidate.accepts("draft_lengths")
    probes, right, faults = _known(rule.name, level, has_lengths)
    return nearest(results(candidate, probes), right, faults, fewest=FEWEST)


@cache
def _known(
    name: str, level: Level, has_lengths: bool
) -> tuple[list[Arguments], list[Seen], dict[str, tuple[str, list[Seen]]]]:
    """The probes, what is right on them, and of each mutant its fault and what it gives."""
    rule = RULES[name]
    probes = make_probes(rule, level, has_lengths)
    right = results(as_candidate(rule.control), probes)
    return (
        probes,
        right,
        {
            wrong: (fault_of(mutant), results(as_candidate(mutant), probes))
            for wrong, mutant in rule.mutants.items()
        },
    )
