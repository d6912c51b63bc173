"""Rows of logits and settings in which no rounding decides what is kept."""

from collections.abc import Callable, Iterator

import numpy as np

from speculax.conformance.sampler.call import NEUTRAL, Rows, make_rows
from speculax.conformance.sampler.oracle import Order, RowLaw, Settings, row_law

VOCAB = 6
LEAST_MASS = 0.03  # of each token before the cut-offs, so that draws tell who is kept
GAP = 0.05  # between logits
MASS_MARGIN, RATIO_MARGIN = 0.01, 0.03  # how far top-p and min-p stay from where they would matter
TEMPERATURES = [0.5, 0.7, 1.4, 2.0]
OTHER: dict[Order, Order] = {"sequential": "joint", "joint": "sequential"}


def clear_rows(
    names: tuple[str, ...],
    order: Order,
    count: int,
    tells: frozenset[str] = frozenset(),
    seed: int = 0,
) -> Rows:
    """Rows with certain settings, one of which at least matters.

    Cut-offs all keep the likeliest tokens, so that mostly one of them has the last word.

    Args:
        names: The settings that are not neutral.
        order: Of the filters.
        count: How many rows.
        tells: "order" if each row must have another law in the other order of filters,
            "temperature" if other tokens must be kept at temperature 1.
        seed: Of the rows.
    """
    rng = np.random.default_rng([seed, len(names), *map(len, names)])
    found = _candidates(rng, names, order, tells)
    logits, many = zip(*(next(found) for _ in range(count)), strict=True)
    return make_rows(np.stack(logits), list(many))


def _candidates(
    rng: np.random.Generator, names: tuple[str, ...], order: Order, tells: frozenset[str]
) -> Iterator[tuple[np.ndarray, Settings]]:
    choose: dict[str, Callable[[], float]] = {
        "temperature": lambda: float(rng.choice(TEMPERATURES)),
        "top_k": lambda: int(rng.integers(1, VOCAB)),
        "top_p": lambda: round(float(rng.uniform(0.3, 0.95)), 2),
        "min_p": lambda: round(float(rng.uniform(0.1, 0.7)), 2),
    }
    while True:
        logits = np.round(1.2 * rng.standard_normal(VOCAB), 2).astype(np.float32)
        settings = Settings(**{name: choose[name]() for name in names})  # type: ignore[arg-type]
        law = _clear_law(logits, settings, order)
        if law is None:
            continue
        if names and not any(_matters(logits, settings, name, law, order) for name in names):
            continue
        if "order" in tells:
            other = _clear_law(logits, settings, OTHER[order])
            if other is None or not _differ(law, other):
                continue
        if "temperature" in tells:
            other = _clear_law(logits, settings._replace(temperature=1.0), order)
            if other is None or (other.must == law.must).all():
                continue
        yield logits, settings


def _clear_law(logits: np.ndarray, settings: Settings, order: Order) -> RowLaw | None:
    """The law, if all that is near its settings has one with the same tokens."""
    law = row_law(logits, settings, order)
    assert law is not None
    if np.diff(np.sort(logits)).min() < GAP or law.before.min() < LEAST_MASS:
        return None
    for sign in (-1, 1):
        near = settings
        if settings.top_p < 1:
            near = near._replace(top_p=settings.top_p + sign * MASS_MARGIN)
        if settings.min_p > 0:
            near = near._replace(min_p=settings.min_p * (1 + sign * RATIO_MARGIN))
        beside = row_law(logits, near, order)
        assert beside is not None
        if (beside.must != law.must).any() or (beside.may != law.must).any():
            return None
    return law


def _matters(logits: np.ndarray, settings: Settings, name: str, law: RowLaw, order: Order) -> bool:
    without = settings._replace(**{name: getattr(NEUTRAL, name)})
    other = row_law(logits, without, order)
    return other is not None and _differ(law, other)


def _differ(law: RowLaw, other: RowLaw) -> bool:
    return float(np.abs(law.after - other.after).max()) > LEAST_MASS
