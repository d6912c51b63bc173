"""Time laws and samplers against sorting, JAX and transformers: part of `make bench-verify`.

Laws are of 40 rows of float32 logits: random (3 times normal numbers), the same in rising order,
peaked (6 times), or flat (1/100). "law" is all that must be known of a row, "cut-off" what tokens
it keeps; settings are traced. Numbers are medians in microseconds a row, measured in random order,
and the speedup over the first line of the table.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from machine import describe
from timing import measure_all, seconds

import speculax as sx
from speculax.batching import map_rows, number_rows
from speculax.laws import flat_law

NUM_ROWS = 40
VOCAB_SIZES = [151_936, 262_144]
MOST_SECONDS = 1.0  # for the rounds of one number

Form = Callable[[Any], Any]
Table = dict[str, dict[str, Form]]  # of each line and column


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    rounds = parser.parse_args().repeats
    print(describe("jax", "jaxlib", "numpy", "speculax"), jax.devices()[0].device_kind, sep=", ")
    for vocab_size in VOCAB_SIZES:
        print(f"\nV = {vocab_size}")
        normal = jax.random.normal(jax.random.key(0), (NUM_ROWS, vocab_size))
        rows = {"random": 3 * normal, "peaked": 6 * normal, "flat": 0.01 * normal}
        rising = {"rising": jnp.sort(rows["random"])}
        compare("top-k", top_k(), {"random": rows["random"], **rising}, rounds)
        compare("top-p 0.9", top_p(), rows, rounds)
        rows.pop("flat")
        compare("other laws", other_laws(), rows, rounds)
        laws = {
            "probabilities": jax.nn.softmax(rows["random"]),
            "logits": sx.law_from_logits(rows["random"]),
        }
        times = compare("samplers", samplers(), laws, rounds)
        ratios = [times["sample, key", kind] / times["sample, uniforms", kind] for kind in laws]
        print(
            "sample, key / uniforms: {:.2f} from probabilities, {:.2f} from logits".format(*ratios)
        )
        compare("sampling step", *steps(rows["random"]), rounds)


def compare(
    title: str, forms: dict[str, Form], arguments: dict[str, Any], rounds: int
) -> dict[tuple[str, str], float]:
    """Print a table, forms by arguments; the times come back."""
    contenders = {
        (name, kind): lambda _, form=form, x=x: form(x)
        for name, form in forms.items()
        for kind, x in arguments.items()
    }
    found = measure_all(contenders, rounds, seconds, MOST_SECONDS)
    times = {name: 1e6 / NUM_ROWS * np.median(each) for name, each in found.items()}
    print(f"\n{title:32}" + "".join(f"{kind:>20}" for kind in arguments))
    for name in forms:
        line = f"{name:32}"
        for kind in arguments:
            first = times[next(iter(forms)), kind]
            line += f"{times[name, kind]:10.1f} {first / times[name, kind]:7.2f} x"
        print(line, flush=True)
    return times


def law(**settings: Any) -> Form:
    """What must be known of the rows of logits with these settings."""
    form = lambda x, settings: sx.law_from_logits(x, **settings).normalize().normalizers
    return partial(jax.jit(form), settings=settings)


def cutoff(**settings: Any) -> Form:
    """The lowest score that each row keeps."""

    @jax.jit
    def form(x: jax.Array, settings: dict[str, Any]) -> jax.Array:
        law = flat_law(sx.law_from_logits(x, **settings))
        return map_rows(law.prepare, number_rows(NUM_ROWS, law)).cutoff

    return partial(form, settings=settings)


def top_k() -> dict[str, Form]:
    counts = jax.random.randint(jax.random.key(1), (NUM_ROWS,), 30, 61)
    return {
        "lax.top_k, the 60th of a row": jax.jit(lambda x: jax.lax.top_k(x, 60)[0][:, -1]),
        "lax.top_k, all 60": jax.jit(lambda x: jax.lax.top_k(x, 60)[0]),
        "law, k = 50": law(top_k=50),
        "law, k = 30 to 60 by row": law(top_k=counts),
        "cut-off, k = 30 to 60 by row": cutoff(top_k=counts),
        "law, k = 1000": law(top_k=1000),
    }


def top_p() -> dict[str, Form]:
    @jax.jit
    def by_sorting(x: jax.Array) -> jax.Array:
        falling = jnp.sort(jax.nn.softmax(x), descending=True)
        last = jnp.argmax(jnp.cumsum(falling, axis=1) >= 0.9, axis=1)
        return jnp.take_along_axis(falling, last[:, None], axis=1)

    return {"sort and cumsum": by_sorting, "law": law(top_p=0.9), "cut-off": cutoff(top_p=0.9)}


def other_laws() -> dict[str, Form]:
    return {
        "logsumexp": jax.jit(lambda x: jax.nn.logsumexp(x, axis=1)),
        "no settings": law(),
        "temperature 0.8": law(temperature=0.8),
        "min-p 0.05": law(min_p=0.05),
        "temperature, top-k, top-p": law(temperature=0.8, top_k=50, top_p=0.9),
        "and min-p": law(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    }


def samplers() -> dict[str, Form]:
    """From probabilities, or a `Law`."""
    key = jax.random.key(2)
    uniforms = jax.random.uniform(key, (NUM_ROWS,))
    sample, is_law = jax.jit(sx.sample), lambda x: isinstance(x, sx.Law)

    @jax.jit
    def categorical(x: Any) -> jax.Array:
        return jax.random.categorical(key, x.table if is_law(x) else jnp.log(x))

    @jax.jit
    def by_cumsum(x: Any, uniforms: jax.Array) -> jax.Array:
        cumulative = jnp.cumsum(jax.nn.softmax(x.table) if is_law(x) else x, axis=1)
        search = partial(jnp.searchsorted, side="right")
        return jax.vmap(search)(cumulative, uniforms * cumulative[:, -1])

    return {
        "jax.random.categorical": categorical,
        "cumsum, searchsorted": partial(by_cumsum, uniforms=uniforms),
        "sample, uniforms": partial(sample, uniforms=uniforms),
        "sample, key": partial(sample, key=key),
        "coupled_draw": partial(jax.jit(sx.coupled_draw), seeds=7, positions=3),
    }


def steps(logits: jax.Array) -> tuple[dict[str, Form], dict[str, dict[str, Any]]]:
    """From logits to tokens with settings; in transformers too, if it can be compared."""
    every = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}
    settings = {"none": {}, **{name: {name: value} for name, value in every.items()}, "all": every}

    @jax.jit
    def step(settings: dict[str, Any], logits: jax.Array, key: jax.Array) -> jax.Array:
        return sx.sample(sx.law_from_logits(logits, **settings), key=key)

    forms = {"law_from_logits, sample": partial(step, logits=logits, key=jax.random.key(3))}
    if jax.default_backend() != "cpu":
        print("\nno comparison with transformers, which would run on CPU")
    elif not importlib.util.find_spec("transformers") or not importlib.util.find_spec("torch"):
        print("\nno transformers; it comes with `make .venv/.ready-reference`")
    else:
        print("\n" + describe("torch", "transformers"))
        forms = {"transformers": transformers_step(*logits.shape), **forms}
    return forms, settings


def transformers_step(num_rows: int, vocab_size: int) -> Form:
    script = Path(__file__).with_name("warpers_worker.py")
    worker = subprocess.Popen(
        [sys.executable, script, str(num_rows), str(vocab_size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    one_at_a_time = Lock()

    def step(settings: dict[str, Any]) -> list[int]:
        with one_at_a_time:
            print(json.dumps(settings), file=worker.stdin, flush=True)
            return json.loads(worker.stdout.readline())

    return step


if __name__ == "__main__":
    main()
