"""Time the verification step against the textbook form and the physical floor: `make bench-verify`.

The floor is reading two float32 rows of V a batch row with a NumPy dot product. Contenders run in
random order. Before a "flushed" call the caches are overwritten; "warm" is the third call in a
row. Numbers are medians, in milliseconds and in units of the floor and of the textbook form.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from machine import describe

import speculax as sx

SHAPES = [(1, 4, 32_000), (8, 4, 151_936), (32, 4, 151_936), (8, 8, 262_144)]


def textbook(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
    """The step as most engines write it: gather, cumprod, one residual row, cumsum, argmax."""
    batch, length = draft_tokens.shape
    b, i = jnp.arange(batch), jnp.arange(length)
    target = target_probs[b[:, None], i[None], draft_tokens]
    draft = draft_probs[b[:, None], i[None], draft_tokens]
    passed = accept_uniforms * draft < target
    n = jnp.sum(jnp.cumprod(passed.astype(jnp.int32), axis=1), axis=1)
    subtracted = jnp.where((n < length)[:, None], draft_probs[b, jnp.minimum(n, length - 1)], 0)
    residual = jnp.maximum(target_probs[b, n] - subtracted, 0)
    residual /= jnp.sum(residual, axis=1, keepdims=True)
    token = jnp.argmax(jnp.cumsum(residual, axis=1) > sample_uniforms[:, None], axis=1)
    place = jnp.arange(length + 1)[None]
    drafts = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    tail = jnp.where(place == n[:, None], token[:, None], -1)
    return {"num_accepted": n, "tokens": jnp.where(place < n[:, None], drafts, tail)}


def make_inputs(batch: int, length: int, vocab_size: int) -> tuple[jax.Array, ...]:
    """Laws that agree about as well as those of a good draft model; drafts sampled from theirs."""

    @jax.jit
    def make() -> tuple[jax.Array, ...]:
        keys = jax.random.split(jax.random.key(0), 5)
        draft = 2.5 * jax.random.normal(keys[0], (batch, length, vocab_size))
        target = jax.random.normal(keys[1], (batch, length + 1, vocab_size))
        target = target.at[:, :length].add(0.9 * draft)
        return (
            jax.random.categorical(keys[2], draft),
            jax.nn.softmax(draft),
            jax.nn.softmax(target),
            jax.random.uniform(keys[3], (batch, length)),
            jax.random.uniform(keys[4], (batch,)),
        )

    return jax.block_until_ready(make())


def time_all(
    contenders: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Median seconds of each contender, warm and flushed."""
    order = random.Random(0)
    cache_filler = np.ones(64 * 2**20, np.float32)
    times = defaultdict(list)
    for run in contenders.values():
        run()
    for _ in range(repeats):
        for name in order.sample(sorted(contenders), len(contenders)):
            run = contenders[name]
            cache_filler += 1
            flushed, _ = _seconds(run), _seconds(run)
            times[name].append((_seconds(run), flushed))
    return {name: tuple(np.median(pairs, axis=0)) for name, pairs in times.items()}


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    repeats = parser.parse_args().repeats
    print(describe("jax", "jaxlib", "numpy", "speculax"))
    for batch, length, vocab_size in SHAPES:
        inputs = make_inputs(batch, length, vocab_size)
        floor_rows = np.array(inputs[2][:, 0]).reshape(-1), np.array(inputs[1][:, 0]).reshape(-1)
        narrow = (
            inputs[0],
            inputs[1].astype(jnp.bfloat16),
            inputs[2].astype(jnp.bfloat16),
            *inputs[3:],
        )
        forms = {
            "textbook": (jax.jit(textbook), inputs),
            "verify_token": (jax.jit(sx.verify_token), inputs),
            "verify_token bfloat16": (jax.jit(sx.verify_token), narrow),
            "verify_greedy": (jax.jit(sx.verify_greedy), inputs),
        }
        contenders: dict[str, Callable[[], Any]] = {
            "floor": lambda rows=floor_rows: rows[0] @ rows[1]
        }
        for name, (form, given) in forms.items():
            contenders[name] = lambda form=form, given=given: form(*given)
        times = time_all(contenders, repeats)
        accepted = float(forms["textbook"][0](*inputs)["num_accepted"].mean())
        print(f"\n(B, G, V) = ({batch}, {length}, {vocab_size}), {accepted:.2f} accepted a row")
        print(
            f"{'':24}{'warm':>9}{'x floor':>9}{'x textbook':>12}{'flushed':>10}{'x floor':>9}"
            f"{'x textbook':>12}{'extra memory':>14}"
        )
        for name, (warm, flushed) in times.items():
            memory = ""
            if name in forms:
                form, given = forms[name]
                extra = form.lower(*given).compile().memory_analysis().temp_size_in_bytes
                memory = f"{extra / (4 * vocab_size):.2f} rows"
            print(
                f"{name:24}{1e3 * warm:6.3f} ms{warm / times['floor'][0]:9.2f}"
                f"{times['textbook'][0] / warm:12.2f}{1e3 * flushed:7.3f} ms"
                f"{flushed / times['floor'][1]:9.2f}{times['textbook'][1] / flushed:12.2f}"
                f"{memory:>14}",
                flush=True,
            )


if __name__ == "__main__":
    main()
