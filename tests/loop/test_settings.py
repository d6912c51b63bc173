"""Settings of requests, mixed in one batch, at every position with the history that it really has.

The oracle is a plain loop in float64: given the text that was made, it says by which law each token
was drawn. Faults seen in public: penalties that see only the last token of a run, or none of the
draft; settings left out at draft positions, or silently ignored; masks lost after an invalid draft,
or asked after the end; a greedy row in a sampled batch that is not greedy.
"""

import itertools
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx
import speculax.loop
from speculax.settings import adjust, extend_history
from tests import toy
from tests.compilations import counted_compilations

V = 12
NETWORK = toy.LongMemory(vocab_size=V)
LOGITS = toy.random_logits(NETWORK, seed=3, spread=1.5)
TARGET = toy.model(NETWORK, LOGITS)
NEAR = toy.model(NETWORK, LOGITS + 0.5 * toy.random_logits(NETWORK, seed=4))
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
NUM_NEW = 24


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class Automaton:
    """Tokens lead from state to state, `table` int (states, V); -1 forbids a token."""

    table: jax.Array

    def init(self):
        return jnp.int32(0)

    def advance(self, state, token):
        return jnp.maximum(self.table[state, token], 0)

    def allowed(self, state):
        return self.table[state] >= 0


def automaton(seed):
    """A random one with 3 states, of which each allows half of the tokens."""
    table = np.random.default_rng(seed).integers(0, 3, (3, V))
    table[np.random.default_rng(seed + 1).permuted(np.tile(np.arange(V) < 6, (3, 1)), axis=1)] = -1
    return Automaton(jnp.asarray(table, jnp.int32))


@dataclass(frozen=True)
class Rising:
    """A mask without arrays: tokens may not fall, but for 0 after the last."""

    def init(self):
        return jnp.int32(0)

    def advance(self, state, token):
        return token

    def allowed(self, state):
        tokens = jnp.arange(V, dtype=jnp.int32)
        return (tokens >= state) | (tokens == 0)


REQUESTS = {
    "plain": {"temperature": 1.0},
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.4},
    "repetition": {"temperature": 0.8, "repetition_penalty": 2.5},
    "rewarded repetition": {"temperature": 1.0, "repetition_penalty": 0.5},
    "presence": {"temperature": 1.0, "presence_penalty": 1.5},
    "frequency": {"temperature": 1.0, "frequency_penalty": -0.6},
    "bias": {"temperature": 1.3, "logit_bias": {3: 2.0, 5: -np.inf, 0: -1.0}},
    "a mask": {"temperature": 1.0, "token_mask": automaton(0)},
    "another mask": {"temperature": 1.0, "token_mask": automaton(5), "top_k": 3},
    "in sequence": {"temperature": 2.0, "top_k": 5, "top_p": 0.7},
    "jointly": {"temperature": 2.0, "top_k": 5, "top_p": 0.7, "order": "joint"},
    "min-p": {"temperature": 1.5, "min_p": 0.2},
    "all": {
        "temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3,
        "presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": {7: 1.0},
        "token_mask": automaton(9),
    },
}  # fmt: skip
NEUTRAL = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "order": "sequential",
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "logit_bias": None, "token_mask": None,
}  # fmt: skip
FILLED = [NEUTRAL | request for request in REQUESTS.values()]
MERGED = {name: [request[name] for request in FILLED] for name in NEUTRAL}


