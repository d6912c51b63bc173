"""Sampled generation keeps the target's law over several steps; a wrong loop would be noticed.

Many rows with the same prompt and seeds of their own; the texts they get are counted and compared
with their exact probabilities by a chi-square test whose false alarm rate is `FALSE_ALARM`. Seeds
are fixed: a test that passes goes on passing. The mutants are faults seen in public; each must fail
by far.
"""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import speculax as sx
from speculax import loop, rules
from speculax.verify import token as token_rule
from speculax.verify.step import Plan
from tests import toy

FALSE_ALARM = 1e-6
NUM_ROWS, NUM_NEW, EOS, START = 6_000, 4, 3, 0
TARGET = np.array(
    [[0.15, 0.45, 0.3, 0.1], [0.5, 0.1, 0.25, 0.15], [0.3, 0.4, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25]]
)
DRAFT = np.array(
    [[0.4, 0.1, 0.3, 0.2], [0.2, 0.3, 0.4, 0.1], [0.1, 0.6, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]]
)
SAMPLING = toy.sampling_drafter(DRAFT)
# A history in which every token was followed by another one, so that all drafts are n-grams.
HISTORY = [1, 2, 0, 2, 1, 0, 1, 1, 2, 2, START]


def texts(drafter, prompt, *, num_new=NUM_NEW, temperature=1.0, eos_ids=(EOS,)):
    """The new tokens of each row (NUM_ROWS, num_new), -1 where it had ended."""
    network = toy.Markov(vocab_size=4)
    results = sx.generate(
        toy.model(network, np.log(TARGET)),
        [prompt] * NUM_ROWS,
        drafter=drafter,
        max_new_tokens=num_new,
        temperature=temperature,
        seed=range(NUM_ROWS),
        slots=NUM_ROWS,
        eos_ids=eos_ids,
    )
    table = np.full((NUM_ROWS, num_new), -1)
    for row, result in zip(table, results, strict=True):
        row[: len(result.tokens)] = result.tokens
    return table, results


def surprise(table, law=TARGET):
    """How much larger than its limit the chi-square statistic is; above 1 is an alarm."""
    observed, expected = [], []
    pooled = np.zeros(2)
    for text in itertools.product(range(-1, 4), repeat=NUM_NEW):
        probability = probability_of(text, law)
        count = np.sum(np.all(table == text, axis=1))
        if probability * len(table) < 5:
            pooled += count, probability * len(table)
            continue
        observed.append(count)
        expected.append(probability * len(table))
    if pooled[1] > 0:
        observed.append(pooled[0])
        expected.append(pooled[1])
    else:
        assert pooled[0] == 0, "texts that cannot be"
    observed, expected = np.array(observed), np.array(expected)
    np.testing.assert_allclose(expected.sum(), len(table))
    statistic = np.sum((observed - expected) ** 2 / expected)
    return statistic / scipy.stats.chi2.isf(FALSE_ALARM, len(expected) - 1)


def probability_of(text, law):
    """The probability of a text that is padded with -1 once it has ended."""
    last, has_ended, probability = START, False, 1.0
    for token in text:
        if (token < 0) != has_ended:
            return 0.0
        if not has_ended:
            probability *= law[last, token]
            last, has_ended = token, token == EOS
    return probability


# --- The law holds


@pytest.mark.parametrize(
    ("drafter", "prompt"),
    [
        pytest.param(SAMPLING, [START], id="sampling"),
        pytest.param(sx.NGram(3), HISTORY, id="n-gram"),
        pytest.param(toy.Erratic(vocab_size=4), [START], id="erratic"),
        pytest.param(None, [START], id="none"),
    ],
)
def test_the_texts_follow_the_law_of_the_target(drafter, prompt):
    table, results = texts(drafter, prompt)
    assert surprise(table) < 1
    if drafter is not None:  # else nothing was tested
        assert 0.1 < np.mean([result.stats.acceptance_rate for result in results]) < 0.9
        assert np.sum([result.stats.steps == 1 for result in results]) > 50


def test_the_law_is_that_of_the_temperature():
    table, _ = texts(SAMPLING, [START], temperature=0.5)
    sharpened = TARGET**2 / np.sum(TARGET**2, axis=1, keepdims=True)
    assert surprise(table, sharpened) < 1
    assert surprise(table) > 2


@pytest.mark.parametrize(
    ("drafter", "prompt"), [(SAMPLING, [START]), (sx.NGram(3), HISTORY)], ids=["sampling", "n-gram"]
)
def test_the_law_holds_after_draft_lengths_adapted(drafter, prompt):
    """Rows draft or do not, as their drafts fared: the length is chosen by the past alone."""
    table, results = texts(drafter, prompt, num_new=20, eos_ids=())
    drafted = [result.stats.drafted for result in results]
    assert len(set(drafted)) > 5
    for start in (7, 16):
        # Given the token before, the four that follow have a known law.
        last = table[:, start - 1] == START
        piece = cut_at_eos(table[last, start : start + NUM_NEW])
        assert len(piece) > 1000
        assert surprise(piece) < 1


