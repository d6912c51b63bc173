"""What people ask of `generate`, read and checked before any work is done."""

import difflib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from speculax.flat_laws import SETTINGS
from speculax.models.model import Model
from speculax.token_mask import TokenMask, check_masks

MAX_TEMPERATURE = 1e30  # float32 arithmetic with its reciprocal is safe
LARGEST_PENALTY = 1e6
LARGEST_BIAS = 1e30

Prompt = str | Sequence[int] | np.ndarray | jax.Array


class Settings(TypedDict, total=False):
    """The settings of requests, as keywords of `generate` and `stream`.

    Each is one value for all requests, or a list of one a request; what is itself a list (`stop`,
    `stop_ids`) is for all unless it is a list of lists. They are applied at every position of a
    draft, to the target's laws and the drafter's, in this order: `logit_bias`,
    `repetition_penalty`, `frequency_penalty`, `presence_penalty`, `token_mask`, `temperature`, then
    the cut-offs `top_k`, `top_p`, `min_p`.

    Attributes:
        max_new_tokens: The most tokens to make; 128 if not given.
        temperature: 0 for greedy, the default; 1 for the model's own law.
        top_k: Keep the k likeliest tokens; 0, the default, keeps all.
        top_p: Keep the likeliest tokens until their mass reaches this, above 0 and at most 1; 1
            keeps all.
        min_p: Keep tokens at least this likely compared with the likeliest; 0 keeps all.
        order: "sequential", each cut-off seeing what the one before left (as transformers has it),
            or "joint", all looking at the same law (as SGLang has it).
        repetition_penalty: Above 0; logits above 0 of tokens in prompt or text are divided by it,
            those below multiplied (Keskar et al., arXiv:1909.05858). 1 is none.
        presence_penalty: Subtracted from the logits of tokens in the text, the prompt apart; 0 is
            none.
        frequency_penalty: The same, for each time that they are in it.
        logit_bias: What to add to the logits of some tokens, by id; -inf forbids a token.
        token_mask: A `TokenMask`, such as a grammar.
        seed: An integer in [0, 2**32) that fixes all sampling; one for all requests gives equal
            prompts equal texts. None takes fresh ones; results hold them.
        stop: Strings that end a text, which is cut before them; the token that completes one is
            the last.
        stop_ids: Tokens that end a text, besides the end tokens.
    """

    max_new_tokens: int | Sequence[int]
    temperature: float | Sequence[float]
    top_k: int | Sequence[int]
    top_p: float | Sequence[float]
    min_p: float | Sequence[float]
    order: str | Sequence[str]
    repetition_penalty: float | Sequence[float]
    presence_penalty: float | Sequence[float]
    frequency_penalty: float | Sequence[float]
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float] | None] | None
    token_mask: TokenMask | Sequence[TokenMask | None] | None
    seed: int | Sequence[int] | None
    stop: str | Sequence[str] | Sequence[Sequence[str]]
    stop_ids: Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One prompt and its settings, see `Settings`.

    Attributes:
        prompt: int32 (N,), at least one token id.
    """

    prompt: np.ndarray
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    order: str
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    token_mask: TokenMask | None
    seed: int
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]

    @property
    def limit(self) -> int:
        """The length it may reach, its prompt included."""
        return len(self.prompt) + self.max_new_tokens


class _Number(NamedTuple):
    """A setting that is a number: its default, and what values it may have."""

    default: float
    kind: type
    words: str
    holds: Callable[[Any], bool]


def _from(least: float, most: float) -> Callable[[Any], bool]:
    return lambda x: least <= x <= most


NUMBERS = {
    "max_new_tokens": _Number(128, int, f"at least 0 and at most {2**31 - 1}", _from(0, 2**31 - 1)),
    "temperature": _Number(
        0.0, float, f"at least 0 and at most {MAX_TEMPERATURE}", _from(0, MAX_TEMPERATURE)
    ),
    "top_k": _Number(0, int, SETTINGS["top_k"].words, _from(0, 2**31 - 1)),
    "top_p": _Number(1.0, float, SETTINGS["top_p"].words, lambda x: 1e-30 < x <= 1),
    "min_p": _Number(0.0, float, SETTINGS["min_p"].words, _from(0, 1)),
    "repetition_penalty": _Number(
        1.0,
        float,
        "above 0, from 1e-6 to 1e6; 1 is none",
        _from(1 / LARGEST_PENALTY, LARGEST_PENALTY),
    ),
    "presence_penalty": _Number(
        0.0, float, "from -1e6 to 1e6; 0 is none", _from(-LARGEST_PENALTY, LARGEST_PENALTY)
    ),
    "frequency_penalty": _Number(
        0.0, float, "from -1e6 to 1e6; 0 is none", _from(-LARGEST_PENALTY, LARGEST_PENALTY)
    ),
    "seed": _Number(0, int, f"at least 0 and at most {2**32 - 1}", _from(0, 2**32 - 1)),
}


def read_requests(model: Model, prompts: Sequence[Any], settings: Settings) -> list[Request]:
    """One request a prompt; see `speculax.generate` for the arguments and what is raised."""
    unknown = [name for name in settings if name not in Settings.__annotations__]
    if unknown:
        near = difflib.get_close_matches(unknown[0], Settings.__annotations__, 1)
        advice = f"did you mean {near[0]}?" if near else "leave it out."
        raise TypeError(
            f"{unknown[0]!r} is no setting of a request, and what is not applied is not taken: "
            f"they are {', '.join(Settings.__annotations__)}; {advice}"
        )
    given: dict[str, Any] = dict(settings)
    num = len(prompts)
    if given.get("seed") is None:
        given["seed"] = [secrets.randbits(32) for _ in prompts]
    columns: dict[str, list] = {
        "prompt": [_read_ids(model, i, prompt) for i, prompt in enumerate(prompts)]
    }
    for name, number in NUMBERS.items():
        columns[name] = _read_numbers(name, given.get(name, number.default), num, number)
    readers = {
        "order": _read_order,
        "logit_bias": _read_bias,
        "token_mask": _read_mask,
        "stop": _read_stop,
        "stop_ids": _read_stop_ids,
    }
    for name, read in readers.items():
        columns[name] = [read(model, value) for value in _one_each(name, given.get(name), num)]
    rows = zip(*columns.values(), strict=True)
    requests = [Request(**dict(zip(columns, row, strict=True))) for row in rows]
    check_masks(columns["token_mask"], model.network.vocab_size)
    context = model.network.context_length
    for i, request in enumerate(requests):
        if request.limit > context:
            raise ValueError(
                f"request {i} has a prompt of {len(request.prompt)} tokens and asks for "
                f"{request.max_new_tokens} new ones, {request.limit} in all, but {model.name} has "
                f"a context of {context}; shorten the prompt or lower max_new_tokens."
            )
    return requests


def read_eos_ids(model: Model, eos_ids: Sequence[int] | None) -> tuple[int, ...]:
    """The ids that end a text; the model's own for None."""
    return model.eos_ids if eos_ids is None else _read_id_list("eos_ids", eos_ids)


