"""Which known mistake a sampler makes: what it does on probes, matched with what mutants do.

Probes are of four kinds, looked at in turn: its keys, its laws, long tails, rare tokens. It is
matched where it is first seen to be wrong; what comes after would only be noise.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import as_candidate
from speculax.conformance.matching import Bounds, Seen, differ, nearest
from speculax.conformance.report import LEVELS, Diagnosis, Level
from speculax.conformance.sampler import large
from speculax.conformance.sampler.call import Rows, takes_key, together
from speculax.conformance.sampler.definition import ByKey, Sampler
from speculax.conformance.sampler.edges import EDGES
from speculax.conformance.sampler.form import key_facts
from speculax.conformance.sampler.laws import greedy_groups, law_groups, settings_groups
from speculax.conformance.sampler.measure import measure
from speculax.conformance.sampler.mutants import Race, fault_of, mutants_of
from speculax.conformance.sampler.oracle import Order

DRAWS = 512  # of each row by a key
EXACT, COUNTED = Bounds(0.005, 0), Bounds(0.1, 0.03)  # of masses
SHARE = Bounds(0.2)  # of draws from a tail
LEAST_MASS = 2.0**-22  # what is less likely is not met
FAILED = -9.0


def diagnose(candidate: Candidate, order: Order, level: Level) -> Diagnosis | None:
    """The mutant that a function behaves like; None if it is right on probes, or like no other."""
    by_key = takes_key(candidate)
    for aspect in ("keys", "laws", "tail", "rare") if by_key else ("laws", "tail"):
        if aspect == "rare" and level != "strict":
            break
        right, mutants = _known(aspect, order, level, by_key)
        own = [_see(aspect, candidate, order, level)]
        if differ(own, right).any():
            return nearest(own, right, mutants)
    return None


# --- What samplers do on probes


@cache
def _known(
    aspect: str, order: Order, level: Level, by_key: bool
) -> tuple[list[Seen], dict[str, tuple[str, list[Seen]]]]:
    """What a right sampler does; and each mutant, with its fault."""
    right = _see(aspect, as_candidate(_right(order, by_key)), order, level)
    mutants = {}
    for name, mutant in mutants_of(order, by_key).items():
        if isinstance(mutant, Race) != (aspect == "rare"):  # all others would be seen before
            continue
        inner = mutant.sampler if type(mutant) is ByKey else mutant
        if isinstance(inner, Sampler) and _has_plain_draws(inner):
            laws = _law_of(inner, _probes(order, level))
            seen = right._replace(numbers=laws) if aspect == "laws" else right
        else:
            seen = _see(aspect, as_candidate(mutant), order, level)
        mutants[name] = fault_of(mutant), [seen]
    return [right], mutants


def _see(aspect: str, candidate: Candidate, order: Order, level: Level) -> Seen:
    rows = _probes(order, level)
    bounds = COUNTED if takes_key(candidate) else EXACT
    see: dict[str, tuple[Callable[[], np.ndarray], tuple[int, int], Bounds]] = {
        "keys": (lambda: key_facts(candidate)[:, None], (3, 1), Bounds(0)),
        "laws": (lambda: measure(candidate, rows, DRAWS).probs, _shape(rows), bounds),
        "tail": (lambda: _tail(candidate), (len(large.SIZES) * (large.RANGES + 2), 1), SHARE),
        "rare": (lambda: _rare(candidate), (1, 1), Bounds(0)),
    }
    look, shape, bounds = see[aspect]
    try:
        return Seen(look(), bounds)
    except Exception:
        return Seen(np.full(shape, FAILED), bounds)


@cache
def _probes(order: Order, level: Level) -> Rows:
    edges = [group for name in LEVELS[: LEVELS.index(level) + 1] for group in EDGES[name]]
    groups = [*law_groups(order), *settings_groups(order), *greedy_groups(order), *edges]
    return together([group.rows for group in groups])


def _shape(rows: Rows) -> tuple[int, int]:
    return rows.logits.shape[0], rows.logits.shape[1] + 2


def _law_of(sampler: Sampler, rows: Rows) -> np.ndarray:
    """What would be measured."""
    laws, which = sampler.laws(rows)
    probs = np.stack([laws[number] for number in which])
    nothing = np.isnan(probs[:, 0])
    outside = np.column_stack([nothing, np.zeros(len(probs))])
    probs = np.hstack([np.where(nothing[:, None], 0, probs), outside])
    return np.where(probs < LEAST_MASS, 0, probs)


def _tail(candidate: Candidate) -> np.ndarray:
    """Of draws from long tails: the tail's share, how many ids are different, and from where."""
    found = []
    for size in large.SIZES:
        ids = large.draw_tail(candidate, size)
        tail = ids[ids != size // 3]
        place = np.clip(tail * large.RANGES // size, 0, large.RANGES - 1)
        shares = np.bincount(place, minlength=large.RANGES) / max(len(tail), 1)
        found += [len(tail) / len(ids), len({*tail.tolist()}) / max(len(tail), 1), *shares]
    return np.array(found)[:, None]


def _rare(candidate: Candidate) -> np.ndarray:
    """Whether rare tokens come too rarely, -1, as they should, 0, or too often, 1."""
    met, expected = large.rare_count(candidate)
    is_off = large.is_unlikely(met, expected, large.FALSE_ALARM)
    return np.array([[np.sign(met - expected) * is_off]])


def _right(order: Order, by_key: bool) -> Sampler | ByKey:
    return ByKey(Sampler(order)) if by_key else Sampler(order)


def _has_plain_draws(sampler: Sampler) -> bool:
    """Whether only its laws are wrong, each by itself: they need not be measured."""
    kind = type(sampler)
    return (kind.read, kind.noise, kind.draw) == (Sampler.read, Sampler.noise, Sampler.draw)
