"""What people ask of `generate`, read and checked before any work is done."""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from speculax.models.model import Model

MAX_TEMPERATURE = 1e30  # float32 arithmetic with its reciprocal is safe

Prompt = str | Sequence[int] | np.ndarray | jax.Array


class Request(NamedTuple):
    """One prompt and its settings.

    Attributes:
        prompt: int32 (N,), at least one token id.
        max_new_tokens: The most tokens to make.
        temperature: 0 for greedy.
        seed: In [0, 2**32).
    """

    prompt: np.ndarray
    max_new_tokens: int
    temperature: float
    seed: int


def read_requests(
    model: Model,
    prompts: Sequence[Any],
    max_new_tokens: int | Sequence[int],
    temperature: float | Sequence[float],
    seed: int | Sequence[int] | None,
) -> list[Request]:
    """One request a prompt; see `speculax.generate` for the arguments and what is raised."""
    num = len(prompts)
    seeds = [secrets.randbits(32) for _ in prompts] if seed is None else seed
    requests = [
        Request(*one)
        for one in zip(
            [_read_ids(model, i, prompt) for i, prompt in enumerate(prompts)],
            _one_each("max_new_tokens", max_new_tokens, num, int, 2**31 - 1),
            _one_each("temperature", temperature, num, float, MAX_TEMPERATURE),
            _one_each("seed", seeds, num, int, 2**32 - 1),
            strict=True,
        )
    ]
    context = model.network.context_length
    for i, request in enumerate(requests):
        if (wanted := len(request.prompt) + request.max_new_tokens) > context:
            raise ValueError(
                f"request {i} has a prompt of {len(request.prompt)} tokens and asks for "
                f"{request.max_new_tokens} new ones, {wanted} in all, but {model.name} has a "
                f"context of {context}; shorten the prompt or lower max_new_tokens."
            )
    return requests


def read_eos_ids(model: Model, eos_ids: Sequence[int] | None) -> tuple[int, ...]:
    """The ids that end a text; the model's own for None."""
    if eos_ids is None:
        return model.eos_ids
    ids = np.asarray(eos_ids)
    if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.max() >= 2**31)):
        raise ValueError(f"eos_ids must be a list of token ids or None, got {eos_ids!r}.")
    return tuple(ids.tolist())


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


def _one_each(name: str, values: Any, num: int, kind: type, most: float) -> list:
    """One value of at least 0 for each request, from one value or a list of them."""
    values = [values] * num if np.ndim(values) == 0 else list(values)
    values = [value.item() if hasattr(value, "item") else value for value in values]
    if len(values) != num:
        raise ValueError(
            f"{name} must be one value or one for each of {num} prompts, got {len(values)} values."
        )
    for value in values:
        if not _is_allowed(value, kind, most):
            what = "an integer" if kind is int else "a finite number"
            raise ValueError(
                f"{name} must be {what} of at least 0 and at most {most}, got {value!r}."
            )
    return [kind(value) for value in values]


def _is_allowed(value: Any, kind: type, most: float) -> bool:
    try:
        return bool(0 <= value <= most) and kind(value) == value
    except (TypeError, ValueError):  # not a number at all
        return False
