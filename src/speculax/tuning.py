"""What drafting costs and brings on this machine: measured, predicted, and kept for later runs."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from speculax.draft_length import StepCosts, draft_widths
from speculax.drafting import Drafter
from speculax.generation import generate
from speculax.models.load import cache_directory
from speculax.models.model import Model
from speculax.request import Prompt
from speculax.stats import Stats


@dataclass(frozen=True)
class Tuning:
    """What was found, by draft length.

    Attributes:
        costs: The time of a step with so many draft tokens.
        acceptance: How often a draft token holds if those before it did, by place in the draft; NaN
            where none was tested.
        predicted: Speed over plain decoding from costs, and from the tokens that the longest drafts
            kept at each place (Leviathan, Kalman, Matias, arXiv:2211.17192, theorem 3.8); of each
            of the widths.
        measured: The same, measured: tokens per second over those of plain decoding.
    """

    costs: StepCosts
    acceptance: tuple[float, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]

    @property
    def best(self) -> int:
        """The draft length that was fastest."""
        return self.costs.widths[int(np.argmax(self.measured))]


def tune(
    model: Model,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    *,
    widths: Sequence[int] | None = None,
    verify: str = "token",
    temperature: float = 0.0,
    max_new_tokens: int = 64,
    repeats: int = 3,
    seed: int = 0,
    done: Callable[[int], object] = lambda width: None,
) -> Tuning:
    """Run prompts with fixed draft lengths, in random order, and see what each costs and brings.

    Args:
        model: The target.
        drafter: A dataclass with a `draft_length`, as those of this package are.
        prompts: What to run, one after another.
        widths: Draft lengths to try, 0 for none always among them. None for 0, 3, 7, 15, ... up to
            the drafter's own if it costs nothing, else for 0, 1, 2, ... up to that.
        verify: The rule that judges drafts.
        temperature: 0 for greedy.
        max_new_tokens: Of each text; it does not end before.
        repeats: How often.
        seed: Of the first run.
        done: Called with the draft length of each run that is over.

    Returns:
        Costs, acceptance and speeds; `save_costs` keeps the costs, for `load_costs` in another
        process, and `generate(costs=...)` adapts by them.

    Raises:
        ValueError: If there are no prompts, no tokens or no repeats, or the drafter's length cannot
            be set.
    """
    if len(prompts) == 0:
        raise ValueError("tune needs at least one prompt, got none; give some of the kind you run.")
    if not is_dataclass(drafter) or "draft_length" not in [one.name for one in fields(drafter)]:
        raise ValueError(
            f"tune sets the draft_length of a dataclass, and {type(drafter).__name__} is none that "
            "has one; tune a drafter that does."
        )
    check_counts(max_new_tokens=max_new_tokens, repeats=repeats)
    longest = drafter.draft_length
    if widths is None:
        is_free = not getattr(drafter, "always_drafts", False)
        widths = draft_widths(longest) if is_free else range(longest + 1)
    widths = tuple(sorted({0, *widths}))
    ways: dict[int, Drafter | None] = {
        width: replace(drafter, draft_length=width) if width else None for width in widths
    }
    runs: dict[int, list[list[Stats]]] = {width: [[] for _ in range(repeats)] for width in widths}
    for repeat in range(-1, repeats):  # the first compiles
        for i, prompt in enumerate(prompts if repeat >= 0 else prompts[:1]):
            number = repeat * len(prompts) + i
            for width in random.Random(number).sample(widths, len(widths)):
                result: Any = generate(
                    model,
                    prompt,
                    drafter=ways[width],
                    adaptive=False,
                    verify=verify,
                    temperature=temperature,
                    max_new_tokens=max_new_tokens,
                    seed=seed + max(number, 0),
                    eos_ids=(),
                )
                if repeat >= 0:
                    runs[width][repeat].append(result.stats)
                    done(width)

    def median(per: str, width: int) -> float:
        """The time of a step or a token: prompts added up, the median of the repeats."""
        return float(
            np.median(
                [
                    sum(stats.decode_seconds for stats in some) / sum(getattr(x, per) for x in some)
                    for some in runs[width]
                ]
            )
        )

    costs = StepCosts(widths, tuple(median("steps", width) for width in widths))
    longest_runs = [stats for some in runs[widths[-1]] for stats in some]
    steps, accepted, tested = (
        np.sum([getattr(stats, name) for stats in longest_runs], axis=0)
        for name in ("steps", "accepted_by_position", "tested_by_position")
    )
    expected = np.cumsum([1.0, *(accepted / steps)])  # tokens of a step, by draft length
    token_seconds = [median("emitted", width) for width in widths]
    return Tuning(
        costs=costs,
        acceptance=tuple(
            float(a) / t if t else float("nan") for a, t in zip(accepted, tested, strict=True)
        ),
        predicted=tuple(float(expected[width] / costs.of(width)) for width in widths),
        measured=tuple(token_seconds[0] / one for one in token_seconds),
    )


def check_counts(**counts: int) -> None:
    """Raise ValueError, by name, unless all are integers of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer, at least 1, got {value}.")


def save_costs(
    model: Model,
    drafter: Drafter,
    costs: StepCosts,
    *,
    verify: str = "token",
    temperature: float = 0.0,
) -> Path:
    """Keep costs on this device under the cache directory, for a rule, and for greedy or sampled.

    Raises:
        OSError: If it cannot be written.
    """
    path = _path(model, drafter, verify, temperature)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps({"widths": costs.widths, "seconds": costs.seconds}), "utf-8")
    os.replace(scratch, path)
    return path


def load_costs(
    model: Model, drafter: Drafter, *, verify: str = "token", temperature: float = 0.0
) -> StepCosts | None:
    """What `save_costs` kept for the same, whatever the drafter's length; or None."""
    try:
        kept = json.loads(_path(model, drafter, verify, temperature).read_text("utf-8"))
        return StepCosts(tuple(kept["widths"]), tuple(kept["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(model: Model, drafter: Drafter, verify: str, temperature: float) -> Path:
    """Where the costs of these are, by all that they depend on but the draft length."""
    parts = [
        _describe(model),
        _describe(drafter),
        verify if temperature > 0 else f"{verify}, greedy",
        jax.devices()[0].device_kind,
        str(os.cpu_count()),
        version("jax"),
    ]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_directory() / "costs" / f"{name}.json"


def _describe(thing: Any) -> str:
    """The same words in every process for what costs the same."""
    if isinstance(thing, Model):
        return f"{thing.name} {thing.network!r} {_describe(thing.params)}"
    if is_dataclass(thing):
        kept = [field.name for field in fields(thing) if field.name != "draft_length"]
        parts = [f"{name}={_describe(getattr(thing, name))}" for name in kept]
        return f"{type(thing).__name__}({', '.join(parts)})"
    if thing is None or isinstance(thing, int | float | str):
        return repr(thing)
    return str(
        [
            (jax.tree_util.keystr(path), np.shape(leaf), str(jax.dtypes.result_type(leaf)))
            for path, leaf in jax.tree.leaves_with_path(thing)
        ]
    )
