"""Targets and drafters whose every law is known: rows that depend on the last two tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

VOCAB, ORDER = 4, 2
WORDS = [word for size in range(ORDER + 1) for word in product(range(VOCAB), repeat=size)]

Table = dict[tuple[int, ...], np.ndarray]


def as_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """The ids a row is asked for.

    Raises:
        ValueError: If one is outside the vocabulary.
    """
    found = tuple(map(int, ids))
    if found and not 0 <= min(found) <= max(found) < VOCAB:
        raise ValueError(f"a row was asked for after {list(found)}; ids are 0 to {VOCAB - 1}")
    return found


@dataclass(frozen=True)
class Laws:
    """A target and a drafter.

    Attributes:
        name: What this module calls them.
        about: What they are like.
        target_rows: float64 (V,) for each of `WORDS`.
        draft_rows: The same of the drafter.
    """

    name: str
    about: str
    target_rows: Table
    draft_rows: Table

    def target(self, ids: Sequence[int]) -> np.ndarray:
        """The target's row after a text, float64 (V,)."""
        return self.target_rows[as_ids(ids)[-ORDER:]].copy()

    def drafter(self, ids: Sequence[int]) -> np.ndarray:
        """The drafter's row after a text, float64 (V,)."""
        return self.draft_rows[as_ids(ids)[-ORDER:]].copy()

    def lines(self) -> list[str]:
        """Python that makes target and drafter."""
        return [
            f"from speculax.conformance.generate.laws import {self.name}",
            "",
            f"target, drafter = {self.name}.target, {self.name}.drafter",
        ]

    def joint(self, prompt: Sequence[int], count: int) -> np.ndarray:
        """The target's law of the next `count` tokens, float64 (V,) * count."""
        law = np.ones(())
        for size in range(count):
            texts = product(range(VOCAB), repeat=size)
            rows = np.stack([self.target([*prompt, *text]) for text in texts])
            law = law[..., None] * rows.reshape(*law.shape, VOCAB)
        return law


def _rows(seed: int, concentration: float = 1.0) -> Table:
    rng = np.random.default_rng(seed)
    return {word: rng.dirichlet(np.full(VOCAB, concentration)) for word in WORDS}


def _unlike() -> Laws:
    return Laws("UNLIKE", "a drafter that is far from the target", _rows(11), _rows(12))


def _equal() -> Laws:
    rows = _rows(21)
    return Laws("EQUAL", "a drafter that is the target", rows, rows)


def _masked() -> Laws:
    """Each row lacks a token, often not the same one."""
    rng = np.random.default_rng(31)

    def mask(rows: Table) -> Table:
        found = {}
        for word, row in rows.items():
            row = np.where(np.arange(VOCAB) == rng.integers(VOCAB), 0, row)
            found[word] = row / row.sum()
        return found

    return Laws(
        "MASKED", "tokens that one or the other rules out", mask(_rows(32)), mask(_rows(33))
    )


def _certain() -> Laws:
    rng = np.random.default_rng(41)
    chosen = {word: np.eye(VOCAB)[rng.integers(VOCAB)] for word in WORDS}
    return Laws("CERTAIN", "a deterministic drafter", _rows(42), chosen)


def _mixed(seed: int = 409) -> Laws:
    """Rows that are equal, far from each other, certain, or the target's cut to two tokens.

    Of many seeds one whose texts tell clearly that block verification used a number twice.
    """
    rng = np.random.default_rng(seed)
    target, draft = {}, {}
    for word in WORDS:
        row = rng.dirichlet(np.full(VOCAB, 3.0))
        choices = [
            rng.dirichlet(np.full(VOCAB, 3.0)),
            np.eye(VOCAB)[rng.integers(VOCAB)],
            np.where(np.isin(np.arange(VOCAB), rng.permutation(VOCAB)[:2]), row, 0),
            *[row] * 3,
        ]
        chosen = choices[rng.integers(len(choices))]
        target[word], draft[word] = row, chosen / chosen.sum()
    return Laws("MIXED", "a drafter that agrees, disagrees and is certain in turn", target, draft)


MIXED, UNLIKE, EQUAL, MASKED, CERTAIN = _mixed(), _unlike(), _equal(), _masked(), _certain()
LAWS = (UNLIKE, MIXED, EQUAL, MASKED, CERTAIN)
