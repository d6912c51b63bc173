"""Time the verification rules against textbook forms and the physical floor: `make bench-verify`.

The floor is reading two float32 rows of V a batch row, on CPU with a NumPy dot product. Each round
has draft tokens and uniforms of its own; in each, contenders run in random order. Before a
"flushed" call other memory is read until caches hold nothing else; "warm" is the third call in a
row. Numbers are medians, in milliseconds, in units of the floor, and as the speedup over the first
contender. Extra memory is what a compiled program holds beside its arguments and results, in
float32 rows of V. On an accelerator every line has the fixed cost of a call in it.
"""

import argparse
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from machine import describe
from timing import measure_all, seconds, side_by_side

import speculax as sx
from speculax.conformance.verifier import textbook

SHAPES = [(1, 4, 32_000), (8, 4, 151_936), (32, 4, 151_936), (8, 8, 262_144)]
ALL_RULES = [(8, 4, 151_936), (8, 8, 262_144)]  # only the token rule at the others
EXPONENT = 1.5  # of the power laws that rows follow
NOISE = 1.0  # between the logits of drafter and target: an acceptance rate of about 0.7
MOST_SECONDS = 6.0  # for the rounds of one contender
CACHE_FLOATS = 2**25  # more than caches hold

Draws = list[tuple[jax.Array, ...]]  # of each round: draft tokens, accept and sample uniforms


