"""Tokens handed out as they are made: each once, in order, as in the result.

Faults seen in public: only the last token of a run handed out, or its tail dropped.
"""

import gc
import sys

import jax
import numpy as np
import pytest

import speculax as sx
from tests import toy

MEMORY = toy.LongMemory()
LOGITS = toy.random_logits(MEMORY)
LOGITS[:, 0] += 3.0
KWARGS = {"drafter": sx.NGram(3), "max_new_tokens": [30, 7, 50], "eos_ids": (6,)}
PROMPTS = [[1, 2, 1, 2], [3], [5, 4]]


def stream(**kwargs):
    return sx.stream(toy.model(MEMORY, LOGITS), PROMPTS, **KWARGS | kwargs)


def test_chunks_join_to_the_results():
    running = stream(temperature=1.0, seed=[1, 2, 3])
    joined = [([], []) for _ in PROMPTS]
    for chunk in running:
        requests = [new.request for new in chunk]
        assert requests == sorted(set(requests))
        for new in chunk:
            assert len(new.tokens) == len(new.accepted) > 0
            assert all(type(token) is int for token in new.tokens)
            joined[new.request][0].extend(new.tokens)
            joined[new.request][1].extend(new.accepted)
    assert any(any(flags) for _, flags in joined)
    results = running.results()
    at_once = sx.generate(
        toy.model(MEMORY, LOGITS), PROMPTS, temperature=1.0, seed=[1, 2, 3], **KWARGS
    )
    for (tokens, flags), result, again in zip(joined, results, at_once, strict=True):
        assert tokens == result.tokens.tolist() == again.tokens.tolist()
        assert flags == result.accepted.tolist() == again.accepted.tolist()


def test_an_interrupted_stream_has_results_so_far():
    running = stream(temperature=1.0, seed=[1, 2, 3])
    for result in running.results():
        assert result.tokens.size == result.stats.emitted == 0
        assert result.stop_reason == "interrupted"
    first = next(iter(running))
    results = running.results()
    whole = sx.generate(
        toy.model(MEMORY, LOGITS), PROMPTS, temperature=1.0, seed=[1, 2, 3], **KWARGS
    )
    assert [new.request for new in first] == [0, 1, 2]
    for new, result, later in zip(first, results, whole, strict=True):
        size = len(new.tokens)
        assert result.tokens.tolist() == new.tokens == later.tokens[:size].tolist()
        assert result.stats.emitted == size
        is_whole = size == later.tokens.size
        assert result.stop_reason == (later.stop_reason if is_whole else "interrupted")
    assert "interrupted" in {result.stop_reason for result in results}


def test_a_stream_broken_off_can_be_resumed():
    running = stream(temperature=1.0, seed=[1, 2, 3])
    for _ in running:
        break
    for _ in running:
        pass
    assert list(running) == []
    whole = stream(temperature=1.0, seed=[1, 2, 3])
    for _ in whole:
        pass
    for result, other in zip(running.results(), whole.results(), strict=True):
        np.testing.assert_array_equal(result.tokens, other.tokens)
        assert result.stats.steps == other.stats.steps


def test_nothing_runs_for_no_tokens(monkeypatch):
    monkeypatch.setattr(sys.modules["speculax.scheduler"], "prefill", None)
    for result in sx.generate(toy.model(MEMORY, LOGITS), PROMPTS, max_new_tokens=0):
        assert result.tokens.size == 0
        assert result.stop_reason == "length"


def test_nothing_runs_before_the_stream_is_iterated(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("work was done")

    module = sys.modules["speculax.scheduler"]
    monkeypatch.setattr(module, "prefill", fail)
    running = stream()
    with pytest.raises(AssertionError, match="work was done"):
        next(iter(running))


def test_times_are_those_of_the_request():
    running = stream(temperature=1.0, seed=[1, 2, 3])
    for _ in running:
        pass
    for result in running.results():
        stats = result.stats
        assert 0 < stats.prefill_seconds < stats.time_to_first_token
        assert stats.time_to_first_token <= stats.prefill_seconds + stats.decode_seconds
        assert 0 <= stats.host_seconds <= stats.decode_seconds
        assert stats.compile_seconds >= 0
        assert stats.tokens_per_second == stats.emitted / stats.decode_seconds
        assert np.isfinite(stats.block_efficiency)
    short, long = running.results()[1:]
    assert short.stats.decode_seconds < long.stats.decode_seconds


def test_an_abandoned_stream_lets_go_of_its_cache():
    """At once, not when Python next looks for cycles."""
    gc.collect()
    gc.disable()
    try:
        running = stream()
        next(iter(running))
        before = sum(array.nbytes for array in jax.live_arrays())
        del running
        assert sum(array.nbytes for array in jax.live_arrays()) < before
    finally:
        gc.enable()
