"""Contenders in random order: what all benchmarks of single functions share."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def measure_all(
    contenders: Mapping[Name, Callable[[int], Any]],
    rounds: int,
    measure: Callable[[Callable[[], Any]], Result],
    most_seconds: float,
) -> dict[Name, np.ndarray]:
    """What `measure` finds of each contender in each round, the number of which it is called with.

    Each runs once before, to compile; one that has taken `most_seconds` stops after three rounds.
    """
    order, taken, results = random.Random(0), defaultdict(float), defaultdict(list)
    side_by_side(lambda run: jax.block_until_ready(run(0)), contenders.values())
    for i in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            if i < 3 or taken[name] < most_seconds:
                start = time.perf_counter()
                results[name].append(measure(lambda run=contenders[name], i=i: run(i)))
                taken[name] += time.perf_counter() - start
    return {name: np.array(results[name]) for name in contenders}


def seconds(run: Callable[[], Any]) -> float:
    """The time until the result of a call is there."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def side_by_side(function: Callable[[Any], Result], values: Iterable[Any]) -> list[Result]:
    """The function of each value, in threads: compiling uses one core mostly."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, values))
