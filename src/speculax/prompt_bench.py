"""Speculation measured on prompts: each of them with drafts and without, in one run.

Xia et al., "Spec-Bench" (arXiv:2401.07851), compare methods by category of prompts; here a drafter
is compared with plain decoding. Times are those of decoding, after the prompt was read.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculax.draft_length import StepCosts
from speculax.drafting import Drafter
from speculax.generation import generate
from speculax.intervals import ratio_of_sums
from speculax.models.model import Model
from speculax.prompt_file import NamedPrompt
from speculax.rules import as_rule
from speculax.tuning import check_counts

_FORMAT = 1


@dataclass(frozen=True)
class Measure:
    """One prompt, once with drafts and once without.

    Attributes:
        id: That of the prompt.
        category: Its category.
        repeat: Which time it was run, from 0.
        plain_seconds: Decoding time of a token, without drafts.
        seconds: The same, with drafts.
        emitted: Tokens made with drafts.
        steps: Calls of the target for them.
        drafted: Draft tokens proposed.
        accepted: Draft tokens kept.
        same: Whether both runs made the same tokens; None where they need not.
    """

    id: str
    category: str
    repeat: int
    plain_seconds: float
    seconds: float
    emitted: int
    steps: int
    drafted: int
    accepted: int
    same: bool | None


@dataclass(frozen=True)
class Summary:
    """What the measures of a category come to.

    Attributes:
        category: Its name.
        prompts: How many prompts.
        block_efficiency: Tokens per call of the target.
        acceptance_rate: Accepted over drafted tokens; None if none was drafted.
        speedup: Time of a token without drafts over that with them, times of all prompts added up;
            of each prompt the median of its repeats.
        low: The lower end of its 95 % interval, over resampled prompts; None for a single one. Of a
            handful of prompts it is too narrow.
        high: The upper end.
        worst: The least speedup of a prompt.
        same: Prompts whose tokens were the same in all repeats; None where they need not be.
    """

    category: str
    prompts: int
    block_efficiency: float
    acceptance_rate: float | None
    speedup: float
    low: float | None
    high: float | None
    worst: float
    same: int | None


def measure(
    model: Model,
    prompts: Sequence[NamedPrompt],
    drafter: Drafter,
    *,
    verify: str,
    max_new_tokens: int,
    temperature: float,
    repeats: int,
    seed: int,
    costs: StepCosts | None = None,
    is_done: Callable[[NamedPrompt, int], bool] = lambda prompt, repeat: False,
) -> Iterator[Measure]:
    """Run each prompt with drafts and without, in random order, `repeats` times over.

    Args:
        model: The target.
        prompts: What to run.
        drafter: What to compare with plain decoding.
        verify: The rule that judges drafts.
        max_new_tokens: Of each text; it does not end before.
        temperature: 0 for greedy.
        repeats: How often.
        seed: Of the first prompt in the first repeat; the others count on from it.
        costs: What steps cost, from `tune`; then any drafter adapts by them.
        is_done: Whether a prompt need not be run again.

    Raises:
        ValueError: If there are no tokens or no repeats, or as `generate`.
    """
    check_counts(max_new_tokens=max_new_tokens, repeats=repeats)
    rule = as_rule(verify)
    must_be_same = rule.is_keyed or (temperature == 0 and rule.becomes_greedy)

    def run(prompt: NamedPrompt, used: Drafter | None, number: int) -> Any:
        return generate(
            model,
            prompt.text,
            drafter=used,
            verify=verify,
            costs=None if used is None else costs,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed + number,
            eos_ids=(),
        )

    is_compiled = False
    for repeat in range(repeats):
        for i, prompt in enumerate(prompts):
            if is_done(prompt, repeat):
                continue
            number = repeat * len(prompts) + i
            if not is_compiled:
                for used in (None, drafter):
                    run(prompt, used, number)
                is_compiled = True
            order = random.Random(number).sample([None, drafter], 2)
            results = {used is None: run(prompt, used, number) for used in order}
            plain, drafted = results[True], results[False]
            stats = drafted.stats
            yield Measure(
                id=prompt.id,
                category=prompt.category,
                repeat=repeat,
                plain_seconds=plain.stats.decode_seconds / plain.stats.emitted,
                seconds=stats.decode_seconds / stats.emitted,
                emitted=stats.emitted,
                steps=stats.steps,
                drafted=stats.drafted,
                accepted=stats.accepted,
                same=np.array_equal(plain.tokens, drafted.tokens) if must_be_same else None,
            )


def summarize(measures: Sequence[Measure]) -> list[Summary]:
    """A summary of each category, in the order of their first measures; then of all."""
    categories = list(dict.fromkeys(one.category for one in measures))
    parts = [(name, [one for one in measures if one.category == name]) for name in categories]
    if len(parts) > 1:
        parts.append(("all", list(measures)))
    return [_summary(name, part) for name, part in parts]


def _summary(category: str, measures: Sequence[Measure]) -> Summary:
    by_prompt: dict[str, list[Measure]] = {}
    for one in measures:
        by_prompt.setdefault(one.id, []).append(one)
    plain, drafted = (
        np.array([np.median([getattr(one, name) for one in some]) for some in by_prompt.values()])
        for name in ("plain_seconds", "seconds")
    )
    speedup = ratio_of_sums(plain, drafted)
    emitted, steps, drafts, accepted = (
        sum(getattr(one, name) for one in measures)
        for name in ("emitted", "steps", "drafted", "accepted")
    )
    need_not = any(one.same is None for one in measures)
    return Summary(
        category=category,
        prompts=len(by_prompt),
        block_efficiency=emitted / steps,
        acceptance_rate=accepted / drafts if drafts else None,
        speedup=speedup.mean,
        low=speedup.low if len(by_prompt) > 1 else None,
        high=speedup.high if len(by_prompt) > 1 else None,
        worst=float((plain / drafted).min()),
        same=None if need_not else sum(all(m.same for m in some) for some in by_prompt.values()),
    )


class Journal:
    """Measures in a file of JSON lines, as they are made; a run that is broken off goes on there.

    Args:
        path: The file; made if there is none.
        settings: What is run. A journal of something else is refused.

    Raises:
        ValueError: If the file is of something else, or no journal.
        OSError: If it cannot be read or written.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self.measures: list[Measure] = []
        head = json.loads(json.dumps({"format": _FORMAT, "settings": settings}))
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps(head) + "\n", "utf-8")
            return
        try:
            other = _first_difference(json.loads(lines[0]), head)
            whole = lines[1:] if path.read_text("utf-8").endswith("\n") else lines[1:-1]
            self.measures = [Measure(**json.loads(line)) for line in whole]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} must be a journal of prompts, it is something else."
            ) from error
        if other:
            raise ValueError(
                f"{path} is a journal of another run, with {other}; give another file, or remove "
                "it."
            )
        if len(whole) < len(lines) - 1:  # the last line was cut short
            path.write_text("\n".join([lines[0], *whole]) + "\n", "utf-8")

    def add(self, measure: Measure) -> None:
        """Write one more."""
        self.measures.append(measure)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(measure)) + "\n")

    def has(self, prompt: NamedPrompt, repeat: int) -> bool:
        """Whether a prompt was measured that time."""
        return any(one.id == prompt.id and one.repeat == repeat for one in self.measures)


def _first_difference(written: Any, asked: Any) -> str:
    """The first thing that two heads differ in; nothing if they are the same."""
    old, new = ({"format": head["format"], **head["settings"]} for head in (written, asked))
    for name in [*new, *old]:
        was, now = old.get(name), new.get(name)
        if was != now:
            told = f"{name} {json.dumps(was)} in place of {json.dumps(now)}"
            return f"other {name}" if isinstance(was or now, dict) else told
    return ""
