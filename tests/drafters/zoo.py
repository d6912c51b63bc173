"""One of each drafter, for a target small enough to know its laws; add yours to `DRAFTERS`."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import speculax as sx
from tests import toy

V = 6
NETWORK = toy.Layered(vocab_size=V, modulus=31)
TABLES = [
    toy.random_logits(NETWORK, seed=0),  # what its first layer says
    toy.random_logits(NETWORK, seed=1),
]
TARGET = sx.Model(NETWORK, [jnp.asarray(table) for table in TABLES], name="target")
OTHER = toy.LongMemory(vocab_size=V, modulus=23)
OTHER_TABLE = 0.6 * toy.random_logits(OTHER, seed=2)
# The same tokens by other numbers; the target's token 3 is unknown to it, and its own 2 to all.
IDS = np.array([4, 0, -1, 5, 2, 1])


def state_after(network, text):
    state = 0
    for token in text:
        state = network.after(state, token)
    return state


class Specimen(NamedTuple):
    """A drafter, and what it should say.

    Attributes:
        make: The drafter of a draft length.
        logits: The logits (V,) that its next token is drawn by after a text; None if it copies.
    """

    make: Callable[[int], sx.Drafter]
    logits: Callable[[list[int]], np.ndarray] | None = None


def _by_ids(text):
    """The laws of the model with other tokens, in the target's."""
    own = [int(np.argmax(token == IDS)) for token in text]
    logits = np.full(V, -np.inf)
    logits[IDS[IDS >= 0]] = OTHER_TABLE[state_after(OTHER, own)][IDS >= 0]
    return logits


def _of_some(text):
    """The laws of a head over some tokens."""
    logits = np.full(V, -np.inf)
    logits[[5, 1, 2]] = TABLES[0][state_after(NETWORK, text)][[5, 1, 2]]
    return logits


def draft_model(length):
    return sx.DraftModel(toy.model(OTHER, OTHER_TABLE, name="draft"), length)


DRAFTERS = {
    "n-gram": Specimen(lambda length: sx.NGram(length)),
    "draft model": Specimen(draft_model, lambda text: OTHER_TABLE[state_after(OTHER, text)]),
    "draft model by ids": Specimen(
        lambda length: sx.DraftModel(toy.model(OTHER, OTHER_TABLE), length, IDS), _by_ids
    ),
    "early exit": Specimen(
        lambda length: sx.EarlyExit(1, length),
        lambda text: TABLES[0][state_after(NETWORK, text)],
    ),
    "early exit with few tokens": Specimen(
        lambda length: sx.EarlyExit.with_vocabulary(TARGET, [5, 1, 2], 1, length), _of_some
    ),
    "first match": Specimen(lambda length: sx.FirstMatch(sx.NGram(length), draft_model(length))),
}
