"""Which known mistake a verifier makes: its results on probes, matched with the mutants'."""

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.report import Diagnosis, Level
from speculax.conformance.verifier import edges, grid, mutants
from speculax.conformance.verifier.call import Arguments, Result, run
from speculax.conformance.verifier.edge_cases import demanded
from speculax.conformance.verifier.rules import Rule

SURE = (
    0.9  # of the probes that tell a mutant from the rule, and of those where the function is wrong
)
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


def results(verifier: Candidate | mutants.Rule, probes: list[Arguments]) -> list[np.ndarray]:
    """num_accepted and tokens, one row a row of a batch; `FAILED` where the call fails."""
    found = []
    for arguments in probes:
        try:
            if isinstance(verifier, Candidate):
                result = run(verifier, arguments)
            else:
                *positional, lengths = arguments
                result = Result(**verifier(*positional, draft_lengths=lengths))
            found.append(np.column_stack([result.num_accepted, result.tokens]))
        except Exception:
            batch, drafts = arguments.draft_tokens.shape
            found.append(np.full((batch, drafts + 2), FAILED))
    return found


def diagnose(candidate: Candidate, rule: Rule, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right, or like no other."""
    probes = make_probes(rule, level, candidate.accepts("draft_lengths"))
    own = results(candidate, probes)
    right = results(rule.control, probes)
    is_wrong = _differs(own, right)
    if not is_wrong.any():
        return None
    best: tuple[float, int, Diagnosis] | None = None
    for name, mutant in rule.mutants.items():
        theirs = results(mutant, probes)
        tells = _differs(theirs, right)
        if tells.sum() < FEWEST:
            continue
        same = ~_differs(own, theirs)
        agreed, explained = int((same & tells).sum()), (same & is_wrong).sum() / is_wrong.sum()
        if agreed < SURE * tells.sum() or explained < SURE:
            continue
        fault = " ".join((type(mutant).__doc__ or "").split())
        score = agreed / tells.sum() + explained
        found = score, int(tells.sum()), Diagnosis(name, fault, agreed, int(tells.sum()))
        if best is None or found[:2] > best[:2]:
            best = found
    return None if best is None else best[2]


def _differs(some: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
    """Of each row of each probe, whether two functions differ."""
    return np.concatenate([(a != b).any(axis=1) for a, b in zip(some, others, strict=True)])
