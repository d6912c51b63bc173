"""Language models and drafters small enough to know everything about them.

A text puts a model into a state, and a state has a law: params are a table of logits (states, V).
What a run should give can thus be written down in a few lines of Python, without caches and without
batches.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import speculax as sx
from speculax.batching import write_rows
from speculax.settings import History, RowSettings

VOCAB = 8
CERTAIN = 50.0  # a logit this far above all others leaves them less than 1e-20


# --- Language models


class Trail(NamedTuple):
    """A cache: the state of the text after each token (B, S), and how many tokens are kept (B,)."""

    states: jax.Array
    lengths: jax.Array


@dataclass(frozen=True)
class Markov:
    """A model whose state is the last token. Networks of different names share no programs."""

    name: str = ""
    vocab_size: int = VOCAB
    context_length: int = 512

    @property
    def num_states(self):
        return self.vocab_size

    def after(self, state, token):
        return token

    def init_cache(self, batch_size, num_slots):
        states = jnp.zeros((batch_size, num_slots), jnp.int32)
        return Trail(states, jnp.zeros((batch_size,), jnp.int32))

    def score(self, params, tokens, positions, cache, mask=None):
        place = cache.lengths[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        before = jnp.take_along_axis(cache.states, jnp.maximum(place[:, :1] - 1, 0), axis=1)[:, 0]

        def read(state, new):
            token, misplaced = new
            # Positions that do not follow on the kept tokens lead astray.
            state = (self.after(state, token) + misplaced) % self.num_states
            return state, state

        start = jnp.where(cache.lengths > 0, before, 0)
        states = jax.lax.scan(read, start, (tokens.T, (positions - place).T))[1].T
        return states, cache._replace(states=write_rows(cache.states, states, cache.lengths))

    def head(self, params, hidden):
        return params[hidden]

    def keep(self, cache, lengths):
        return cache._replace(lengths=lengths.astype(jnp.int32))


@dataclass(frozen=True)
class LongMemory(Markov):
    """A model whose state depends on every token of the text, and on their order."""

    modulus: int = 97

    @property
    def num_states(self):
        return self.modulus

    def after(self, state, token):
        return (5 * state + token + 1) % self.modulus


@dataclass(frozen=True)
class Layered(LongMemory):
    """A model that says something else after its first layer: params are a table for each.

    Its hidden states are vectors, 1 at the state.
    """

    num_layers: int = 2

    def score(self, params, tokens, positions, cache, mask=None):
        states, cache = super().score(params, tokens, positions, cache, mask)
        return jax.nn.one_hot(states, self.modulus), cache

    def head(self, params, hidden):
        table = params[self.num_layers - 1]
        return jax.lax.dot_general(hidden, table, (((hidden.ndim - 1,), (0,)), ((), ())))

    def embed(self, params, tokens):
        return jax.nn.one_hot(tokens, self.modulus)

    def first_layers(self, params, cache, num_layers):
        return replace(self, num_layers=num_layers), params, cache

    def small_head(self, params, ids):
        return [table[:, ids] for table in params]


@dataclass(frozen=True)
class NeverForgets(LongMemory):
    """A faulty one: what was scored stays in the cache, kept or not."""

    def score(self, params, tokens, positions, cache, mask=None):
        expected = cache.lengths[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        hidden, cache = super().score(params, tokens, expected, cache, mask)
        return hidden, cache._replace(lengths=cache.lengths + tokens.shape[1])

    def keep(self, cache, lengths):
        return cache


def model(network, logits, **kwargs):
    return sx.Model(network, jnp.asarray(logits, jnp.float32), **kwargs)


def random_logits(network, seed=0, spread=1.0):
    """A table without ties, and without a token that is out of the question."""
    rng = np.random.default_rng(seed)
    return spread * rng.normal(size=(network.num_states, network.vocab_size)).astype(np.float32)


def cycle_logits(vocab_size=VOCAB):
    """For `Markov`: token t + 1 follows t for certain, and 0 follows the last."""
    return CERTAIN * np.roll(np.eye(vocab_size, dtype=np.float32), 1, axis=1)


def cycle(network=None, **kwargs):
    """The model that counts."""
    network = network or Markov()
    return model(network, cycle_logits(network.vocab_size), **kwargs)


def greedy_text(network, logits, prompt, num_new):
    """What plain greedy decoding makes of a prompt, token after token."""
    state, text = 0, []
    for token in prompt:
        state = network.after(state, token)
    for _ in range(num_new):
        text.append(int(np.argmax(logits[state])))
        state = network.after(state, text[-1])
    return text


def softmax(logits):
    weights = np.exp(np.asarray(logits, np.float64))
    return weights / weights.sum(axis=-1, keepdims=True)


# --- Drafters


def round_of(tokens, lengths, draft_length, target=None, temperature=None, **kwargs):
    """What a drafter is told in a step; `target` is a `Model` and its cache."""
    batch = tokens.shape[0]
    nothing = jnp.zeros((batch, 0), jnp.int32)
    return sx.Round(
        tokens=tokens,
        lengths=lengths,
        draft_length=draft_length,
        target=target or sx.Target(Markov(), None, None, jnp.zeros((batch, 1))),
        settings=RowSettings(stop_ids=nothing, temperature=temperature),
        history=History(None, None, None),
        **{"uniforms": jnp.zeros((batch, draft_length))} | kwargs,
    )


@dataclass(frozen=True)
class MarkovDrafter:
    """Samples each draft token from `law[last token]`; the law is a tuple of rows.

    As a point mass it proposes the likeliest instead, and gives no laws.
    """

    law: tuple[tuple[float, ...], ...]
    draft_length: int = 3
    point_mass: bool = False

    def init(self, tokens, lengths):
        return ()

    def propose(self, state, round):
        law, pending, uniforms = jnp.asarray(self.law, jnp.float32), round.pending, round.uniforms

        def draw(token, uniform):
            rows = law[token]
            if self.point_mass:
                token = jnp.argmax(rows, axis=1).astype(jnp.int32)
            else:
                passed = jnp.cumsum(rows, axis=1)[:, :-1] <= uniform[:, None]
                token = jnp.sum(passed, axis=1, dtype=jnp.int32)
            return token, (token, rows)

        tokens, rows = jax.lax.scan(draw, pending, uniforms.T)[1]
        lengths = jnp.full(pending.shape, uniforms.shape[1], jnp.int32)
        probs = None if self.point_mass else rows.swapaxes(0, 1)
        return sx.Draft(tokens.T, lengths, probs), state


def perfect_drafter(logits, draft_length=3):
    """Proposes what greedy decoding with the `Markov` table would give."""
    law = tuple(tuple(row) for row in np.asarray(logits).tolist())
    return MarkovDrafter(law, draft_length, point_mass=True)


def sampling_drafter(law, draft_length=3):
    return MarkovDrafter(tuple(tuple(row) for row in np.asarray(law).tolist()), draft_length)


@dataclass(frozen=True)
class Scripted:
    """Proposes `scripts[row][position]` for each position of the text; a script may be short."""

    scripts: tuple[tuple[int, ...], ...]
    draft_length: int = 3

    def init(self, tokens, lengths):
        return ()

    def propose(self, state, round):
        longest = max(map(len, self.scripts))
        padded = [[*script, *[-1] * (longest - len(script))] for script in self.scripts]
        script = jnp.asarray(padded, jnp.int32)
        count = round.draft_length
        place = round.lengths[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        tokens = jnp.take_along_axis(script, jnp.minimum(place, longest - 1), axis=1)
        ends = jnp.asarray([len(script) for script in self.scripts], jnp.int32)
        lengths = jnp.clip(ends - round.lengths, 0, count)
        return sx.Draft(tokens, lengths), state


@dataclass(frozen=True)
class Erratic:
    """Proposes tokens and numbers of tokens that have nothing to do with the model."""

    draft_length: int = 3
    vocab_size: int = VOCAB

    def init(self, tokens, lengths):
        return ()

    def propose(self, state, round):
        count, pending, lengths = round.draft_length, round.pending, round.lengths
        place = lengths[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        tokens = (7 * place * place + 3 * pending[:, None]) % self.vocab_size
        return sx.Draft(tokens, (lengths * 5 + pending) % (count + 1)), state
