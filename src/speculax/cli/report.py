"""What a generation came to, in a line for people or as JSON."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

import speculax as sx
from speculax.json_numbers import finite


def describe(result: sx.Generation, temperature: float) -> str:
    """One line: how much was made, how fast, and how much of it was drafted."""
    stats = result.stats
    parts = [f"{len(result.tokens)} tokens in {stats.steps} steps"]
    if stats.steps:
        parts += [
            f"{stats.tokens_per_second:.1f} tok/s",
            f"block efficiency {stats.block_efficiency:.2f}",
            f"acceptance rate {stats.acceptance_rate:.2f}" if stats.drafted else "no drafts",
            f"first token after {stats.time_to_first_token:.2f} s",
        ]
    if temperature > 0:
        parts.append(f"seed {result.seed}")
    if result.stop_reason == "interrupted":
        parts.append("interrupted")
    return ", ".join(parts)


def _speedup(result: sx.Generation, plain: sx.Generation) -> float:
    rate, plain_rate = result.stats.tokens_per_second, plain.stats.tokens_per_second
    return rate / plain_rate if plain_rate else math.nan


def describe_comparison(
    result: sx.Generation, plain: sx.Generation, temperature: float, verify: str
) -> str:
    """One line: what plain decoding made, and the speedup over it."""
    if not len(plain.tokens):
        return "without speculation: nothing either, so there is nothing to compare"
    if np.array_equal(result.tokens, plain.tokens):
        same = "same text"
    elif verify.startswith("lossy"):
        same = "another text, as a lossy rule may"
    elif temperature > 0:
        same = "another text, as sampling may: the law is the same"
    else:
        same = "NOT the same text"
    return (
        f"without speculation: {len(plain.tokens)} tokens, "
        f"{plain.stats.tokens_per_second:.1f} tok/s, {same}; "
        f"speedup {_speedup(result, plain):.2f}x (tokens per second of decoding on "
        f"{jax.default_backend()}, one request, both warm)"
    )


def as_json(
    result: sx.Generation, plain: sx.Generation | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """All that is known of a generation, and of plain decoding if it was run too."""
    shown = {
        "text": result.text,
        "tokens": result.tokens.tolist(),
        "accepted": result.accepted.tolist(),
        "stop_reason": result.stop_reason,
        "seed": result.seed,
        "log_probs": _log_probs_as_json(result.log_probs),
        "stats": _stats_as_json(result.stats),
        "settings": settings,
    }
    if plain is not None:
        shown["comparison"] = {
            "speedup": finite(_speedup(result, plain)),
            "same_text": np.array_equal(result.tokens, plain.tokens),
            "compared": "tokens per second of decoding; one request, both runs warm",
            "stats": _stats_as_json(plain.stats),
        }
    return shown


def _log_probs_as_json(log_probs: sx.TokenLogProbs | None) -> dict[str, Any] | None:
    if log_probs is None:
        return None
    shown = {name: part.tolist() for name, part in log_probs._asdict().items()}
    for name in ("model", "sampled"):  # -inf where the law leaves a token out
        shown[name] = finite(shown[name])
    return shown


def _stats_as_json(stats: sx.Stats) -> dict[str, Any]:
    rates = ("acceptance_rate", "block_efficiency", "tokens_per_second", "acceptance_by_position")
    shown = dataclasses.asdict(stats) | {name: getattr(stats, name) for name in rates}
    return {name: finite(value) for name, value in shown.items()}
