"""Real vocabularies: no token that a mask or filter takes away, and the tail as likely as it is."""

from collections.abc import Iterator
from functools import cache
from itertools import chain
from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np

from speculax.conformance import chi_square
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.sampler.call import (
    NEUTRAL,
    Rows,
    in_words,
    make_rows,
    run,
    takes_key,
)
from speculax.conformance.sampler.oracle import (
    LARGEST_UNIFORM,
    Order,
    RowLaw,
    Settings,
    row_law,
)

SIZES = [50_257, 151_936]  # one that is no multiple of 128
FALSE_ALARM = 1e-6  # chance that a stage accuses a right sampler, shared by its tests
BATCH, CALLS, TAIL_CALLS, TESTS = 12, 6, 16, 8
RANGES = 8  # of ids, that the tail is counted in
# How far, in cumulative probability, a token may lie from where float64 finds it.
PLACE_SLACK = 2e-5
# How far the mass at which top-p stops may be off: float32 sums of sorted rows are by 1e-5.
MASS_SLACK = {"contract": 1e-3, "robust": 1e-4, "strict": 2e-5}
RARE = 4e-8  # a token of the rare tail
RARE_CALLS = 512
MOST_SHOWN = 3


class Large(NamedTuple):
    """Rows of a large vocabulary and their laws."""

    names: list[str]
    rows: Rows
    laws: list[RowLaw]


