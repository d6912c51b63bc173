"""New values trace nothing anew: settings, seeds, positions, lengths and thresholds are data.

All rules go over rows, and ask JAX how that is done on which platform: when they are traced, not
when they run. The calls are those of a user, on arrays and numbers, made inside another function so
that nothing has to be compiled.
"""

import jax
import numpy as np
import pytest

import speculax as sx

BATCH, DRAFTS, VOCAB = 3, 2, 23
ALL = ("temperature", "top_k", "top_p", "min_p", "mask", "bias")


@pytest.fixture
def count_traces(monkeypatch):
    """`count_traces(function, ...)` calls a function, and says how much of a rule was traced."""
    ask, asked = jax.lax.platform_dependent, []

    def count(*args, **kwargs):
        asked.append(True)
        return ask(*args, **kwargs)

    def call(function, *args):
        asked.clear()
        jax.make_jaxpr(lambda: function(*args))()
        return len(asked)

    monkeypatch.setattr(jax.lax, "platform_dependent", count)
    return call


def settings(rng, names=("temperature", "mask")):
    """Each row its own, some of them neutral."""
    values = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 1.3], BATCH),
        "top_k": rng.integers(0, VOCAB, BATCH),
        "top_p": rng.choice([0.4, 0.9, 1.0], BATCH),
        "min_p": rng.choice([0.0, 0.1], BATCH),
        "mask": rng.random((BATCH, VOCAB)) < 0.8,
        "bias": normal(rng, BATCH, VOCAB),
    }
    return {name: value for name, value in values.items() if name in names}


def padded(rng):
    """The arguments of a chain rule."""
    return (
        rng.integers(-1, VOCAB, (BATCH, DRAFTS)),
        sx.law_from_logits(normal(rng, BATCH, DRAFTS, VOCAB), **settings(rng)),
        sx.law_from_logits(normal(rng, BATCH, DRAFTS + 1, VOCAB), **settings(rng)),
        uniform(rng, BATCH, DRAFTS),
        uniform(rng, BATCH),
    )


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def uniform(rng, *shape):
    return rng.random(shape, np.float32)


def lengths(rng):
    return rng.integers(0, DRAFTS + 1, BATCH)


def chain(rule, **thresholds):
    """`thresholds` say how one is drawn."""

    def call(rng):
        drawn = {name: float(draw(rng)) for name, draw in thresholds.items()}
        return rule(*padded(rng), draft_lengths=lengths(rng), **drawn)

    return call


def all_settings(rng):
    target = normal(rng, BATCH, DRAFTS + 1, VOCAB)
    ids, _, _, *uniforms = padded(rng)
    return sx.verify_token(ids, None, sx.law_from_logits(target, **settings(rng, ALL)), *uniforms)


def scalars(rng):
    """One number for all rows, and probabilities for the draft."""
    draft = rng.dirichlet(np.ones(VOCAB), (BATCH, DRAFTS)).astype(np.float32)
    target = sx.law_from_probs(
        rng.dirichlet(np.ones(VOCAB), (BATCH, DRAFTS + 1)).astype(np.float32),
        temperature=rng.uniform(0.2, 2),
        top_k=int(rng.integers(1, VOCAB)),
        top_p=rng.uniform(0.2, 1),
        min_p=rng.uniform(0, 0.2),
    )
    ids = rng.integers(0, VOCAB, (BATCH, DRAFTS))
    return sx.verify_token(ids, draft, target, uniform(rng, BATCH, DRAFTS), uniform(rng, BATCH))


def coupled(rng):
    ids, _, target, *_ = padded(rng)
    seeds, position = rng.integers(0, 2**32, BATCH, dtype=np.uint32), int(rng.integers(0, 10**6))
    return sx.verify_coupled(ids, target, seeds, position, draft_lengths=lengths(rng))


def top_k(rng):
    return sx.verify_lossy_top_k(*padded(rng), k=int(rng.integers(1, VOCAB)))


def synthetic(rng):
    return sx.verify_lossy_synthetic(*padded(rng), rates=uniform(rng, DRAFTS))


def ragged(rng):
    """The number of rows and of draft tokens stays; who has them does not."""
    drafts = rng.permutation([2, 0, 1])
    requests = np.repeat(np.arange(BATCH), drafts)
    of_requests = settings(rng)
    return sx.verify_ragged(
        rng.integers(0, VOCAB, 3),
        drafts,
        None,
        sx.law_from_logits(normal(rng, 3, VOCAB), rows=requests, **of_requests),
        sx.law_from_logits(normal(rng, BATCH, VOCAB), rows=np.arange(BATCH), **of_requests),
        uniform(rng, 3),
        uniform(rng, BATCH),
        max_draft_length=2,
    )


def supplied(rng):
    ids, draft, target, *uniforms = padded(rng)
    return sx.verify_token(ids, draft.normalize(), target, *uniforms)


CALLS = {
    "token": chain(sx.verify_token),
    "token, normalised drafts": supplied,
    "token, all settings": all_settings,
    "token, numbers": scalars,
    "block": chain(sx.verify_block),
    "greedy": chain(sx.verify_greedy),
    "sampled": chain(sx.verify_sampled),
    "typical": chain(
        sx.verify_lossy_typical,
        epsilon=lambda rng: rng.uniform(0.01, 1),
        delta=lambda rng: rng.uniform(0.01, 1),
    ),
    "thresholds": chain(
        sx.verify_lossy_thresholds,
        threshold_single=lambda rng: rng.uniform(0.1, 1),
        threshold_acc=lambda rng: rng.uniform(0.1, 1),
    ),
    "top-k": top_k,
    "synthetic": synthetic,
    "coupled": coupled,
    "ragged": ragged,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_new_values_trace_nothing(call, count_traces):
    assert count_traces(call, np.random.default_rng(1)) > 0
    for seed in (2, 3, 4):
        assert count_traces(call, np.random.default_rng(seed)) == 0


def test_traces_are_seen(count_traces):
    """The longest draft is a part of the program."""
    rng = np.random.default_rng(1)

    def call(max_draft_length):
        ids, law, uniforms = rng.integers(0, 5, 4), normal(rng, 4, 5), uniform(rng, 4)
        return sx.verify_ragged(
            ids,
            np.ones(4, int),
            None,
            law,
            law,
            uniforms,
            uniforms,
            max_draft_length=max_draft_length,
        )

    assert [count_traces(call, length) > 0 for length in (1, 1, 2, 1)] == [True, False, True, False]