def law(settings, prompt, text, number):
    """The law in float64 of token `number` of a text."""
    state = 0
    for token in [*prompt, *text[:number]]:
        state = NETWORK.after(state, token)
    logits = LOGITS[state].astype(np.float64)
    for token, bias in (settings["logit_bias"] or {}).items():
        logits[token] += bias
    for token in {*prompt, *text[:number]}:
        penalty = settings["repetition_penalty"]
        logits[token] *= 1 / penalty if logits[token] > 0 else penalty
    for token in set(text[:number]):
        logits[token] -= settings["frequency_penalty"] * text[:number].count(token)
        logits[token] -= settings["presence_penalty"]
    if settings["token_mask"] is not None:
        table, state = np.asarray(settings["token_mask"].table), 0
        for token in text[:number]:
            state = table[state, token]
        logits[table[state] < 0] = -np.inf
    if settings["temperature"] == 0:
        return np.eye(V)[np.argmax(logits)]
    weights = np.exp((logits - logits.max()) / settings["temperature"])
    probs = whole = weights / weights.sum()
    if settings["top_k"]:
        probs = np.where(probs >= np.sort(probs)[-settings["top_k"]], probs, 0)
        probs = probs / probs.sum()
    if settings["top_p"] < 1:
        seen = whole if settings["order"] == "joint" else probs
        falling = np.sort(seen)[::-1]
        last = falling[np.searchsorted(np.cumsum(falling), settings["top_p"])]
        probs = np.where(seen >= last, probs, 0)
    probs = np.where(whole >= settings["min_p"] * whole.max(), probs, 0)
    return probs / probs.sum()


def run(drafter, verify, **kwargs):
    return sx.generate(
        TARGET,
        [PROMPT] * len(FILLED),
        drafter=drafter,
        verify=verify,
        max_new_tokens=NUM_NEW,
        seed=range(len(FILLED)),
        log_probs=2,
        slots=len(FILLED),
        **(MERGED | kwargs),
    )


def assert_drawn_by_the_law(result, settings):
    text = result.tokens.tolist()
    assert len(text) == NUM_NEW
    laws = [law(settings, PROMPT, text, number) for number in range(NUM_NEW)]
    expected = [probs[token] for probs, token in zip(laws, text, strict=True)]
    np.testing.assert_allclose(np.exp(result.log_probs.sampled), expected, atol=1e-5)
    own = [law(NEUTRAL | {"temperature": 1.0}, PROMPT, text, number) for number in range(NUM_NEW)]
    expected = [probs[token] for probs, token in zip(own, text, strict=True)]
    np.testing.assert_allclose(np.exp(result.log_probs.model), expected, atol=1e-5)
    top = np.argsort(own, axis=1)[:, ::-1][:, :2]
    np.testing.assert_array_equal(result.log_probs.top_tokens, top)
    likeliest = np.take_along_axis(np.array(own), top, axis=1)
    np.testing.assert_allclose(np.exp(result.log_probs.top), likeliest, atol=1e-5)


DRAFT = sx.DraftModel(NEAR, 3)


@pytest.mark.parametrize(
    ("drafter", "verify"),
    [
        (DRAFT, "token"),
        pytest.param(None, "token", marks=pytest.mark.slow),
        pytest.param(sx.NGram(5), "token", marks=pytest.mark.slow),
        pytest.param(DRAFT, "block", marks=pytest.mark.slow),
        pytest.param(DRAFT, "sampled", marks=pytest.mark.slow),
        pytest.param(DRAFT, "coupled", marks=pytest.mark.slow),
    ],
)
def test_each_token_is_drawn_by_the_law_of_its_request_and_its_place(drafter, verify):
    results = run(drafter, verify)
    for settings, result in zip(FILLED, results, strict=True):
        assert_drawn_by_the_law(result, settings)
    if drafter is DRAFT and verify != "sampled":  # places of all kinds
        accepted = np.sum([result.accepted for result in results], axis=0)
        assert np.all(accepted[1:-1] > 0)


def without_drafts(settings, history, logits, drafts, *rest, **kwargs):
    """A loop in which only committed tokens count at any place of a draft."""
    return adjust(settings, history, logits, jnp.full_like(drafts, -1), *rest, **kwargs)


