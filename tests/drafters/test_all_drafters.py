"""What holds of every drafter: it says what law it draws from, and minds its own row and limits.

Faults seen in public: drafts judged by a law without the temperature they were drawn at; caches
that keep refused tokens, or lack the last accepted one; drafts that depend on the neighbours.
"""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import speculax as sx
from speculax.opaque import as_pytree, from_pytree
from tests import toy
from tests.drafters.zoo import DRAFTERS, IDS, NETWORK, OTHER, OTHER_TABLE, TABLES, TARGET, V
from tests.slow import slow_but

FALSE_ALARM = 1e-6
SLOTS = 64
TEXTS = [[3], [1, 2, 3, 1, 2], [5, 0], [0, 0, 0, 0], [4, 5, 5, 4, 1, 0, 2]]
EVERY = pytest.mark.parametrize("name", DRAFTERS)
QUICK = ("n-gram", "draft model", "recurrent head", "first match")
IN_THE_LOOP = pytest.mark.parametrize("name", slow_but(QUICK, DRAFTERS))
SAMPLING = pytest.mark.parametrize(
    "name", [name for name, specimen in DRAFTERS.items() if specimen.logits]
)


@functools.partial(jax.jit, static_argnames=("length", "needs_laws"))
def _propose(drafter, tokens, lengths, length, temperature, uniforms, seeds, needs_laws):
    cache = NETWORK.init_cache(tokens.shape[0], SLOTS)
    positions = jnp.broadcast_to(jnp.arange(SLOTS), tokens.shape)
    hidden, cache = NETWORK.score(TARGET.params, tokens, positions, cache)
    hidden = jax.vmap(lambda row, length: jnp.where(length > 1, row[length - 2], 0))(
        hidden, lengths
    )
    target = sx.Target(NETWORK, TARGET.params, NETWORK.keep(cache, lengths - 1), hidden)
    round = toy.round_of(
        tokens,
        lengths,
        length,
        target,
        temperature=temperature,
        uniforms=uniforms,
        seeds=seeds,
        needs_laws=needs_laws,
    )
    drafter = from_pytree(drafter)
    return drafter.propose(drafter.init(tokens, lengths), round)[0]


def propose(name, texts, length=3, temperature=None, seed=0, seeds=None, needs_laws=True):
    """The draft for a batch of texts, with its laws as probabilities (B, G, V) or None."""
    tokens = np.full((len(texts), SLOTS), 3, np.int32)  # junk behind the texts
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
    if temperature is not None:
        temperature = jnp.broadcast_to(jnp.float32(temperature), lengths.shape)
    uniforms = jax.random.uniform(jax.random.key(seed), (len(texts), length))
    drafter = as_pytree(DRAFTERS[name].make(length))
    draft = _propose(
        drafter, jnp.asarray(tokens), lengths, length, temperature, uniforms, seeds, needs_laws
    )
    probs = draft.probs
    if isinstance(probs, sx.Law):
        probs = sx.laws.expand(probs, V)
    return np.asarray(draft.tokens), np.asarray(draft.lengths), probs


def expected_law(name, text, drafted, temperature):
    return toy.softmax(DRAFTERS[name].logits(text, list(drafted)) / temperature)


@SAMPLING
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_laws_handed_over_are_those_of_the_model_at_the_temperature(name, temperature):
    tokens, lengths, probs = propose(name, TEXTS, temperature=temperature)
    assert lengths.tolist() == [3] * len(TEXTS)
    for text, draft, laws in zip(TEXTS, tokens, probs, strict=True):
        for i, law in enumerate(laws):
            expected = expected_law(name, text, draft[:i], temperature)
            np.testing.assert_allclose(law, expected, atol=2e-5)
            assert law[draft[i]] > 0


@SAMPLING
def test_drafts_follow_the_laws_handed_over(name):
    text, temperature, num = TEXTS[1], 0.8, 4_000
    tokens, _, _ = propose(name, [text] * num, length=2, temperature=temperature, seed=7)
    first = expected_law(name, text, [], temperature)
    pairs = list(itertools.product(range(V), repeat=2))
    expected = np.array(
        [first[x] * expected_law(name, text, [x], temperature)[y] for x, y in pairs]
    )
    counts = np.array([np.sum((tokens == pair).all(axis=1)) for pair in pairs])
    assert counts[expected == 0].sum() == 0
    rare = expected * num < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum()) * num
    counts, expected = counts[expected > 0], expected[expected > 0]
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, len(expected) - 1)