def is_single(prompt: Any) -> bool:
    """Whether this is one prompt, not a list of them."""
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray | jax.Array):
        return prompt.ndim < 2
    if not isinstance(prompt, Sequence):
        raise ValueError(
            f"prompt must be a string, token ids, or a list of either, got {prompt!r}."
        )
    return len(prompt) > 0 and all(isinstance(one, int | np.integer) for one in prompt)


def _read_ids(model: Model, i: int, prompt: Any) -> np.ndarray:
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise ValueError(
                f"prompt {i} is a string but {model.name} has no tokenizer; pass token ids."
            )
        prompt = model.tokenizer.encode(prompt)
    ids = np.asarray(prompt)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"prompt {i} must be a string or a row of at least one integer token id, got "
            f"{ids.dtype} of shape {ids.shape}; an empty text still has its first token (BOS)."
        )
    vocab_size = model.network.vocab_size
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"prompt {i} must have ids from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}; "
            "check that the tokenizer belongs to the model."
        )
    return ids.astype(np.int32)


def _read_numbers(name: str, values: Any, num: int, number: _Number) -> list:
    """One value for each request, from one value or a list of them."""
    values = [values] * num if np.ndim(values) == 0 else list(values)
    if any(
        isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in values
    ):
        raise ValueError(f"{name} must be a number, got a key of jax.random; give an integer.")
    values = [value.item() if hasattr(value, "item") else value for value in values]
    _check_count(name, values, num)
    for value in values:
        if not _is_allowed(value, number):
            what = "an integer" if number.kind is int else "a finite number"
            raise ValueError(f"{name} must be {what} {number.words}, got {value!r}.")
    return [number.kind(value) for value in values]