@cache
def large_rows(size: int, order: Order, level: Level) -> Large:
    """One row for each way in which tokens lose their mass, and greedy ones among them."""
    rng = np.random.default_rng(size)
    ids = np.arange(size)
    half = rng.permutation(size) < size // 2
    plain = 3 * rng.standard_normal((10, size))
    made: list[tuple[str, np.ndarray, Settings]] = [
        ("every other token at -inf", np.where(ids % 2, plain[0], -np.inf), NEUTRAL),
        ("the first half at -inf", np.where(ids >= size // 2, plain[1], -np.inf), NEUTRAL),
        ("the last half at -inf", np.where(ids < size // 2, plain[2], -np.inf), NEUTRAL),
        ("half the tokens at -inf", np.where(half, plain[3], -np.inf), Settings(0.8, 0, 0.95)),
        ("flat, the last three at -inf", np.where(ids < size - 3, 0, -np.inf), NEUTRAL),
        ("top_k", plain[4], Settings(top_k=50)),
        ("top_p", plain[5], Settings(top_p=0.9)),
        ("min_p", plain[6], Settings(min_p=0.02)),
        ("all filters", plain[7], Settings(0.7, 40, 0.9, 0.01)),
        ("only one token is not at -inf", np.where(ids == size - 2, 0, -np.inf), NEUTRAL),
        ("temperature 0", plain[8], Settings(temperature=0.0)),
        ("temperature 0, last id", np.where(ids == size - 1, 30, plain[9]), Settings(0.0)),
    ]
    assert len(made) == BATCH  # one program for all
    names, logits, many = zip(*made, strict=True)
    rows = make_rows(np.stack(logits), [*many])
    laws = [_roomy_law(rows.logits[r], rows.settings(r), order, level) for r in range(len(names))]
    return Large([*names], rows, laws)


def _roomy_law(logits: np.ndarray, settings: Settings, order: Order, level: Level) -> RowLaw:
    """The law, and the tokens that may be kept if sums are as far off as a level allows."""
    law = row_law(logits, settings, order)
    more = settings.top_p + MASS_SLACK[level] if settings.top_p < 1 else 1.0
    roomy = row_law(logits, settings._replace(top_p=more), order)
    assert law is not None
    assert roomy is not None
    return law._replace(may=law.may | roomy.may)


def check_large(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Support and tail at V = 50,257 and 151,936."""
    checks, failures = 0, []
    for size in SIZES:
        try:
            for found in chain(
                _check_support(candidate, order, level, size), _check_tail(candidate, size)
            ):
                checks += 1
                if found is not None:
                    failures.append(found)
        except Exception as error:
            checks += 1
            failures.append(explain(candidate, error, f"V = {size}"))
        if failures:
            break
    notes = [f"the tail was counted; a right sampler is accused with a chance of {FALSE_ALARM}"]
    return Outcome(checks, failures[:MOST_SHOWN], notes)


def _check_support(
    candidate: Candidate, order: Order, level: Level, size: int
) -> Iterator[Failure | None]:
    """Only tokens that are kept, and strictly those that lie where the uniform is."""
    large = large_rows(size, order, level)
    seen: set[int] = set()
    for call, noise in enumerate(_noises(candidate, level)):
        ids = run(candidate, large.rows, noise)
        for r, law in enumerate(large.laws):
            if r in seen:
                continue
            wrong = _support_failure(large, r, int(ids[r]), size)
            if wrong is None and level == "strict" and isinstance(noise, np.ndarray):
                wrong = _place_failure(large.names[r], law, int(ids[r]), float(noise[r]), size)
            if wrong is not None:
                seen.add(r)
            if wrong is not None or call == 0:
                yield wrong


def _noises(candidate: Candidate, level: Level) -> list[np.ndarray] | list[int]:
    """Random noise, and from robust on the ends of the range of uniforms."""
    if takes_key(candidate):
        return list(range(2 * CALLS))
    rng = np.random.default_rng(2)
    noises = [rng.random(BATCH, np.float32) for _ in range(CALLS)]
    if level != "contract":
        ends = [0.0, 2.0**-24, 0.5, 1 - 2.0**-22, 1 - 2.0**-23, LARGEST_UNIFORM]
        noises += [np.full(BATCH, u, np.float32) for u in ends]
    return noises


def _support_failure(large: Large, r: int, token: int, size: int) -> Failure | None:
    law = large.laws[r]
    if 0 <= token < size and law.may[token]:
        return None
    if not 0 <= token < size:
        what = f"id {token} is outside the vocabulary"
    elif law.logs[token] == -np.inf:
        what = f"token {token} comes out, which has no mass"
    else:
        what = f"token {token} comes out, which the settings leave out"
    return Failure(
        f"V = {size}, {large.names[r]}: {what}",
        f"one of {int(law.may.sum())} tokens, with {in_words(large.rows.settings(r))}",
        str(token),
        why="A running sum in float32 rises, and falls, at entries that are zero, and may never "
        "reach the largest uniform: choose among tokens of weight only.",
    )


def _place_failure(name: str, law: RowLaw, token: int, uniform: float, size: int) -> Failure | None:
    """Where the cumulative probability meets the uniform, give or take the rounding of sums."""
    cumulative = np.cumsum(law.after)
    before = cumulative[token - 1] if token else 0.0
    if before - PLACE_SLACK <= uniform <= cumulative[token] + PLACE_SLACK:
        return None
    want = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return Failure(
        f"V = {size}, {name}: the token does not lie where the uniform is",
        f"uniform {uniform:.6f}: token {want}",
        f"token {token}, which has {before:.6f} to {cumulative[token]:.6f}",
        why="It is the smallest id whose cumulative probability exceeds the uniform. Sums in half "
        "precision saturate on a long tail; sorted tokens lie elsewhere.",
    )


def tail_row(size: int) -> np.ndarray:
    """Half of the mass at one id, the other half flat over all others."""
    return np.where(np.arange(size) == size // 3, np.log(size - 1.0), 0.0)


def draw_tail(candidate: Candidate, size: int) -> np.ndarray:
    """Tokens of the row of `tail_row`."""
    rows = make_rows(np.tile(tail_row(size), (BATCH, 1)), [NEUTRAL] * BATCH)
    rng = np.random.default_rng(3)
    return np.concatenate(
        [
            run(candidate, rows, call if takes_key(candidate) else rng.random(BATCH, np.float32))
            for call in range(TAIL_CALLS)
        ]
    )


def _check_tail(candidate: Candidate, size: int) -> Iterator[Failure | None]:
    """The mass of the tail, how evenly ids have it, and how many of them are met."""
    ids = draw_tail(candidate, size)
    outside = ids[(ids < 0) | (ids >= size)]
    if len(outside):
        yield Failure(f"V = {size}: an id is outside the vocabulary", "", str(outside[0]))
        return
    in_tail = ids != size // 3
    num_tail = int(in_tail.sum())
    place = np.minimum(ids[in_tail] * RANGES // size, RANGES)
    counts = np.append(np.bincount(place, minlength=RANGES), len(ids) - num_tail)
    probs = np.bincount(np.arange(size) * RANGES // size, np.full(size, 0.5 / (size - 1)))
    probs[(size // 3) * RANGES // size] -= 0.5 / (size - 1)
    p_value = chi_square.p_value(counts, np.append(probs, 0.5))
    distinct = len(np.unique(ids[in_tail]))
    # Of so many draws from so many ids some meet: nearly a Poisson number of pairs.
    pairs = num_tail * (num_tail - 1) / 2 / (size - 1)
    is_even = p_value >= FALSE_ALARM / TESTS
    is_wide = poisson_above(num_tail - distinct, pairs) >= FALSE_ALARM / TESTS
    if is_even and is_wide:
        yield None
        return
    yield Failure(
        f"V = {size}: the long tail is not drawn as it should be",
        f"of {len(ids)} draws about {len(ids) // 2} from {size - 1} equally rare tokens, as many "
        f"from each eighth of the ids, hardly any twice",
        f"{num_tail} from the tail, {counts[:RANGES].tolist()} from the eighths, {distinct} "
        f"different ones",
        why="Sums in half precision saturate, and ids of 16 bits stick, where there are many "
        "tokens: half of the mass is at stake here.",
    )


# --- A tail of rare tokens, which noise of few bits draws too often or never


def rare_count(candidate: Candidate) -> tuple[int, float]:
    """How many of the draws meet the rare tail, and how many should."""
    size = SIZES[-1]
    mass = RARE * (size - 1)
    row = np.where(np.arange(size) == size // 3, np.log((1 - mass) / RARE), 0.0)
    rows = make_rows(np.tile(row, (BATCH, 1)), [NEUTRAL] * BATCH)
    met = sum(int((run(candidate, rows, call) != size // 3).sum()) for call in range(RARE_CALLS))
    return met, RARE_CALLS * BATCH * mass


def check_rare(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Of samplers that take a key, strictly: a tail of 0.6 % in tokens of 4e-8 each."""
    del order
    if not takes_key(candidate) or level != "strict":
        return Outcome(
            0, notes=["rare tokens: only for samplers that take a key, at the strict level"]
        )
    try:
        met, expected = rare_count(candidate)
    except Exception as error:
        return Outcome(1, [explain(candidate, error, "a tail of rare tokens")])
    note = f"a right sampler is accused with a chance of {FALSE_ALARM}"
    if not is_unlikely(met, expected, FALSE_ALARM):
        return Outcome(1, notes=[note])
    failure = Failure(
        "tokens of 4e-8 each, 0.6 % of the mass together, are drawn "
        + ("too often" if met > expected else "too rarely"),
        f"about {expected:.0f} of {RARE_CALLS * BATCH} draws",
        str(met),
        why="Noise of one float32 a token has 23 bits: its largest value is not enough for rare "
        "tokens to win, or its smallest lets them win too often. Choose by a cumulative sum, or "
        "use noise of more bits, as jax.random.categorical(..., mode='high') does.",
    )
    return Outcome(1, [failure], [note])


def is_unlikely(count: int, expected: float, chance: float) -> bool:
    """Whether a Poisson number is as far off as this with less than the chance."""
    return min(poisson_above(count, expected), poisson_below(count, expected)) < chance / 2


def poisson_above(count: int, expected: float) -> float:
    """P(at least `count`)."""
    return max(1 - poisson_below(count - 1, expected), 0.0) if count > 0 else 1.0


def poisson_below(count: int, expected: float) -> float:
    """P(at most `count`)."""
    mean = max(expected, 1e-300)
    return sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(count + 1))