@SAMPLING
def test_greedy_drafts_are_the_likeliest_tokens(name):
    tokens, _, probs = propose(name, TEXTS)
    assert probs is None
    for text, draft in zip(TEXTS, tokens, strict=True):
        for i in range(3):
            assert draft[i] == np.argmax(DRAFTERS[name].logits(text, list(draft[:i])))


@SAMPLING
def test_a_greedy_row_among_sampled_ones_is_a_point_mass_on_the_likeliest(name):
    tokens, _, probs = propose(name, TEXTS[:2], temperature=np.float32([0.0, 1.0]))
    for i in range(3):
        likeliest = np.argmax(DRAFTERS[name].logits(TEXTS[0], list(tokens[0, :i])))
        assert tokens[0, i] == likeliest
        np.testing.assert_array_equal(probs[0, i], np.eye(V)[likeliest])


@SAMPLING
def test_laws_that_nobody_reads_are_not_handed_over(name):
    """And the tokens are the same."""
    with_laws, _, probs = propose(name, TEXTS, temperature=1.0)
    without, _, nothing = propose(name, TEXTS, temperature=1.0, needs_laws=False)
    assert probs is not None
    assert nothing is None
    np.testing.assert_array_equal(with_laws, without)


@SAMPLING
def test_coupled_drafts_are_coupled_draws(name):
    seeds = jnp.arange(5, dtype=jnp.uint32)
    tokens, _, probs = propose(name, TEXTS, temperature=1.0, seeds=seeds, needs_laws=False)
    assert probs is None
    for text, draft, seed in zip(TEXTS, tokens, seeds, strict=True):
        for i in range(3):
            law = expected_law(name, text, draft[:i], 1.0).astype(np.float32)
            assert draft[i] == sx.coupled_draw(law, seed, len(text) + i)


@EVERY
def test_a_row_in_a_batch_is_as_alone(name):
    together = propose(name, TEXTS, temperature=1.0)
    for order in ([4, 2, 0, 1, 3], [1, 1, 1, 0, 1]):
        seeds = np.asarray(jax.random.uniform(jax.random.key(0), (5, 3)))
        tokens = np.full((5, SLOTS), 3, np.int32)
        for row, i in zip(tokens, order, strict=True):
            row[: len(TEXTS[i])] = TEXTS[i]
        draft = _propose(
            DRAFTERS[name].make(3),
            jnp.asarray(tokens),
            jnp.asarray([len(TEXTS[i]) for i in order], jnp.int32),
            3,
            jnp.ones(5),
            jnp.asarray(seeds[order]),
            None,
            True,
        )
        np.testing.assert_array_equal(draft.tokens, together[0][order])
        np.testing.assert_array_equal(draft.lengths, together[1][order])


@EVERY
def test_the_last_token_of_the_vocabulary_can_be_proposed(name):
    texts = [[token, 5, token, 5, token] for token in range(V)] * 20
    tokens, lengths, _ = propose(name, texts, temperature=2.0, seed=3)
    shown = np.concatenate([row[:length] for row, length in zip(tokens, lengths, strict=True)])
    assert shown.min() >= 0
    assert shown.max() == V - 1


# --- In the loop


def greedy(prompt, num_new):
    return toy.greedy_text(NETWORK, TABLES[1], prompt, num_new)


@IN_THE_LOOP
@pytest.mark.parametrize("length", slow_but([4], [1, 4]))
def test_greedy_texts_are_those_of_plain_decoding(name, length):
    results = sx.generate(
        TARGET, TEXTS, drafter=DRAFTERS[name].make(length), max_new_tokens=[30, 1, 17, 2, 25]
    )
    for text, cap, result in zip(TEXTS, [30, 1, 17, 2, 25], results, strict=True):
        assert result.tokens.tolist() == greedy(text, cap)


@IN_THE_LOOP
def test_texts_go_to_the_very_end_of_the_context(name):
    target = sx.Model(NETWORK.__class__(vocab_size=V, modulus=31, context_length=40), TARGET.params)
    for prompt in ([2], [1, 2] * 19 + [4], [1] * 40):
        room = 40 - len(prompt)
        result = sx.generate(target, prompt, drafter=DRAFTERS[name].make(4), max_new_tokens=room)
        assert result.tokens.tolist() == greedy(prompt, room)


@EVERY
def test_a_prompt_needs_a_token(name):
    with pytest.raises(ValueError, match="at least one"):
        sx.generate(TARGET, [[]], drafter=DRAFTERS[name].make(3))


