"""One of each drafter, for a target small enough to know its laws; add yours to `DRAFTERS`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import speculax as sx
from speculax.drafters.recurrent import advance_hidden, init_params
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
UNKNOWN = 2
SOME = [5, 1, 2]


def state_after(network, text):
    state = 0
    for token in text:
        state = network.after(state, token)
    return state


class Specimen(NamedTuple):
    """A drafter, and what it should say.

    Attributes:
        make: The drafter of a draft length.
        logits: `logits(text, drafted)`, the logits (V,) that its next token is drawn by after a
            text and drafted tokens; None if it copies.
    """

    make: Callable[[int], sx.Drafter]
    logits: Callable[[list[int], list[int]], np.ndarray] | None = None


def _by_ids(text, drafted):
    """The laws of the model with other tokens, in the target's."""
    own = [int(np.argmax(token == IDS)) if token in IDS else UNKNOWN for token in [*text, *drafted]]
    logits = np.full(V, -np.inf)
    logits[IDS[IDS >= 0]] = OTHER_TABLE[state_after(OTHER, own)][IDS >= 0]
    return logits


def _of_some(logits):
    """The same for some tokens only."""
    return np.where(np.isin(np.arange(V), SOME), logits, -np.inf)


def _early(text, drafted):
    return TABLES[0][state_after(NETWORK, [*text, *drafted])]


HEAD_PARAMS = init_params(jax.random.key(4), NETWORK.modulus, 8, num_layers=2)
for _layer in HEAD_PARAMS["layers"]:
    _layer["down"] = jax.random.normal(jax.random.key(5), (8, NETWORK.modulus))


def _recurrent(text, drafted):
    hidden = jnp.zeros(NETWORK.modulus)
    if len(text) > 1:
        hidden = hidden.at[state_after(NETWORK, text[:-1])].set(1.0)
    for token in [text[-1], *drafted]:
        embedded = jax.nn.one_hot(token, NETWORK.modulus)
        hidden = advance_hidden(HEAD_PARAMS, hidden, embedded)
    return _of_some(np.asarray(hidden) @ TABLES[1])


def draft_model(length):
    return sx.DraftModel(toy.model(OTHER, OTHER_TABLE, name="draft"), length)


DRAFTERS = {
    "n-gram": Specimen(lambda length: sx.NGram(length)),
    "suffix": Specimen(lambda length: sx.Suffix(length)),
    "draft model": Specimen(
        draft_model, lambda text, drafted: OTHER_TABLE[state_after(OTHER, [*text, *drafted])]
    ),
    "draft model by ids": Specimen(
        lambda length: sx.DraftModel(toy.model(OTHER, OTHER_TABLE), length, IDS, UNKNOWN), _by_ids
    ),
    "early exit": Specimen(lambda length: sx.EarlyExit(1, length), _early),
    "early exit with few tokens": Specimen(
        lambda length: sx.EarlyExit.with_vocabulary(TARGET, SOME, 1, length),
        lambda text, drafted: _of_some(_early(text, drafted)),
    ),
    "recurrent head": Specimen(
        lambda length: sx.RecurrentHead.create(TARGET, HEAD_PARAMS, SOME, length), _recurrent
    ),
    "first match": Specimen(lambda length: sx.FirstMatch(sx.NGram(length), draft_model(length))),
}