def _is_allowed(value: Any, number: _Number) -> bool:
    try:
        return bool(number.holds(value)) and number.kind(value) == value
    except (TypeError, ValueError):  # not a number at all
        return False


def _one_each(name: str, value: Any, num: int) -> list:
    """One value for each request, of a setting that is no number."""
    is_list = isinstance(value, list | tuple) and not hasattr(value, "allowed")
    if name in ("stop", "stop_ids") and is_list:
        inner = Sequence if name == "stop_ids" else (list, tuple)
        is_list = any(one is None or isinstance(one, inner) for one in value)
    if not is_list:
        return [value] * num
    _check_count(name, value, num)
    return list(value)


def _check_count(name: str, values: Sequence[Any], num: int) -> None:
    if len(values) != num:
        raise ValueError(
            f"{name} must be one value or one for each of {num} prompts, got {len(values)} values."
        )


def _read_order(model: Model, order: Any) -> str:
    if order not in (None, "sequential", "joint"):
        raise ValueError(f'order must be "sequential" or "joint", got {order!r}.')
    return order or "sequential"


def _read_bias(model: Model, bias: Any) -> Mapping[int, float] | None:
    if bias is None:
        return None
    size = model.network.vocab_size
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r}.")
    for token, value in bias.items():
        is_id = isinstance(token, int | np.integer) and not isinstance(token, bool)
        if not is_id or not 0 <= token < size:
            raise ValueError(
                f"logit_bias must be for token ids from 0 to {size - 1}, got {token!r}."
            )
        is_number = isinstance(value, int | float | np.number)
        if not is_number or not (value == -math.inf or abs(value) <= LARGEST_BIAS):
            raise ValueError(
                f"logit_bias must be finite numbers from -1e30 to 1e30, or -inf to forbid a token, "
                f"got {value!r} for token {token}."
            )
    return dict(bias)


def _read_mask(model: Model, mask: Any) -> TokenMask | None:
    parts = ("init", "advance", "allowed")
    if mask is not None and (
        isinstance(mask, type) or not all(hasattr(mask, part) for part in parts)
    ):
        raise ValueError(f"token_mask must be None or have {', '.join(parts)}, got {mask!r}.")
    return mask


def _read_stop(model: Model, stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(one, str) and one for one in stops):
        raise ValueError(f"stop must be a string or a list of strings, none empty, got {stop!r}.")
    if stops and model.tokenizer is None:
        raise ValueError(f"stop is a string but {model.name} has no tokenizer; use stop_ids.")
    return stops


def _read_stop_ids(model: Model, ids: Any) -> tuple[int, ...]:
    return () if ids is None else _read_id_list("stop_ids", ids)


def _read_id_list(name: str, given: Any) -> tuple[int, ...]:
    ids = np.asarray(given)
    is_list = ids.ndim == 1 and (ids.dtype.kind in "iu" or ids.size == 0)
    if not is_list or any(not 0 <= id < 2**31 for id in ids.tolist()):
        raise ValueError(f"{name} must be a list of token ids, 0 or more, got {given!r}.")
    return tuple(ids.tolist())