@IN_THE_LOOP
@pytest.mark.parametrize("verify", slow_but(["coupled"], ["coupled", "sampled"]))
def test_the_text_is_a_function_of_the_seed(verify, name):
    """Whatever the drafter, and the draft length."""
    settings = {"max_new_tokens": 24, "temperature": 0.8, "seed": [25, 6, 22, 23, 14]}
    plain = sx.generate(TARGET, TEXTS, verify=verify, **settings)
    for length in (2, 7):
        results = sx.generate(
            TARGET, TEXTS, drafter=DRAFTERS[name].make(length), verify=verify, **settings
        )
        for result, other in zip(results, plain, strict=True):
            np.testing.assert_array_equal(result.tokens, other.tokens)
        assert sum(result.stats.accepted for result in results) > 0
    assert len({tuple(result.tokens) for result in plain}) == len(TEXTS)


@pytest.mark.parametrize("verify", slow_but(["token", "block"], ["token", "block", "coupled"]))
@pytest.mark.parametrize("length", slow_but([3], [1, 3]))
def test_a_draft_model_that_is_the_target_is_always_right(verify, length):
    """So it reads every token once: also the last of a draft that was accepted in full."""
    results = sx.generate(
        toy.model(OTHER, OTHER_TABLE),
        TEXTS,
        drafter=sx.DraftModel(toy.model(OTHER, OTHER_TABLE), length),
        verify=verify,
        max_new_tokens=48,
        temperature=[1.0, 0.7, 2.0, 0.0, 1.0],
        seed=range(5),
    )
    for result in results:
        assert result.stats.acceptance_rate == 1
        assert result.stats.steps == 48 // (length + 1)


def test_an_early_exit_after_the_last_layer_is_always_right():
    result = sx.generate(
        TARGET, [1], drafter=sx.EarlyExit(2, 3), max_new_tokens=40, temperature=1.0, seed=0
    )
    assert result.stats.acceptance_rate == 1


def test_a_draft_model_is_silent_past_its_own_context():
    network = toy.LongMemory(vocab_size=V, modulus=23, context_length=20)
    result = sx.generate(
        toy.model(OTHER, OTHER_TABLE),
        [1, 2, 3, 4],
        drafter=sx.DraftModel(toy.model(network, OTHER_TABLE), 3),
        max_new_tokens=40,
    )
    # It says what follows on all of its 20 positions, and no more.
    assert result.accepted[:17].sum() > 10
    assert not result.accepted[17:].any()
    assert result.tokens.tolist() == toy.greedy_text(OTHER, OTHER_TABLE, [1, 2, 3, 4], 40)


def test_the_second_drafter_catches_up_after_turns_of_the_first():
    """Turns in which it was not asked, long ones too, leave it as right as ever."""
    text = toy.greedy_text(OTHER, OTHER_TABLE, [1], 200)
    script = [1, *text]
    silent = toy.Scripted((tuple(script[:150]),), 3)  # has nothing to say after that
    result = sx.generate(
        toy.model(OTHER, OTHER_TABLE),
        [1],
        drafter=sx.FirstMatch(silent, sx.DraftModel(toy.model(OTHER, OTHER_TABLE), 3)),
        max_new_tokens=200,
    )
    assert result.tokens.tolist() == text
    assert result.stats.acceptance_rate == 1


# --- What does not go together


def test_different_vocabularies_are_named():
    small = sx.Model(toy.Markov(vocab_size=5), jnp.zeros((5, 5)), name="small")
    with pytest.raises(ValueError, match=r"draft model small \(5 tokens\) .* target \(6 tokens\)"):
        sx.generate(TARGET, [1], drafter=sx.DraftModel(small))


def test_bad_maps_are_refused():
    model = toy.model(OTHER, OTHER_TABLE)
    for ids, message in [
        ([0, 1], r"shape \(6,\)"),
        (np.zeros(6), "integers"),
        ([0, 0, 1, 2, 3, 4], "at most once"),
    ]:
        with pytest.raises(ValueError, match=message):
            sx.generate(TARGET, [1], drafter=sx.DraftModel(model, ids=ids))
    with pytest.raises(ValueError, match="from 0 to 5, or -1 for none, got 6"):
        sx.generate(TARGET, [1], drafter=sx.DraftModel(model, ids=[6, 1, 2, 3, 4, 5]))
    for unknown in (None, 6, -1):
        drafter = sx.DraftModel(model, ids=[0, 1, 2, 3, 4, -1], unknown=unknown)
        with pytest.raises(ValueError, match=rf"unknown must .* \(1, such as 5\), got {unknown}"):
            sx.generate(TARGET, [1], drafter=drafter)


