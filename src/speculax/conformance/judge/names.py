"""Which argument is which, by the words of its name."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from speculax.conformance.candidate import MisuseError
from speculax.conformance.verifier.call import PARAMETERS

KEY = ["key", "keys", "rng", "rngs", "prng", "generator", "gen", "seed", "seeds"]
LOGITS = ["logit", "logits", "scores"]
NUMBER = ["num", "n", "len", "length", "count", "gamma", "lookahead", "k", "g"]
VOCAB = ["vocab", "vocabulary"]
UNIFORM = [
    "u", "us", "uniform", "uniforms", "coin", "coins", "rand", "random", "randoms", "r", "rs",
    "noise", "eta",
]  # fmt: skip
DRAW = [
    "sample", "sampling", "resample", "resampling", "draw", "bonus", "correction", "residual",
    "final", "next", "extra", "last", "s", "recovery",
]  # fmt: skip
TEST = ["accept", "acceptance", "test", "tests", "verify", "reject", "rejection"]
PROBS = [
    "prob", "probs", "probability", "probabilities", "dist", "dists", "distribution",
    "distributions", "law", "laws", "pmf",
]  # fmt: skip
IDS = ["token", "tokens", "id", "ids", "x", "xs", "sequence", "seq"]
DRAFT = [
    "draft", "drafts", "drafted", "drafter", "proposal", "proposals", "proposed", "small",
    "assistant", "approx", "candidate", "candidates",
]  # fmt: skip
TARGET = ["target", "targets", "main", "big", "large", "verifier"]


@dataclass(frozen=True)
class Mapping:
    """Which argument stands for which of the contract's.

    Attributes:
        names: The name of the argument for each of `PARAMETERS`.
        is_joint: Whether the uniforms of tests and draw come in one array, that of the draw last.
        numbers: Arguments that are G, or V: `{"gamma": "G"}`.
        doubts: Pairs of the contract's arguments that may be the other way round: p and q, which
            half of the literature swaps, and uniforms that do not say what they are for.
    """

    names: dict[str, str]
    is_joint: bool
    numbers: dict[str, str]
    doubts: tuple[tuple[str, str], ...] = ()

    def alternatives(self) -> Iterator["Mapping"]:
        """This one, and those with doubtful pairs the other way round."""
        for is_swapped in product((False, True), repeat=len(self.doubts)):
            names = dict(self.names)
            for (one, other), swaps in zip(self.doubts, is_swapped, strict=True):
                if swaps:
                    names[one], names[other] = names[other], names[one]
            yield replace(self, names=names)

    def __str__(self) -> str:
        """In words."""
        words = [f"{name} is {role}" for role, name in self.names.items() if name != role]
        words += [f"{name} is {number}" for name, number in self.numbers.items()]
        return ", ".join(words) or "names as in the contract"


def role_of(name: str) -> str:
    """What an argument seems to be; "" if its name does not say."""
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))

    def has(*known: str) -> bool:
        return not words.isdisjoint(known)

    if has(*KEY):
        return "key"
    if has(*LOGITS):
        return "logits"
    if has(*VOCAB) or name == "V":
        return "V"
    if has(*NUMBER):
        return "G"
    if has(*UNIFORM):
        return "sample_uniforms" if has(*DRAW) else "accept_uniforms" if has(*TEST) else "uniforms"
    if has(*DRAFT) and has(*PROBS, "p", "q"):
        return "draft_probs"
    if has(*TARGET, "p"):
        return "target_probs"
    if has("q"):
        return "draft_probs"
    if has(*IDS):
        return "draft_tokens"
    return "draft" if has(*DRAFT) else ""


def map_names(function: Callable[..., Any], name: str) -> Mapping:
    """Map a function's arguments.

    Raises:
        MisuseError: If it cannot be done.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise MisuseError(
            f"{name} does not tell its arguments", "wrap it in a function that does"
        ) from None
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    optional = (*PARAMETERS, "uniforms")
    required = [
        p.name
        for p in parameters
        if p.kind not in skipped and (p.default is p.empty or role_of(p.name) in optional)
    ]
    roles: dict[str, list[str]] = {}
    for parameter in required:
        roles.setdefault(role_of(parameter), []).append(parameter)
    if "logits" in roles:
        raise MisuseError(
            f"{name} takes logits, {roles['logits'][0]}, and the exercise has probabilities",
            "wrap it in a function that takes probabilities, and passes their logarithms on",
        )
    numbers = {parameter: which for which in ("G", "V") for parameter in roles.pop(which, [])}
    plain = roles.pop("uniforms", [])
    is_joint = len(plain) == 1 and not {"accept_uniforms", "sample_uniforms", "key", ""} & {*roles}
    for role in ("accept_uniforms", "sample_uniforms"):
        if plain and role not in roles:
            roles[role] = [plain.pop(0)]
    if plain:
        roles[""] = [*roles.get("", []), *plain]
    if "key" in roles:
        raise MisuseError(
            f"{name} makes its own random numbers from {roles['key'][0]}",
            "check it with --as keys",
        )
    for parameter in roles.pop("draft", []):
        missing = [role for role in ("draft_tokens", "draft_probs") if role not in roles]
        roles.setdefault(missing[0] if missing else "draft", []).append(parameter)
    wanted = [role for role in PARAMETERS if role != "sample_uniforms" or not is_joint]
    missing = [role for role in wanted if role not in roles]
    unknown = roles.get("", [])
    if len(missing) == len(unknown) == 1:  # there is one thing it can be
        roles[missing[0]] = roles.pop("")
        missing = unknown = []
    doubled = [names for role, names in roles.items() if role and len(names) > 1]
    if missing or unknown or doubled:
        raise MisuseError(
            f"{name} has the arguments ({', '.join(required)}), "
            + _what_is_wrong(missing, unknown, doubled),
            "rename them like the contract's: " + ", ".join(PARAMETERS) + "; in this order, under "
            "any names, it can be checked with --as verifier",
        )
    names = {role: roles[role][0] for role in wanted}
    pairs = [("draft_probs", "target_probs"), ("accept_uniforms", "sample_uniforms")]
    doubts = [pair for pair in pairs if _is_doubtful([names.get(role, "") for role in pair])]
    return Mapping(names, is_joint, numbers, tuple(doubts))


def _is_doubtful(names: list[str]) -> bool:
    """Whether two names do not tell which is which."""
    return names == ["q", "p"] or [role_of(name) for name in names] == ["uniforms", "uniforms"]


def _what_is_wrong(missing: list[str], unknown: list[str], doubled: list[list[str]]) -> str:
    parts = []
    if missing:
        parts.append(f"none of which seems to be {' or '.join(missing)}")
    if unknown:
        parts.append(f"and {' and '.join(unknown)} could be anything")
    parts += [f"of which {' and '.join(names)} seem to be the same" for names in doubled]
    return ", ".join(parts)
