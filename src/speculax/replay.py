"""Rules compared on the same drafts: what a run recorded is judged again by every rule.

For the token, block and sampled rules the expected number of accepted tokens is known exactly once
the probabilities of the draft tokens are (`speculax.theory`), so a record of one run is enough, and
its noise is that of the texts alone. Other rules are run, and their acceptances counted.
"""

import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from speculax import theory
from speculax.drafting import Drafter
from speculax.generation import generate
from speculax.intervals import Estimate, ratio_of_sums
from speculax.models.model import Model
from speculax.row import Record
from speculax.rules import as_rule

_RECORDED_RULE = "block"
_RUN_RULES = ("coupled", "lossy_typical", "lossy_thresholds", "lossy_top_k")
EXACT = ("token", "block", "sampled")  # known from the record
_FORMAT = 1


class Recording(NamedTuple):
    """What is known of the steps of a run with full drafts, and of runs under other rules.

    Attributes:
        target_probs: float32 (N, G), of the draft tokens of N steps.
        draft_probs: float32 (N, G).
        requests: int32 (N,), which request each step belongs to.
        runs: By rule, int (R, 2): the steps of each request with a full draft, and the draft
            tokens accepted in them.
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
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = dict(file)
            info = json.loads(str(arrays.pop("info")))
            if info.pop("format") != _FORMAT:
                raise KeyError("format")
            runs = {name[4:]: x for name, x in arrays.items() if name.startswith("run_")}
            return cls(
                arrays["target_probs"], arrays["draft_probs"], arrays["requests"], runs, info
            )
        except (
            KeyError,
            ValueError,
            EOFError,
            TypeError,
            zipfile.BadZipFile,
            zlib.error,
            NotImplementedError,
        ) as error:
            raise ValueError(
                f"{path} must be a record made by --record of this version, it is something else."
            ) from error


def record(
    model: Model,
    prompts: list[str] | list[list[int]],
    drafter: Drafter,
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    own_rules: Sequence[Callable[..., Any]] = (),
    info: dict[str, Any] | None = None,
    done: Callable[[str], object] = lambda rule: None,
) -> Recording:
    """Generate once and keep the probabilities of the draft tokens; then run the other rules.

    Steps whose draft was cut short by the end of their text are left out, and no text ends early.

    Args:
        model: The target.
        prompts: One a request.
        drafter: One that always drafts, and samples.
        max_new_tokens: Of each request; more than its draft length.
        temperature: Above 0.
        seed: Of the first request; the others count on from it.
        own_rules: Functions with the signature of `verify_token`, to run as well.
        info: What to keep with the record.
        done: Called with the name of each rule whose run is over.

    Raises:
        ValueError: If there are fewer than 2 prompts, no step has room for a full draft, or two
            rules have one name.
    """
    names = [*_RUN_RULES, *(as_rule(rule).name for rule in own_rules)]
    rules = dict(zip(names, [*_RUN_RULES, *own_rules], strict=True))
    if len(rules) < len(names) or rules.keys() & {*EXACT, "ideal"}:
        raise ValueError(
            "own_rules must be functions with names that no other rule has, got "
            f"{', '.join(names[len(_RUN_RULES) :])}; rename them."
        )
    if len(prompts) < 2 or max_new_tokens <= drafter.draft_length:
        raise ValueError(
            "a record needs at least 2 texts, for its intervals, and max_new_tokens above the "
            f"draft length, got {len(prompts)} texts, {max_new_tokens} tokens and drafts of "
            f"{drafter.draft_length}."
        )

    def run(name: str, rule: str | Callable[..., Any]) -> list[Record]:
        results = generate(
            model,
            prompts,
            drafter=drafter,
            verify=rule,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=[seed + i for i in range(len(prompts))],
            eos_ids=(),
            record=True,
            slots=len(prompts),
        )
        done(name)
        return [_full_steps(result.record) for result in results]

    records = run(_RECORDED_RULE, _RECORDED_RULE)
    return Recording(
        np.concatenate([one.target_probs for one in records]),
        np.concatenate([one.draft_probs for one in records]),
        np.repeat(np.arange(len(records), dtype=np.int32), [len(one.accepted) for one in records]),
        {
            name: np.array([(len(one.accepted), one.accepted.sum()) for one in run(name, rule)])
            for name, rule in rules.items()
        },
        info or {},
    )


def _full_steps(record: Record | None) -> Record:
    assert record is not None
    is_full = record.draft_probs[:, -1] > 0
    return Record(*(part[is_full] for part in record))


def replay(recording: Recording) -> dict[str, Estimate]:
    """The mean number of accepted draft tokens a step, by rule, exact ones first.

    Exact for the drafts of the record, whose steps start where block verification left off; a run
    under another rule starts its steps elsewhere. Intervals are percentiles over resampled
    requests, whose steps belong together. "ideal" is what a rule would keep that saw how all drafts
    continue; no rule for a single draft can. "block less token" is a difference.
    """
    ratios = recording.target_probs / recording.draft_probs
    exact = {
        "token": theory.mean_accepted_token(ratios),
        "block": theory.mean_accepted_block(ratios),
        "sampled": theory.mean_accepted_sampled(recording.target_probs),
        "ideal": np.minimum(1, np.cumprod(ratios, axis=1, dtype=np.float64)).sum(axis=1),
    }
    exact["block less token"] = exact["block"] - exact["token"]
    by_request = partial(np.bincount, recording.requests)
    steps = by_request()
    estimates = {rule: _estimate(steps, by_request(values)) for rule, values in exact.items()}
    return estimates | {rule: _estimate(*counts.T) for rule, counts in recording.runs.items()}


def _estimate(steps: np.ndarray, accepted: np.ndarray) -> Estimate:
    """Accepted tokens a step, of the requests that have steps."""
    return ratio_of_sums(accepted[steps > 0], steps[steps > 0])
