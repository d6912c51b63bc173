"""A law that cannot be drawn from is an error that names request and position, if it is needed.

Faults seen in public: NaN turned into a plausible token; a row that makes nothing and stalls its
batch. And the other way round: laws that nobody needs disturbing anybody.
"""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from tests import toy

BROKEN, EOS = 5, 6
DRAFTER = toy.perfect_drafter(toy.cycle_logits())
DAMAGE = {
    "NaN": lambda row: np.full_like(row, np.nan),
    "one NaN": lambda row: np.where(np.arange(len(row)) == 0, np.nan, row),
    "infinity": lambda row: np.where(np.arange(len(row)) == 2, np.inf, row),
    "no mass": lambda row: np.full_like(row, -np.inf),
}
GREEDY_AND_SAMPLED = pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])


def broken_model(damage="NaN", token=BROKEN):
    """The counting toy, unable to say what comes after a token."""
    logits = toy.cycle_logits()
    logits[token] = DAMAGE[damage](logits[token])
    return toy.model(toy.Markov(), logits)


def run(model, prompts, temperature, drafter=DRAFTER, num_new=12):
    return sx.generate(
        model,
        prompts,
        drafter=drafter,
        max_new_tokens=num_new,
        temperature=temperature,
        seed=0,
        eos_ids=(EOS,),
    )


class Recurrent(toy.Markov):
    """A network whose cache cannot be cut back: it says so."""

    def keep(self, cache, lengths):
        raise NotImplementedError("this cache cannot be cut back")


class Flat(toy.Markov):
    def score(self, params, tokens, positions, cache, mask=None):
        hidden, cache = super().score(params, tokens, positions, cache)
        return hidden[:, 0], cache


class Narrow(toy.Markov):
    def head(self, params, hidden):
        return super().head(params, hidden).astype(jnp.bfloat16)


class Forgetful(toy.Markov):
    def keep(self, cache, lengths):
        return None


def test_a_cache_that_cannot_be_cut_back_is_an_error():
    with pytest.raises(NotImplementedError, match="cannot be cut back"):
        sx.generate(toy.model(Recurrent(), toy.cycle_logits()), [1], drafter=DRAFTER)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Flat(), r"score of .* must give hidden states \(B, T, D\), .* gives int32\[1\]"),
        (Narrow(), r"head of .* must give float32 .* gives bfloat16\[1, 2, 8\]"),
        (toy.Markov(vocab_size=7), r"head of .* \(B, T, vocab_size\), .* float32\[1, 2, 8\]"),
        (Forgetful(), r"keep of .* must give a cache like that of init_cache, .* gives None"),
    ],
    ids=["hidden states", "type of logits", "vocabulary", "cache"],
)
def test_a_network_that_gives_something_else_is_refused(network, message):
    with pytest.raises(ValueError, match=message):
        sx.generate(toy.model(network, toy.cycle_logits()), [1])


@GREEDY_AND_SAMPLED
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("steps_before", range(6))
def test_the_error_names_request_and_position(damage, temperature, steps_before):
    """Whether the law is that of a first, a middle or a bonus token of a draft."""
    start = BROKEN - steps_before
    good, bad = run(broken_model(damage), [[EOS], [start]], temperature, num_new=[4, 12])
    assert re.match(rf"request 1: .* position {1 + steps_before} .*\.$", bad.error)
    assert bad.stop_reason == "error"
    assert bad.tokens.tolist() == list(range(start + 1, BROKEN + 1))
    assert (good.error, good.stop_reason) == (None, "length")
    assert good.tokens.tolist() == [7, 0, 1, 2]


@GREEDY_AND_SAMPLED
def test_a_greedy_row_beside_a_sampled_one_fails_too(temperature):
    bad, _ = run(broken_model(), [[BROKEN - 2], [7]], [temperature, 1.0 - temperature])
    assert re.match(r"request 0: .* position 3 ", bad.error)


def test_of_a_single_prompt_the_error_is_raised():
    with pytest.raises(FloatingPointError, match=r"request 0: .* position 3 "):
        run(broken_model(), [BROKEN - 2], 0.0)


@GREEDY_AND_SAMPLED
def test_a_law_after_the_end_is_not_needed(temperature):
    """Not after an end token, though it was scored with the draft; not after the cap."""
    model = broken_model(token=EOS)
    for slot in range(4):
        ended, other = run(model, [[EOS - 1 - slot], [7]], temperature, num_new=[12, 5])
        assert ended.tokens.tolist() == list(range(EOS - slot, EOS + 1))
        assert other.tokens.tolist() == [0, 1, 2, 3, 4]
    capped, other = run(broken_model(), [[BROKEN - 3], [7]], temperature, num_new=[3, 1])
    assert capped.tokens.tolist() == [3, 4, 5]


@GREEDY_AND_SAMPLED
def test_a_dead_row_without_a_law_does_no_harm(temperature):
    """It ended long ago, on a token after which there is NaN; its neighbour goes on for long."""
    model = broken_model(token=EOS)
    ended, other = run(model, [[EOS - 1], [EOS + 1]], temperature, num_new=[40, 6])
    assert ended.tokens.tolist() == [EOS]
    assert other.tokens.tolist() == [0, 1, 2, 3, 4, 5]


@GREEDY_AND_SAMPLED
def test_a_law_after_a_refused_draft_is_not_needed(temperature):
    """Drafts that lead to a token whose law is broken, but are refused before it matters."""
    text = [7, 0, 1, 2, 3, 4]
    scripts = ((EOS, BROKEN, BROKEN, 1), (EOS, 7, BROKEN, 1, 2), (EOS, 7, 0, BROKEN, 2, 3))
    results = run(broken_model(), [[EOS]] * 3, temperature, toy.Scripted(scripts), num_new=6)
    assert [result.tokens.tolist() for result in results] == [text] * 3


def test_tokens_made_before_the_error_were_handed_out():
    stream = sx.stream(broken_model(), [[EOS]], max_new_tokens=12, eos_ids=())
    chunks = iter(stream)
    [first] = next(chunks)
    assert first.tokens == [7, 0, 1, 2]
    [last] = next(chunks)
    assert (last.tokens, last.stop_reason) == ([3, 4, BROKEN], "error")
    assert list(chunks) == []
    [result] = stream.results()
    assert result.tokens.tolist() == [*first.tokens, 3, 4, BROKEN]
    assert re.match(r"request 0: .* position 8 ", result.error)