class Contender(NamedTuple):
    """A form of a rule, and its arguments in each round; once compiled, its bytes of memory too."""

    form: Callable[..., Any]
    arguments: list[tuple[Any, ...]]
    memory: int | None = None

    def __call__(self, i: int) -> Any:
        return self.form(*self.arguments[i])

    def compile(self) -> "Contender":
        if self.memory is not None:
            return self
        program = jax.jit(self.form).lower(*self.arguments[0]).compile()
        return Contender(program, self.arguments, program.memory_analysis().temp_size_in_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    rounds = parser.parse_args().repeats
    print(describe("jax", "jaxlib", "numpy", "speculax"), jax.devices()[0].device_kind, sep=", ")
    for shape in SHAPES:
        draft, target, draws = make_inputs(*shape, rounds)
        q, p = jax.nn.softmax(draft), jax.nn.softmax(target)
        acceptance = jnp.minimum(q, p[:, :-1]).sum(axis=-1).mean()
        pairs = [f"{pairs:.2f}" for pairs in mean_pairs_read(np.asarray(q), np.asarray(p), draws)]
        print(f"\n(B, G, V) = {shape}, acceptance rate {acceptance:.2f}; pairs of rows that rules")
        print(f"read, a bonus row being half a pair: token {pairs[0]}, block {pairs[1]}")
        contenders = token_rule(q, p, draws)
        if shape in ALL_RULES:
            contenders |= other_rules(q, p, draws)
        compare("from probabilities", contenders, q, p, rounds)
        if shape in ALL_RULES:
            compare("from logits", from_logits(draft, target, draws), q, p, rounds)


def make_inputs(
    batch: int, length: int, vocab_size: int, rounds: int
) -> tuple[jax.Array, jax.Array, Draws]:
    """Logits of a drafter and of a target, and the draws of each round."""

    @jax.jit
    def make_logits(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        keys = jax.random.split(key)
        target = EXPONENT * jax.random.exponential(keys[0], (batch, length + 1, vocab_size))
        noise = NOISE * jax.random.normal(keys[1], (batch, length, vocab_size))
        return target[:, :-1] + noise, target

    @jax.jit
    def draw(key: jax.Array, law: sx.Law) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 3)
        accept = jax.random.uniform(keys[1], (batch, length))
        return sx.sample(law, key=keys[0]), accept, jax.random.uniform(keys[2], (batch,))

    keys = jax.random.split(jax.random.key(0), rounds + 1)
    draft, target = make_logits(keys[0])
    law = sx.law_from_logits(draft).normalize()
    return draft, target, [draw(key, law) for key in keys[1:]]


def contender(rule: Callable[..., Any], draft: Any, target: Any, draws: Draws) -> Contender:
    return Contender(rule, [(tokens, draft, target, *uniforms) for tokens, *uniforms in draws])


def token_rule(q: jax.Array, p: jax.Array, draws: Draws) -> dict[str, Contender]:
    narrow = q.astype(jnp.bfloat16), p.astype(jnp.bfloat16)
    return {
        "textbook": contender(textbook.verify_token, q, p, draws),
        "verify_token": contender(sx.verify_token, q, p, draws),
        "verify_token, bfloat16": contender(sx.verify_token, *narrow, draws),
    }


def other_rules(q: jax.Array, p: jax.Array, draws: Draws) -> dict[str, Contender]:
    likeliest = jnp.argmax(q, axis=-1)  # what a drafter without laws says
    guesses = [(likeliest, *uniforms) for _, *uniforms in draws]
    places = jnp.broadcast_to(jnp.arange(q.shape[1]), q.shape[:2])
    seeds = [jnp.full(len(q), i) * 1000 + jnp.arange(len(q)) for i in range(len(draws))]
    shared = [sx.coupled_draw(q, jnp.broadcast_to(s[:, None], q.shape[:2]), places) for s in seeds]
    coupled = [(tokens, p, seed, jnp.int32(0)) for tokens, seed in zip(shared, seeds, strict=True)]
    return {
        "block, eager form": contender(textbook.verify_block, q, p, draws),
        "verify_block": contender(sx.verify_block, q, p, draws),
        "verify_greedy": contender(sx.verify_greedy, None, p, guesses),
        "verify_sampled": contender(sx.verify_sampled, None, p, guesses),
        "verify_coupled": Contender(sx.verify_coupled, coupled),
        "lossy, typical": contender(sx.verify_lossy_typical, q, p, draws),
        "lossy, thresholds": contender(sx.verify_lossy_thresholds, q, p, draws),
        "lossy, top-k": contender(sx.verify_lossy_top_k, q, p, draws),
        "lossy, synthetic": contender(sx.verify_lossy_synthetic, q, p, draws),
    }


def from_logits(draft: jax.Array, target: jax.Array, draws: Draws) -> dict[str, Contender]:
    softmax = jax.jit(lambda *logits: [jax.nn.softmax(x) for x in logits])
    verify_token = jax.jit(sx.verify_token)

    def apart(tokens, draft, target, *uniforms):
        return verify_token(tokens, *softmax(draft, target), *uniforms)

    q, p = sx.law_from_logits(draft), sx.law_from_logits(target)
    known_q, known_p = q.normalize(), p.normalize()
    narrow = [sx.law_from_logits(x.astype(jnp.bfloat16)) for x in (draft, target)]
    together = contender(apart, draft, target, draws)
    return {
        "softmax, then the token rule": together._replace(memory=4 * (draft.size + target.size)),
        "the same in one program": together,
        "verify_token": contender(sx.verify_token, q, p, draws),
        "verify_token, draft normalised": contender(sx.verify_token, known_q, p, draws),
        "verify_token, both normalised": contender(sx.verify_token, known_q, known_p, draws),
        "verify_token, bfloat16": contender(sx.verify_token, *narrow, draws),
        "verify_block": contender(sx.verify_block, q, p, draws),
        "verify_block, draft normalised": contender(sx.verify_block, known_q, p, draws),
    }


def compare(
    title: str, contenders: dict[str, Contender], q: jax.Array, p: jax.Array, rounds: int
) -> None:
    """Print a table."""
    floor, vocab_size = make_floor(q, p), p.shape[-1]
    compiled = side_by_side(Contender.compile, contenders.values())
    contenders = dict(zip(contenders, compiled, strict=True))
    found = measure_all({"floor": floor, **contenders}, rounds, measure, MOST_SECONDS)
    times = {name: np.median(of_name[:, :2], axis=0) for name, of_name in found.items()}
    columns = f"{'x floor':>9}{'speedup':>9}"
    print(f"\n{title:32}{'warm':>11}{columns}{'flushed':>13}{columns}{'accepted':>10}{'memory':>8}")
    first = next(iter(contenders))
    for name, of_name in times.items():
        line = f"{name:32}"
        for each, of_floor, of_first in zip(of_name, times["floor"], times[first], strict=True):
            line += f"{1e3 * each:8.3f} ms{each / of_floor:9.2f}{of_first / each:9.2f}  "
        if name in contenders:
            line += f"{found[name][:, 2].mean():8.2f}"
            line += f"{contenders[name].memory / (4 * vocab_size):8.2f}"
        print(line, flush=True)
    if "verify_block" in times:
        warm, flushed = times["verify_block"] / times["verify_token"]
        print(f"verify_block takes {warm:.2f} x verify_token warm, {flushed:.2f} x flushed")


def make_floor(q: jax.Array, p: jax.Array) -> Callable[[int], Any]:
    """A function that reads one row of both of each request."""
    rows = [np.array(x[:, 0]).reshape(-1) for x in (p, q)]
    if jax.default_backend() == "cpu":
        return lambda i: rows[0] @ rows[1]
    on_device, dot = jax.device_put(rows), jax.jit(jnp.dot)
    return lambda i: dot(*on_device)


def measure(run: Callable[[], Any]) -> tuple[float, float, float]:
    """Seconds warm and flushed, and how many tokens were accepted on average."""
    jax.block_until_ready(_read(_other_memory()))
    flushed, verdict = seconds(run), jax.block_until_ready(run())
    accepted = np.mean(verdict["num_accepted"]) if isinstance(verdict, dict) else np.nan
    return seconds(run), flushed, accepted


_read = jax.jit(jnp.sum)
_other_memory = lru_cache(lambda: jnp.ones(CACHE_FLOATS))


def mean_pairs_read(q: np.ndarray, p: np.ndarray, draws: Draws) -> np.ndarray:
    """Pairs of rows that token and block verification of a draft read."""
    return np.mean(
        [
            pairs_read(*row)
            for tokens, accept, _ in draws
            for row in zip(np.asarray(tokens), q, p, np.asarray(accept), strict=True)
        ],
        axis=0,
    )


def pairs_read(
    tokens: np.ndarray, q: np.ndarray, p: np.ndarray, accept: np.ndarray
) -> tuple[float, float]:
    """The same for one draft; a bonus row is half a pair."""
    length, i = len(tokens), np.arange(len(tokens))
    ratios = p[i, tokens] / q[i, tokens]
    of_token = 0.5 if (accept < ratios).all() else 1.0
    held = list(accumulate(ratios, lambda held, ratio: min(held * ratio, 1.0), initial=1.0))
    of_block = 0.0
    for n in range(length, -1, -1):
        if n > 0 and accept[n - 1] >= held[n]:
            continue
        if n == length:
            return of_token, 0.5
        of_block += 1
        mass = np.maximum(held[n] * p[n] - q[n], 0).sum()
        if n == 0 or held[n] == 1 or accept[n - 1] * (mass + 1 - held[n]) < mass:
            break
    return of_token, of_block


if __name__ == "__main__":
    main()