@pytest.mark.parametrize("ids", [[0, -1], [-1], [5, 6], [2, 2]])
def test_a_smaller_vocabulary_has_no_entries_that_are_no_tokens(ids):
    """An entry for no token would be given mass, and the output law would be another."""
    head = DRAFTERS["recurrent head"].make(2)
    for make in (
        lambda: sx.EarlyExit.with_vocabulary(TARGET, ids, 1),
        lambda: sx.RecurrentHead.create(TARGET, head.params, ids),
    ):
        with pytest.raises(
            ValueError, match=r"ids must (be tokens of target, from 0 to 5, got|name)"
        ):
            make()
    for drafter in (sx.EarlyExit(1, 2, head.head, ids), replace(head, ids=ids)):
        with pytest.raises(ValueError, match="ids must"):
            sx.generate(TARGET, [1], drafter=drafter)


def test_a_recurrent_head_is_read_as_it_was_written(tmp_path):
    head, path = DRAFTERS["recurrent head"].make(2), tmp_path / "head.safetensors"
    head.save(path)
    read = sx.RecurrentHead.load(path, TARGET, draft_length=2)
    one, other = jax.tree.flatten(head), jax.tree.flatten(read)
    assert one[1] == other[1]
    for a, b in zip(one[0], other[0], strict=True):
        np.testing.assert_array_equal(a, b)
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="must be a RecurrentHead written by save"):
        sx.RecurrentHead.load(path, TARGET)


def test_a_model_is_no_drafter():
    with pytest.raises(
        ValueError, match=r"got 'Model'; make one of the model, DraftModel\(model\)"
    ):
        sx.generate(TARGET, [1], drafter=TARGET)


def test_ids_may_be_a_list():
    model = toy.model(OTHER, OTHER_TABLE)
    texts = [
        sx.generate(TARGET, [1], drafter=sx.DraftModel(model, 2, ids, 0), max_new_tokens=9, seed=0)
        for ids in (IDS, IDS.tolist())
    ]
    np.testing.assert_array_equal(texts[0].tokens, texts[1].tokens)


@pytest.mark.parametrize("length", [0, -1, 513, 1.5, "3"])
def test_bad_draft_lengths_are_refused(length):
    for make in (lambda: sx.EarlyExit(1, length), lambda: sx.DraftModel(TARGET, length)):
        with pytest.raises(ValueError, match="draft_length must be an integer from 1 to 512"):
            make()


def test_a_draft_model_in_double_precision():
    """Positions are int32 all the same."""
    with jax.enable_x64(True):
        result = sx.generate(TARGET, [1, 2], drafter=DRAFTERS["draft model"].make(3))
    assert len(result.tokens) == 128


@pytest.mark.parametrize("num_layers", [0, 3])
def test_an_early_exit_needs_layers_that_there_are(num_layers):
    with pytest.raises(ValueError, match="from 1 to the 2 layers of target"):
        sx.generate(TARGET, [1], drafter=sx.EarlyExit(num_layers))
    with pytest.raises(ValueError, match="needs a network with first_layers"):
        sx.generate(toy.model(OTHER, OTHER_TABLE), [1], drafter=sx.EarlyExit(1))


def test_both_drafters_of_two_are_checked():
    with pytest.raises(ValueError, match="drafter must be None or a drafter"):
        sx.generate(TARGET, [1], drafter=sx.FirstMatch(sx.NGram(), sx.NGram))
    with pytest.raises(ValueError, match="layers of target"):
        sx.generate(TARGET, [1], drafter=sx.FirstMatch(sx.NGram(), sx.EarlyExit(7)))


def test_a_recurrent_head_is_for_hidden_states_of_its_width():
    head = DRAFTERS["recurrent head"].make(2)
    wider = sx.Model(toy.Layered(vocab_size=V, modulus=32), TARGET.params, name="wider")
    with pytest.raises(ValueError, match="trained for hidden states of width 31, those of wider"):
        sx.generate(wider, [1], drafter=head)
    with pytest.raises(ValueError, match="needs a network with embed"):
        sx.generate(toy.model(OTHER, OTHER_TABLE), [1], drafter=head)