def cut_at_eos(table):
    ended = np.cumsum(table == EOS, axis=1) - (table == EOS) > 0
    return np.where(ended, -1, table)


# --- Mutants


def reuse_proposal_noise(monkeypatch):
    """The noise that chose a token also judges it."""
    monkeypatch.setattr(loop, "ACCEPTANCE", loop.PROPOSAL)


def reuse_acceptance_noise(monkeypatch):
    """The number by which a token was refused also draws the one in its place."""
    draw = token_rule.draw_verdict

    def draw_with_it(step, plan, target, draft):
        place = jnp.minimum(plan.num_accepted, step.tokens.shape[1] - 1)[:, None]
        number = jnp.take_along_axis(step.accept_uniforms, place, axis=1)[:, 0]
        return draw(step._replace(sample_uniforms=number), plan, target, draft)

    monkeypatch.setattr(token_rule, "draw_verdict", draw_with_it)


def repeat_noise_each_step(monkeypatch):
    """Two steps use the same numbers."""
    make = loop._uniforms
    monkeypatch.setattr(loop, "_uniforms", lambda seeds, lengths, *a: make(seeds, 0 * lengths, *a))


def key_by_position_alone(monkeypatch):
    """A number belongs to a position, whatever it is for, and is used twice."""
    make = loop._uniforms

    def by_position(seeds, lengths, stream, count):
        columns = [make(seeds, lengths + i, loop.PROPOSAL, 1) for i in range(count)]
        return jnp.concatenate(columns, axis=1)

    monkeypatch.setattr(loop, "_uniforms", by_position)


def share_noise_among_rows(monkeypatch):
    """One seed for all: the rows get the same text."""
    make = loop._uniforms
    monkeypatch.setattr(loop, "_uniforms", lambda seeds, *a: make(0 * seeds, *a))


def shift_draft_laws(monkeypatch):
    """Draft token i is judged by the law of draft token i + 1."""
    judge = rules.token_verdict

    def shifted(step, target, draft):
        return judge(step, target, draft._replace(rows=jnp.roll(draft.rows, -1, axis=1)))

    monkeypatch.setattr(rules, "token_verdict", shifted)


def correct_from_the_target(monkeypatch):
    """The token in place of a refused one is drawn from the target, not from the residual."""
    judge = token_rule.plan_token

    def plan(step, *read):
        plan = judge(step, *read)
        return plan._replace(subtract_draft=jnp.zeros_like(plan.subtract_draft))

    monkeypatch.setattr(token_rule, "plan_token", plan)


def never_draw_a_bonus(monkeypatch):
    """When all drafts are accepted the last one is drawn anew, for want of a token after it."""
    judge = token_rule.plan_token

    def plan(step, *read):
        plan = judge(step, *read)
        last = jnp.maximum(step.lengths - 1, 0)
        return Plan(jnp.minimum(plan.num_accepted, last), plan.subtract_draft)

    monkeypatch.setattr(token_rule, "plan_token", plan)


def accept_first_unseen(monkeypatch):
    """The first draft token of a step is never judged."""
    judge = rules.token_verdict

    def unseen(step, target, draft):
        sure = step.accept_uniforms.at[:, 0].set(0.0)
        return judge(step._replace(accept_uniforms=sure), target, draft)

    monkeypatch.setattr(rules, "token_verdict", unseen)


@pytest.fixture
def fresh_chunk(monkeypatch):
    """A loop that is traced anew, mutations included, and leaves nothing behind."""

    def chunk(*args, **kwargs):
        return loop.decode_chunk.__wrapped__(*args, **kwargs)

    static = ("network", "plan")
    module = importlib.import_module("speculax.scheduler")
    monkeypatch.setattr(module, "decode_chunk", jax.jit(chunk, static_argnames=static))


@pytest.mark.usefixtures("fresh_chunk")
@pytest.mark.parametrize(
    "mutate",
    [
        reuse_proposal_noise,
        pytest.param(reuse_acceptance_noise, marks=pytest.mark.slow),
        repeat_noise_each_step,
        pytest.param(key_by_position_alone, marks=pytest.mark.slow),
        pytest.param(share_noise_among_rows, marks=pytest.mark.slow),
        shift_draft_laws,
        correct_from_the_target,
        pytest.param(never_draw_a_bonus, marks=pytest.mark.slow),
        pytest.param(accept_first_unseen, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_loop_is_noticed_with_sampled_drafts(mutate, monkeypatch):
    mutate(monkeypatch)
    table, _ = texts(SAMPLING, [START])
    assert surprise(table) > 2


@pytest.mark.usefixtures("fresh_chunk")
@pytest.mark.parametrize(
    "mutate",
    [repeat_noise_each_step, correct_from_the_target, accept_first_unseen],
)
def test_a_wrong_loop_is_noticed_with_copied_drafts(mutate, monkeypatch):
    mutate(monkeypatch)
    table, _ = texts(sx.NGram(3), HISTORY)
    assert surprise(table) > 2
