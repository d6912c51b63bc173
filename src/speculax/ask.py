"""Requests as the arrays that the loop takes, one entry a row of the batch."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from speculax.loop import Requests
from speculax.request import NUMBERS, Request
from speculax.settings import RowSettings
from speculax.token_mask import stack_masks

_LAW_SETTINGS = (
    "temperature", "top_k", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def ask(
    batch: Sequence[Request | None],
    requests: Sequence[Request],
    eos_ids: tuple[int, ...],
    vocab_size: int,
    is_deterministic: bool,
) -> Requests:
    """What the rows of a batch ask for.

    Args:
        batch: The request of each row; None for an idle one.
        requests: All that will ever be in it: what none of them uses is left out, so that the
            compiled programs serve them all.
        eos_ids: Tokens that end any of them.
        vocab_size: V.
        is_deterministic: Whether to keep what makes laws round otherwise: a cut-off, used or not.
    """

    def column(name: str) -> jax.Array | None:
        number = NUMBERS[name]
        is_kept = is_deterministic and name == "top_k"
        if not is_kept and all(getattr(request, name) == number.default for request in requests):
            return None
        values = [number.default if row is None else getattr(row, name) for row in batch]
        return jnp.asarray(values, jnp.int32 if number.kind is int else jnp.float32)

    is_joint = None
    if any(request.order == "joint" for request in requests):
        is_joint = jnp.asarray([row is not None and row.order == "joint" for row in batch])
    most = max((len(request.stop_ids) for request in requests), default=0)
    most = 1 << (most - 1).bit_length() if most else 0  # few shapes to compile for
    stop_ids = np.full((len(batch), len(eos_ids) + most), -1, np.int32)
    for ids, row in zip(stop_ids, batch, strict=True):
        own = eos_ids if row is None else (*eos_ids, *row.stop_ids)
        ids[: len(own)] = own
    settings = RowSettings(
        stop_ids=jnp.asarray(stop_ids),
        is_joint=is_joint,
        bias=_bias(batch, requests, vocab_size),
        masks=stack_masks(
            [None if row is None else row.token_mask for row in batch],
            [request.token_mask for request in requests],
        ),
        **{name: column(name) for name in _LAW_SETTINGS},
    )
    return Requests(
        limits=jnp.asarray([0 if row is None else row.limit for row in batch], jnp.int32),
        seeds=jnp.asarray([0 if row is None else row.seed for row in batch], jnp.uint32),
        settings=settings,
    )


def _bias(
    batch: Sequence[Request | None], requests: Sequence[Request], vocab_size: int
) -> jax.Array | None:
    if not any(request.logit_bias for request in requests):
        return None
    bias = np.zeros((len(batch), vocab_size), np.float32)
    for values, row in zip(bias, batch, strict=True):
        if row is not None and row.logit_bias:
            values[list(row.logit_bias)] = list(row.logit_bias.values())
    return jnp.asarray(bias)