def last_of_a_run(settings, history, tokens):
    """A loop in which only the last token of a run is committed to the history."""
    place = jnp.arange(tokens.shape[1])[None]
    is_last = place == jnp.sum(tokens >= 0, axis=1)[:, None] - 1
    return extend_history(settings, history, jnp.where(is_last, tokens, -1))


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("adjust", without_drafts),
        pytest.param("extend_history", last_of_a_run, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("greedy with penalties", marks=pytest.mark.slow),
        pytest.param("frequency", marks=pytest.mark.slow),
        "repetition",
        pytest.param("a mask", marks=pytest.mark.slow),
    ],
)
def test_a_loop_with_another_history_is_noticed(monkeypatch, name, mutant, setting):
    settings = NEUTRAL | REQUESTS[setting]
    speculax.loop.decode_chunk.clear_cache()
    monkeypatch.setattr(speculax.loop, name, mutant)
    result = sx.generate(
        TARGET, PROMPT, drafter=DRAFT, max_new_tokens=NUM_NEW, seed=0, log_probs=2, **settings
    )
    speculax.loop.decode_chunk.clear_cache()
    assert result.stats.accepted > 2
    with pytest.raises(AssertionError):
        assert_drawn_by_the_law(result, settings)


@pytest.mark.parametrize("verify", ["token", pytest.param("coupled", marks=pytest.mark.slow)])
def test_a_draft_model_that_is_the_target_is_always_right(verify):
    """It draws under the same settings, with the same history at each place of the draft."""
    results = run(sx.DraftModel(TARGET, 3), verify)
    for result in results:
        assert result.stats.acceptance_rate == 1


def test_other_values_compile_nothing():
    run(DRAFT, "token")
    other = {name: values[::-1] for name, values in MERGED.items()}
    with counted_compilations() as compiled:
        run(DRAFT, "token", **other)
    assert compiled == []


def test_masks_without_arrays_and_rows_without_masks():
    masks = [Rising(), None, Rising()]
    results = sx.generate(
        TARGET, [PROMPT] * 3, drafter=sx.NGram(3), temperature=3.0, seed=0, token_mask=masks,
        max_new_tokens=40,
    )  # fmt: skip
    for mask, result in zip(masks, results, strict=True):
        pairs = itertools.pairwise(result.tokens.tolist())
        assert all(a <= b or b == 0 for a, b in pairs) == (mask is not None)


def test_masks_of_different_kinds_are_refused():
    with pytest.raises(ValueError, match=r"token_mask: .* 2 kinds"):
        sx.generate(TARGET, [[1], [2]], token_mask=[Rising(), automaton(0)])


class Short(Rising):
    def allowed(self, state):
        return super().allowed(state)[:1]


class Numbers(Rising):
    def allowed(self, state):
        return super().allowed(state).astype(jnp.float32)


@pytest.mark.parametrize("mask", [Short(), Numbers()], ids=["shape", "type"])
def test_a_mask_of_another_vocabulary_is_refused(mask):
    with pytest.raises(ValueError, match=rf"token_mask must .* bool \({V},\), .* got .*allowed"):
        sx.generate(TARGET, [[1]], token_mask=mask)


@dataclass(frozen=True)
class Only:
    """A mask without a state."""

    tokens: tuple[int, ...]

    def init(self):
        return ()

    def advance(self, state, token):
        return state

    def allowed(self, state):
        return jnp.isin(jnp.arange(V), jnp.array(self.tokens))


def test_a_mask_needs_no_state():
    result = sx.generate(
        TARGET, [1], token_mask=Only((5, 6)), drafter=sx.NGram(3), temperature=1.0, seed=0
    )
    assert set(result.tokens.tolist()) == {5, 6}


class PythonsNumbers(Rising):
    def init(self):
        return 0


def test_a_state_of_a_mask_may_begin_as_a_number():
    kwargs = {"token_mask": PythonsNumbers(), "temperature": 1.0, "seed": 0, "max_new_tokens": 9}
    sx.generate(TARGET, [1], **kwargs)
    with counted_compilations() as compiled:
        sx.generate(TARGET, [1], **kwargs)
    assert compiled == []


