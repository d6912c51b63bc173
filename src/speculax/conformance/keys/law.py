"""The law of a verifier with a key, by chi-square, and how surely that sees each known mistake."""

from functools import cache

import numpy as np

from speculax.conformance import chi_square
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.keys import mutants
from speculax.conformance.keys.joint import (
    BATCH,
    CALLS,
    LAWS,
    VOCAB,
    Exact,
    count_steps,
    exact_laws,
    target_law,
)
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.verifier.rules import RULES

# Chance that the stage accuses a right verifier, shared by its tests.
FALSE_ALARM = 1e-6
TESTS = 3 * len(LAWS)
SURELY = 0.999
LEAST_DISTANCE = 1e-5
JOINT, ACCEPTED, PAIRS = "the joint law of G + 1 tokens", "how many are accepted", "pairs of rows"
WHY = {
    JOINT: "Text made with this step would follow another law than the target's.",
    ACCEPTED: "A rule accepts with a law of its own: the text may be right, but slower, or it is "
    "another rule; see --rule.",
    PAIRS: "Each row needs noise of its own: draw it with the axis of rows.",
}


def p_values(candidate: Candidate, rule: str, seed: int = 0) -> dict[tuple[str, str], float]:
    """The p-value of each test, by the name of laws and of what is tested."""
    found = {}
    for name in LAWS:
        counts = count_steps(candidate, name, seed)
        right = _control(rule)[name]
        found[name, JOINT] = chi_square.p_value(counts.joint, np.append(target_law(name), 0))
        found[name, ACCEPTED] = chi_square.p_value(counts.accepted, np.append(right.accepted, 0))
        one, other = counts.first[::2], counts.first[1::2]
        first = target_law(name).reshape(VOCAB, -1).sum(axis=1)
        known = (one >= 0) & (other >= 0)
        pairs = np.bincount(one[known] * VOCAB + other[known], minlength=VOCAB**2)
        found[name, PAIRS] = chi_square.p_value(pairs, np.outer(first, first).reshape(-1))
    return found


def check_law(candidate: Candidate, rule: str, level: Level) -> Outcome:
    """Chi-square of what is emitted, what is accepted, and rows side by side."""
    del level
    try:
        found = p_values(candidate, rule)
    except Exception as error:
        return Outcome(1, [explain(candidate, error, "steps of sampled drafts")])
    failures, seen = [], set()
    for (name, what), p_value in found.items():
        if p_value < FALSE_ALARM / TESTS and what not in seen:
            seen.add(what)
            failures.append(
                Failure(
                    f"{name}: {what} is not as it should be",
                    f"a p-value above {FALSE_ALARM / TESTS:.1g}, for {BATCH * CALLS} steps",
                    f"p-value {p_value:.1g}",
                    why=WHY[what],
                )
            )
    return Outcome(len(found), failures, notes(rule))


def notes(rule: str) -> list[str]:
    """The chance of a false alarm, and the power against each mutant."""
    powers = power_against(rule)
    surely = [name for name, (power, _) in powers.items() if power >= SURELY]
    least = min(distance for power, distance in powers.values() if power >= SURELY)
    between = [
        f"power {power:.2g} against {name} (total variation {distance:.1g})"
        for name, (power, distance) in powers.items()
        if power < SURELY and distance >= LEAST_DISTANCE
    ]
    same = [name for name, (_, distance) in powers.items() if distance < LEAST_DISTANCE]
    same += [name for name in mutants.mutants_of(rule) if name not in powers]
    unseen = [name for name in RULES[rule].mutants if name in mutants.UNSEEN]
    return [
        f"a right verifier is accused with a chance of {FALSE_ALARM:g}; {BATCH * CALLS} steps with "
        f"each of {len(LAWS)} pairs of laws",
        f"power above {SURELY} against {', '.join(surely)} (total variation {least:.2g} or more)",
        *between,
        f"no power by the law of one row, which is right: {', '.join(same)}; see form, edges and "
        "pairs of rows",
        f"no key shows {', '.join(unseen)}: check them with uniforms, --as verifier",
    ]


@cache
def power_against(rule: str) -> dict[str, tuple[float, float]]:
    """Of each mutant the chance that the law stage refuses it, at least, and its distance.

    From its exact laws, so that nothing is sampled: the most powerful of the tests, and the largest
    total variation from what is right.
    """
    powers = {}
    for name, exact in exact_mutants(rule).items():
        best, farthest = 0.0, 0.0
        for laws, own in exact.items():
            right = _control(rule)[laws]
            for want, got in ((right.joint, own.joint), (right.accepted, own.accepted)):
                distance = np.abs(want - got).sum() / 2
                if distance < LEAST_DISTANCE:
                    continue
                chance = chi_square.power(want, got, BATCH * CALLS, FALSE_ALARM / TESTS)
                best, farthest = max(best, chance), max(farthest, float(distance))
        powers[name] = best, farthest
    return powers


@cache
def exact_mutants(rule: str) -> dict[str, dict[str, Exact]]:
    """The exact laws of the mutants whose rows have wrong laws of their own."""
    return {
        name: exact_laws(mutants.of_uniforms(mutant))
        for name, mutant in mutants.mutants_of(rule).items()
        if mutants.has_own_law(mutant)
    }


@cache
def _control(rule: str) -> dict[str, Exact]:
    return exact_laws(RULES[rule].control)
