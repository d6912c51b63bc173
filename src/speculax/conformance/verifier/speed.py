"""How long a verifier takes, beside the textbook form and this library's."""

import random
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import speculax as sx
from speculax.conformance.candidate import Candidate
from speculax.conformance.explain import explain
from speculax.conformance.report import Level, Outcome
from speculax.conformance.verifier import textbook
from speculax.conformance.verifier.rules import Rule

SIZES = [(1, 4, 32_000), (8, 4, 151_936), (4, 8, 262_144)]  # (B, G, V)
ROUNDS, MOST_SECONDS = 15, 6.0
OURS: dict[str, Callable[..., Any]] = {
    "token": sx.verify_token,
    "block": sx.verify_block,
    "greedy": sx.verify_greedy,
    "sampled": sx.verify_sampled,
}


def check_speed(candidate: Candidate, rule: Rule, level: Level) -> Outcome:
    """Median times in one interleaved run; nothing is demanded."""
    del level
    notes, failures = [], []
    forms: dict[str, Callable[..., Any]] = {candidate.name: candidate.callable}
    forms["textbook form"] = jax.jit(
        textbook.verify_block if rule.name == "block" else textbook.verify_token
    )
    if rule.name in OURS:
        forms["speculax"] = OURS[rule.name]
    for batch, drafts, vocab in SIZES:
        arguments = _arguments(batch, drafts, vocab)
        ready = {
            name: tuple(
                map(candidate.convert if name == candidate.name else jax.numpy.asarray, arguments)
            )
            for name in forms
        }
        try:
            seconds = _measure(forms, ready)
        except Exception as error:
            failures.append(explain(candidate, error, f"B = {batch}, G = {drafts}, V = {vocab}"))
            continue
        times = ", ".join(f"{name} {1e3 * s:.2f} ms" for name, s in seconds.items())
        own = seconds[candidate.name]
        ratios = ", ".join(
            f"{s / own:.2g} times as fast as the {name}" if name == "textbook form" else
            f"{s / own:.2g} times as fast as {name}"
            for name, s in seconds.items()
            if name != candidate.name
        )  # fmt: skip
        notes.append(f"B = {batch}, G = {drafts}, V = {vocab}: {times}; {ratios}")
    notes.append(f"medians of {ROUNDS} calls on {jax.default_backend()}, arrays already there")
    return Outcome(len(SIZES), failures, notes)


def _arguments(batch: int, drafts: int, vocab: int) -> tuple[np.ndarray, ...]:
    """Rows of which about 0.7 of the drafts are kept."""
    rng = np.random.default_rng([batch, drafts, vocab])
    target = rng.dirichlet(np.full(64, 0.5), (batch, drafts + 1)).astype(np.float32)
    target = np.concatenate(
        [0.95 * target, rng.random((batch, drafts + 1, vocab - 64), np.float32) * (0.1 / vocab)], 2
    )
    target /= target.sum(axis=2, keepdims=True)
    moved = np.roll(target[:, :drafts, :64], 1, axis=2)
    draft = target[:, :drafts].copy()
    draft[..., :64] = 0.6 * draft[..., :64] + 0.4 * moved
    below = draft[..., :64].cumsum(2) < 0.95 * rng.random((batch, drafts, 1), np.float32)
    ids = below.sum(2).clip(0, 63).astype(np.int32)
    return (
        ids,
        draft,
        target,
        rng.random((batch, drafts), np.float32),
        rng.random(batch, np.float32),
    )


def _measure(
    forms: dict[str, Callable[..., Any]], arguments: dict[str, tuple[Any, ...]]
) -> dict[str, float]:
    for name, form in forms.items():  # compile
        jax.block_until_ready(form(*arguments[name]))
    times: dict[str, list[float]] = {name: [] for name in forms}
    order = random.Random(0)
    for _ in range(ROUNDS):
        for name in order.sample(list(forms), len(forms)):
            if len(times[name]) >= 3 and sum(times[name]) > MOST_SECONDS:
                continue
            start = time.perf_counter()
            jax.block_until_ready(forms[name](*arguments[name]))
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(t)) for name, t in times.items()}
