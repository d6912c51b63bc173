"""The law of a sampler in small rows: temperature, each filter alone and together, greedy rows."""

from functools import cache

import numpy as np

from speculax.conformance import chi_square
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Failure, Level, Outcome
from speculax.conformance.sampler.call import NEUTRAL, make_rows, run, takes_key
from speculax.conformance.sampler.judge import FALSE_ALARM, Group, judge_groups
from speculax.conformance.sampler.measure import BATCH
from speculax.conformance.sampler.oracle import Order, Settings
from speculax.conformance.sampler.rows import VOCAB, clear_rows

PER_GROUP = 6
MASKED = 12
PAIR = np.log([0.4, 0.3, 0.15, 0.1, 0.03, 0.02])
PAIR_CALLS = 16

_PLAIN = "This is plain sampling: the softmax of the logits."
_TEMPERATURE = "Logits are divided by the temperature, before any filter."
_ORDERS = {
    "sequential": "Each filter sees what the one before has left, renormalised: temperature, "
    "top-k, top-p, min-p.",
    "joint": "All filters look at the law after the temperature; a token must pass each of them.",
}
_TOP_K = "The k likeliest tokens stay."
_TOP_P = (
    "The likeliest tokens stay until their mass reaches top_p, the one that reaches it included."
)
_MIN_P = "A token stays if it is at least min_p times as likely as the likeliest."
_GREEDY = "Temperature 0 is the likeliest token, the lowest id of a tie, whatever the noise."


@cache
def law_groups(order: Order) -> list[Group]:
    """Rows without filters."""
    rng = np.random.default_rng(1)
    masked = rng.standard_normal((MASKED, VOCAB))
    masked[:4] = np.where(rng.random((4, VOCAB)) < 0.4, -np.inf, masked[:4])
    masked[:4, 2] = 0.5
    masked[4:, -1] = -np.inf  # where sums end that round to less than 1
    return [
        Group("neutral settings", clear_rows((), order, PER_GROUP), _PLAIN),
        Group("temperature", clear_rows(("temperature",), order, 2 * PER_GROUP), _TEMPERATURE),
        Group(
            "tokens at -inf", make_rows(masked, [NEUTRAL] * MASKED), "-inf is a token without mass."
        ),
    ]


@cache
def settings_groups(order: Order) -> list[Group]:
    """Filters alone, in pairs, and all together."""

    def group(*names: str, why: str, tells: str = "") -> Group:
        rows = clear_rows(names, order, PER_GROUP, frozenset(tells.split()))
        return Group(" and ".join(names), rows, why)

    return [
        group("top_k", why=_TOP_K),
        group("top_p", why=_TOP_P),
        group("min_p", why=_MIN_P),
        group("temperature", "top_k", why=_TEMPERATURE),
        group("temperature", "top_p", why=_TEMPERATURE, tells="temperature"),
        group("temperature", "min_p", why=_TEMPERATURE, tells="temperature"),
        group("top_k", "top_p", why=_ORDERS[order], tells="order"),
        group("top_k", "min_p", why=_ORDERS[order]),
        group("top_p", "min_p", why=_ORDERS[order]),
        group("temperature", "top_k", "top_p", "min_p", why=_ORDERS[order], tells="order"),
    ]


@cache
def greedy_groups(order: Order) -> list[Group]:
    """Rows of temperature 0, and sampled ones to stand beside them."""
    greedy = clear_rows((), order, PER_GROUP)
    filtered = clear_rows(("top_k", "top_p", "min_p"), order, PER_GROUP)
    greedy, filtered = (
        rows._replace(temperature=np.zeros_like(rows.temperature)) for rows in (greedy, filtered)
    )
    ties = [[1, 1, 0, -1, -2, 1], [0] * 6, [-3, 2, 2, 2, 2, 2], [-np.inf, 7, -np.inf, 7, 0, 0]]
    tied = make_rows(ties, [Settings(temperature=0.0)] * 4)
    sampled = clear_rows(("temperature",), order, 2 * PER_GROUP)
    return [
        Group("temperature 0", greedy, f"{_GREEDY} Choose by row: jnp.where(temperature == 0, .)."),
        Group("temperature 0, with filters", filtered, _GREEDY),
        Group("temperature 0, ties", tied, _GREEDY),
        Group("sampled rows beside rows of temperature 0", sampled, "Choose by row."),
    ]


def check_law(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Rows without filters: the softmax of the logits, divided by the temperature."""
    num_tests = 3 * PER_GROUP + MASKED + 1
    checks, failures = judge_groups(candidate, order, level, law_groups(order), num_tests)
    if takes_key(candidate) and not failures:
        checks, failures = checks + 1, _check_pairs(candidate, FALSE_ALARM / num_tests)
    return Outcome(checks, failures, _notes(candidate))


def check_settings(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Filters alone, in pairs, and all together; rows of all kinds share batches."""
    checks, failures = judge_groups(candidate, order, level, settings_groups(order))
    return Outcome(checks, failures, _notes(candidate))


def check_greedy(candidate: Candidate, order: Order, level: Level) -> Outcome:
    """Rows of temperature 0, in batches with sampled rows and among themselves."""
    groups = greedy_groups(order)
    mixed = [group._replace(name=f"in mixed batches: {group.name}") for group in groups]
    checks, failures = judge_groups(candidate, order, level, mixed)
    if not failures:
        alone = [group._replace(name=f"in greedy batches: {group.name}") for group in groups[:3]]
        more, failures = judge_groups(candidate, order, level, alone)
        checks += more
    return Outcome(checks, failures, _notes(candidate))


def _notes(candidate: Candidate) -> list[str]:
    if not takes_key(candidate):
        return []
    return [f"draws by key were counted; a right sampler is accused with a chance of {FALSE_ALARM}"]


def _check_pairs(candidate: Candidate, false_alarm: float) -> list[Failure]:
    """Whether the tokens of two rows that stand side by side are independent."""
    probs = np.exp(PAIR) / np.exp(PAIR).sum()
    rows = make_rows(np.tile(PAIR, (BATCH, 1)), [NEUTRAL] * BATCH)
    counts = np.zeros(len(probs) ** 2)
    try:
        for number in range(PAIR_CALLS):
            ids = run(candidate, rows, number)
            np.add.at(counts, ids[::2] * len(probs) + ids[1::2], 1)
    except Exception as error:
        return [explain(candidate, error, "rows side by side")]
    p_value = chi_square.p_value(counts.astype(int), np.outer(probs, probs).reshape(-1))
    if p_value >= false_alarm:
        return []
    return [
        Failure(
            "rows side by side are not independent",
            "the law of pairs of rows is the product of their laws",
            f"p-value {p_value:.1g}",
            why="Each row needs noise of its own: draw it with shape (R,).",
        )
    ]
