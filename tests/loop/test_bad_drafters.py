"""Drafters are other people's code: what is wrong with a draft must not reach the text.

Fault seen in public: placeholder ids such as -1 read as the last token of the vocabulary.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from tests import toy
from tests.slow import slow_but

V = toy.VOCAB


@dataclass(frozen=True)
class Wild:
    """Proposes one id over and over, `length` times, whatever it is asked for."""

    token: int
    length: int = 3
    shape: str = "right"
    draft_length: int = 3

    def init(self, tokens, lengths):
        return None

    def propose(self, state, round):
        pending = round.pending
        tokens = jnp.full(round.uniforms.shape, self.token, jnp.int32)
        lengths = jnp.full(pending.shape, self.length, jnp.int32)
        drafts = {
            "right": sx.Draft(tokens, lengths),
            "tokens": sx.Draft(tokens[:, :0], lengths),
            "lengths": sx.Draft(tokens, lengths[:, None]),
            "probs": sx.Draft(tokens, lengths, jnp.zeros((len(pending), 7, V))),
        }
        return drafts[self.shape], state


def run(drafter, temperature):
    """The last token is the likeliest, so that an id clipped into the vocabulary would pass."""
    logits = toy.random_logits(toy.Markov())
    logits[:, V - 1] += 4.0
    return sx.generate(
        toy.model(toy.Markov(), logits),
        [[1], [2]],
        drafter=drafter,
        temperature=temperature,
        seed=[5, 6],
        max_new_tokens=24,
        eos_ids=(),
    )


@pytest.mark.parametrize("token", slow_but((-1, V), [-1, -7, V, V + 3, 2**31 - 1]))
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_ids_outside_the_vocabulary_are_never_accepted(token, temperature):
    for result in run(Wild(token), temperature):
        assert not result.accepted.any()
        assert result.tokens.min() >= 0
        assert result.tokens.max() < V
    plain = run(None, temperature)
    if temperature == 0:
        for result, other in zip(run(Wild(token), 0.0), plain, strict=True):
            np.testing.assert_array_equal(result.tokens, other.tokens)


@pytest.mark.parametrize("length", [-5, 0, 100])
def test_lengths_out_of_range_are_clipped(length):
    usual = run(Wild(V - 1, min(max(length, 0), 3)), 0.0)
    for result, other in zip(run(Wild(V - 1, length), 0.0), usual, strict=True):
        np.testing.assert_array_equal(result.tokens, other.tokens)
        assert result.stats.drafted == other.stats.drafted


@pytest.mark.parametrize("shape", ["tokens", "lengths", "probs"])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"the drafter must propose tokens of shape \(2, 3\)"):
        run(replace(Wild(0), shape=shape), 1.0)


def test_a_class_is_no_drafter():
    for drafter in (sx.NGram, "ngram"):
        with pytest.raises(ValueError, match=r"drafter must be None or .*NGram\(\)"):
            run(drafter, 0.0)


def test_a_proposal_that_is_no_draft_is_named():
    class Wrong(toy.Erratic):
        def propose(self, state, round):
            draft, state = super().propose(state, round)
            return draft.tokens, state

    with pytest.raises(TypeError, match=r"must return a Draft and a state, got .* return speculax"):
        sx.generate(toy.cycle(), [1], drafter=Wrong(), max_new_tokens=4)
