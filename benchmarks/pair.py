"""Time the embedded pair, and compare with what the theory predicts: `make bench-pair`.

Speedups are those of decoding after prefill, over plain decoding, runs interleaved in random order.
The prediction (`speculax.theory.speedup`) knows the acceptance rates by position from the same
texts, the time of a step that scores G drafts which cost nothing, and the time that the drafter
takes alone: three measurements in which drafter and target never work together.
"""

import argparse
import random
import time
from collections import defaultdict
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from machine import describe

import speculax as sx
from speculax import theory
from speculax.settings import History, RowSettings

PROMPTS = (
    "class Stack:\n",
    "def read_lines(path):\n",
    "import os\nimport sys\n\n",
    "    def __init__(self, name, parent=None):\n",
)
LENGTHS = (1, 2, 3, 4, 6, 8)
NEW_TOKENS = 256
ROUNDS = 200  # of drafting alone


@dataclass(frozen=True)
class Free:
    """Proposes the same tokens always, at no cost: what a step takes without its drafter."""

    draft_length: int
    always_drafts = True

    def init(self, tokens, lengths):
        return ()

    def propose(self, state, round):
        lengths = jnp.full_like(round.lengths, round.draft_length)
        return sx.Draft(jnp.ones((len(lengths), round.draft_length), jnp.int32), lengths), state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--verify", nargs="+", default=["token", "block"])
    options = parser.parse_args()
    print(describe("jax", "jaxlib", "numpy", "speculax"))
    target, draft = sx.load("demo"), sx.load("demo-draft")
    for temperature in options.temperatures:
        rules = options.verify[:1] if temperature == 0 else options.verify
        compare(target, draft, temperature, rules, options.repeats)


def compare(
    target: sx.Model, draft: sx.Model, temperature: float, rules: list[str], repeats: int
) -> None:
    ways = {("plain", 0, "token"): None}
    ways |= {("free", n, "token"): Free(n) for n in LENGTHS}
    ways |= {("draft", n, rule): sx.DraftModel(draft, n) for n in LENGTHS for rule in rules}
    times, steps = defaultdict(list), defaultdict(list)
    survived = {way: np.zeros((2, way[1])) for way in ways}
    for repeat in range(repeats + 1):  # the first compiles
        for i, prompt in enumerate(PROMPTS):
            for way in random.sample(list(ways), len(ways)):
                stats = sx.generate(
                    target,
                    prompt,
                    drafter=ways[way],
                    verify=way[2],
                    max_new_tokens=NEW_TOKENS,
                    temperature=temperature,
                    seed=1000 * repeat + i,
                    eos_ids=(),
                ).stats
                if repeat:
                    times[way].append(stats.decode_seconds / stats.emitted)
                    steps[way].append(stats.decode_seconds / stats.steps)
                    survived[way] += stats.drafted_by_position, stats.accepted_by_position
    plain = np.array(times["plain", 0, "token"])
    costs = [np.median(plain)] + [np.median(steps["free", n, "token"]) for n in LENGTHS]
    print(f"\ntemperature {temperature}: plain {1e3 * np.median(plain):.3f} ms a token")
    print("  G  step alone  drafting  rule    acceptance  tokens a step  speedup  predicted")
    for n, cost in zip(LENGTHS, costs[1:], strict=True):
        drafting = time_drafting(target, draft, n, temperature)
        for rule in rules:
            way = "draft", n, rule
            drafted, accepted = survived[way]
            # Conditional rates: of those that were got to.
            rates = accepted / np.maximum(np.append(drafted[0], accepted[:-1]), 1)
            interpolated = np.interp(range(n + 1), [0, n], [costs[0], cost])
            predicted = theory.speedup(rates, interpolated, drafting / n)[n]
            measured = np.median(plain / np.array(times[way]))
            print(
                f"  {n}  {1e3 * cost:7.3f} ms  {1e3 * drafting:5.3f} ms  {rule:<6}  "
                f"{accepted.sum() / drafted.sum():10.3f}  {theory.block_efficiency(rates):13.2f}  "
                f"{measured:7.2f}  {predicted:5.2f} ({predicted / measured - 1:+.0%})"
            )


def time_drafting(target: sx.Model, draft: sx.Model, length: int, temperature: float) -> float:
    """Seconds that the drafter takes for a draft, alone."""
    drafter = sx.DraftModel(draft, length)
    tokens = jnp.zeros((1, 512), jnp.int32)
    start = jnp.array([300], jnp.int32)

    @jax.jit
    def run(drafter: sx.DraftModel) -> jax.Array:
        def turn(i: jax.Array, carry: tuple) -> tuple:
            tokens, state = carry
            key = jax.random.fold_in(jax.random.key(0), i)
            round = sx.Round(
                tokens=tokens,
                lengths=start,
                draft_length=length,
                target=sx.Target(target.network, None, None, jnp.zeros((1, 1))),
                settings=RowSettings(
                    stop_ids=jnp.zeros((1, 0), jnp.int32),
                    temperature=jnp.full((1,), temperature) if temperature else None,
                ),
                history=History(None, None, None),
                uniforms=jax.random.uniform(key, (1, length)),
            )
            drafted, state = drafter.propose(state, round)
            # Next time another token stands at the end.
            return tokens.at[:, 299].set(drafted.tokens[:, 0]), state

        return jax.lax.fori_loop(0, ROUNDS, turn, (tokens, drafter.init(tokens, start)))[0]

    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        jax.block_until_ready(run(drafter))
        seconds.append((time.perf_counter() - begin) / ROUNDS)
    return float(np.median(seconds[1:]))


if __name__ == "__main__":
    main()
