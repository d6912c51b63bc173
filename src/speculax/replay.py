"""Rules compared on the same drafts: what a run recorded is judged again by every rule.

For the token, block and sampled rules the expected number of accepted tokens is known exactly once
the probabilities of the draft tokens are (`speculax.theory`), so a record of one run is enough, and
its noise is that of the texts alone. Other rules are run, and their acceptances counted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speculax import theory
from speculax.drafting import Drafter
from speculax.generation import generate
from speculax.models.model import Model

_RECORDED_RULE = "block"
_RUN_RULES = ("coupled", "lossy_typical", "lossy_thresholds", "lossy_top_k")
_RESAMPLES, _CONFIDENCE = 2000, 0.95
_FORMAT = 1


class Recording(NamedTuple):
    """What is known of the steps of a run with full drafts, and of runs under other rules.

    Attributes:
        target_probs: float32 (N, G), of the draft tokens of N steps.
        draft_probs: float32 (N, G).
        requests: int32 (N,), which request each step belongs to.
        runs: By rule, int (R, 2): the steps of each request, and its accepted draft tokens.
        info: What was run, in words and numbers.
    """

    target_probs: np.ndarray
    draft_probs: np.ndarray
    requests: np.ndarray
    runs: dict[str, np.ndarray]
    info: dict[str, Any]

    def save(self, path: Path) -> None:
        """Write it as an .npz file."""
        arrays: dict[str, Any] = {
            "target_probs": self.target_probs,
            "draft_probs": self.draft_probs,
            "requests": self.requests,
            "info": np.array(json.dumps(self.info | {"format": _FORMAT})),
        }
        arrays |= {f"run_{name}": counts for name, counts in self.runs.items()}
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Read what `save` wrote.

        Raises:
            ValueError: If it is something else.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            info = json.loads(str(arrays.pop("info")))
            if info.pop("format") != _FORMAT:
                raise KeyError("format")
            runs = {name.removeprefix("run_"): x for name, x in arrays.items() if "run_" in name}
            return cls(
                arrays["target_probs"], arrays["draft_probs"], arrays["requests"], runs, info
            )
        except (KeyError, ValueError, EOFError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} must be a record made by --record of this version, it is something else."
            ) from error


class Estimate(NamedTuple):
    """A mean number of accepted tokens a step, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def record(
    model: Model,
    prompts: list[Any],
    drafter: Drafter,
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    done: Callable[[str], object] = lambda rule: None,
) -> Recording:
    """Generate once and keep the probabilities of the draft tokens; then run the other rules.

    Steps whose draft was cut short by the end of their text are left out.

    Args:
        model: The target.
        prompts: One a request.
        drafter: One that always drafts, and samples.
        max_new_tokens: Of each request.
        temperature: Above 0.
        seed: Of the first request; the others count on from it.
        done: Called with the name of each rule whose run is over.
    """

    def run(rule: str, is_recorded: bool) -> list:
        results = generate(
            model,
            prompts,
            drafter=drafter,
            verify=rule,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=[seed + i for i in range(len(prompts))],
            record=is_recorded,
        )
        done(rule)
        return results

    target_probs, draft_probs, requests = [], [], []
    for i, result in enumerate(run(_RECORDED_RULE, True)):
        is_full = result.record.draft_probs[:, -1] > 0
        target_probs.append(result.record.target_probs[is_full])
        draft_probs.append(result.record.draft_probs[is_full])
        requests.append(np.full(int(is_full.sum()), i, np.int32))
    runs = {
        rule: np.array([(x.stats.steps, x.stats.accepted) for x in run(rule, False)])
        for rule in _RUN_RULES
    }
    return Recording(
        np.concatenate(target_probs),
        np.concatenate(draft_probs),
        np.concatenate(requests),
        runs,
        info={},
    )


def replay(recording: Recording) -> dict[str, Estimate]:
    """The mean number of accepted draft tokens a step, by rule, exact ones first.

    Intervals are percentiles over resampled requests, whose steps belong together. "ideal" is what
    a rule would keep that saw how all drafts continue; no rule for a single draft can.
    """
    ratios = recording.target_probs / recording.draft_probs
    exact = {
        "token": theory.mean_accepted_token(ratios),
        "block": theory.mean_accepted_block(ratios),
        "sampled": theory.mean_accepted_sampled(recording.target_probs),
        "ideal": np.minimum(1, np.cumprod(ratios, axis=1, dtype=np.float64)).sum(axis=1),
    }
    num = int(recording.requests.max()) + 1

    def by_request(values: np.ndarray) -> np.ndarray:
        return np.bincount(recording.requests, values, num)

    steps = by_request(np.ones(len(ratios)))
    estimates = {rule: _estimate(steps, by_request(values)) for rule, values in exact.items()}
    return estimates | {rule: _estimate(*counts.T) for rule, counts in recording.runs.items()}


def difference(recording: Recording, better: str, other: str) -> Estimate:
    """How many more tokens a step the rule `better` accepts, for rules that are known exactly."""
    ratios = recording.target_probs / recording.draft_probs
    means = {"token": theory.mean_accepted_token, "block": theory.mean_accepted_block}
    values = means[better](ratios) - means[other](ratios)
    num = int(recording.requests.max()) + 1
    steps = np.bincount(recording.requests, minlength=num)
    return _estimate(steps, np.bincount(recording.requests, values, num))


def _estimate(steps: np.ndarray, accepted: np.ndarray) -> Estimate:
    """The ratio of sums over requests."""
    picks = np.random.default_rng(0).integers(0, len(steps), (_RESAMPLES, len(steps)))
    means = accepted[picks].sum(axis=1) / np.maximum(steps[picks].sum(axis=1), 1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(accepted.sum() / steps.sum()), float(low), float(high))
