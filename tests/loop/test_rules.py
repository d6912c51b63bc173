"""Rules by name and by function: what is chosen is what judges."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
from speculax.rules import RULES, as_rule
from tests import toy

NETWORK = toy.Markov()
LOGITS = toy.random_logits(NETWORK)
DRAFT = toy.softmax(0.5 * toy.random_logits(NETWORK, seed=1))


def run(verify, temperature=1.0, drafter=None, **kwargs):
    return sx.generate(
        toy.model(NETWORK, LOGITS),
        [[1], [2], [3]],
        drafter=drafter or toy.sampling_drafter(DRAFT),
        verify=verify,
        max_new_tokens=24,
        temperature=temperature,
        seed=[4, 5, 6],
        **kwargs,
    )


def tokens(results):
    return [result.tokens.tolist() for result in results]


@pytest.mark.parametrize("name", RULES)
def test_a_name_and_its_function_are_the_same_rule(name):
    assert as_rule(getattr(sx, f"verify_{name}")) is as_rule(name) is RULES[name]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("block", "coupled") else [pytest.mark.slow])
        for name in RULES
    ],
)
def test_every_rule_makes_a_text(name):
    """And at temperature 0 the greedy one, but for those that say otherwise."""
    results = run(name, temperature=0.0)
    expected = [toy.greedy_text(NETWORK, LOGITS, prompt, 24) for prompt in ([1], [2], [3])]
    if name == "lossy_synthetic":
        assert tokens(results) != expected
    else:
        assert tokens(results) == expected
    if name != "greedy":
        assert all(len(result.tokens) == 24 for result in run(name))


def test_rules_differ():
    texts = {name: tuple(map(tuple, tokens(run(name)))) for name in ("token", "block", "coupled")}
    assert len(set(texts.values())) == 3


def test_settings_of_a_rule_go_with_functools_partial():
    rates = {
        rate: np.mean(
            [
                result.stats.acceptance_rate
                for result in run(partial(sx.verify_lossy_synthetic, rates=rate))
            ]
        )
        for rate in (0.0, 1.0)
    }
    assert rates == {0.0: 0.0, 1.0: 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(1.0,) * 15, np.ones(15, np.float32)], ids=["tuple", "array"])
def test_rates_of_places_go_with_drafts_that_adapt(rates):
    rule = partial(sx.verify_lossy_synthetic, rates=rates)
    result = sx.generate(
        toy.cycle(), list(range(8)) * 2, drafter=sx.NGram(15), verify=rule, max_new_tokens=40
    )
    assert result.stats.acceptance_rate == 1


def test_a_function_of_ones_own_is_given_what_the_contract_says():
    seen = []

    def verify(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, *, draft_lengths
    ):
        seen.append((draft_probs.dtype, draft_probs.shape, target_probs.shape, draft_tokens.shape))
        return sx.verify_token(
            draft_tokens,
            draft_probs,
            target_probs,
            accept_uniforms,
            sample_uniforms,
            draft_lengths=draft_lengths,
        )

    assert tokens(run(verify)) == tokens(run("token"))
    assert (np.float32, (3, 3, 8), (3, 4, 8), (3, 3)) in seen
    # A deterministic drafter's laws are point masses.
    erratic = toy.Erratic()
    assert tokens(run(verify, drafter=erratic)) == tokens(run("token", drafter=erratic))
    assert tokens(run(verify, temperature=0.0)) == tokens(run("token", temperature=0.0))


def test_a_law_that_cannot_be_drawn_from_is_an_error_under_ones_own_rule_too():
    def verify(*args, **kwargs):
        verdict = sx.verify_token(*args, **kwargs)
        return verdict | {"tokens": jnp.abs(verdict["tokens"])}  # makes something up

    broken = toy.model(NETWORK, np.where(np.arange(8)[:, None] == 5, np.nan, LOGITS))
    with pytest.raises(FloatingPointError, match="request 0"):
        sx.generate(broken, [5], verify=verify, max_new_tokens=2, temperature=1.0)


def test_what_is_no_rule_is_refused_by_name():
    with pytest.raises(ValueError, match=r"verify must be one of token, block, .*, got 'tokens'"):
        run("tokens")
    with pytest.raises(ValueError, match="name of a rule or a function, got None"):
        run(None)

    def mine(tokens, draft, target, uniforms, uniform):
        raise AssertionError

    with pytest.raises(ValueError, match=r"draft_lengths.* mine is not .*unexpected .*'draft_len"):
        run(mine)
    with pytest.raises(ValueError, match=r"verify must be a hashable function .* int is not"):
        run(int)
    with pytest.raises(ValueError, match="temperature must be 0"):
        run("greedy")


def test_nothing_is_compiled_again_for_the_same_rule():
    assert hash(as_rule("block")) == hash(as_rule(sx.verify_block))
    mine = partial(sx.verify_lossy_top_k, k=2)
    assert as_rule(mine) == as_rule(mine)