def test_a_mask_that_allows_nothing_is_an_error_of_its_request():
    closed = Automaton(jnp.full((1, V), -1, jnp.int32))
    masks = [None, closed]
    good, bad = sx.generate(TARGET, [[1], [2]], token_mask=masks, max_new_tokens=4)
    assert (good.stop_reason, bad.stop_reason) == ("length", "error")


def test_what_ends_a_text_is_not_shown_to_the_mask():
    """Past its end a grammar has no state; here it would turn into one that forbids all."""
    table = np.full((2, V), 0)
    table[0, 7] = 1  # leads astray
    table[1] = -1
    mask = Automaton(jnp.asarray(table, jnp.int32))
    only = dict.fromkeys(range(V), -50.0) | {7: 50.0}
    result = sx.generate(
        TARGET, [7, 7, 7, 7], drafter=sx.NGram(3), token_mask=mask, logit_bias=only, stop_ids=[7]
    )
    assert (result.tokens.tolist(), result.stop_reason) == ([7], "stop")


class Gap(sx.DraftModel):
    """Its second token is none."""

    def propose(self, state, round):
        draft, state = super().propose(state, round)
        return draft._replace(tokens=draft.tokens.at[:, 1].set(-1)), state


jax.tree_util.register_dataclass(Gap, ["model", "ids"], ["draft_length", "unknown"])


@pytest.mark.parametrize("verify", ["token", pytest.param("coupled", marks=pytest.mark.slow)])
def test_an_invalid_draft_takes_no_mask_away(verify):
    settings = NEUTRAL | REQUESTS["a mask"]
    result = sx.generate(
        TARGET, PROMPT, drafter=Gap(NEAR, 3), verify=verify, seed=0, max_new_tokens=NUM_NEW,
        log_probs=2, **settings,
    )  # fmt: skip
    assert_drawn_by_the_law(result, settings)
    assert result.stats.accepted_by_position[0] > 0
    assert result.stats.accepted_by_position[1] == 0


def test_settings_that_do_not_exist_are_refused_by_name():
    with pytest.raises(TypeError, match=r"'top_a' is no setting .* did you mean top_p"):
        sx.generate(TARGET, [1], top_a=0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": -1}, r"top_k .*at least 0.*-1"),
        ({"top_k": 2.5}, r"top_k .*integer.*2.5"),
        ({"top_p": 0.0}, r"top_p .*above 0.*0.0"),
        ({"top_p": 1.1}, r"top_p .*at most 1.*1.1"),
        ({"min_p": np.nan}, r"min_p .*nan"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty .*above 0.*0.0"),
        ({"presence_penalty": np.inf}, r"presence_penalty .*inf"),
        ({"order": "backwards"}, r"order .*joint.*backwards"),
        ({"logit_bias": {V: 1.0}}, rf"logit_bias .*0 to {V - 1}.*{V}"),
        ({"logit_bias": {1: np.inf}}, r"logit_bias .*finite.*inf.*token 1"),
        ({"logit_bias": {1: 1e39}}, r"logit_bias .*from -1e30 to 1e30.*1e\+39.*token 1"),
        ({"logit_bias": [1.0]}, r"logit_bias .*map"),
        ({"token_mask": Rising}, r"token_mask .*init, advance, allowed"),
        ({"stop": "x"}, r"stop .*no tokenizer.*stop_ids"),
        ({"stop": ""}, r"stop .*none empty"),
        ({"stop_ids": 3}, r"stop_ids .*list.*3"),
        ({"slots": 0}, r"slots .*from 1.*0"),
        ({"step_width": 0}, r"step_width .*from 1.*0"),
        ({"max_length": 4}, r"max_length .*129.*4"),
        ({"log_probs": V + 1}, rf"log_probs .*{V}.*{V + 1}"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        sx.generate(TARGET, [1], **settings)
    assert str(caught.value).endswith(".")
