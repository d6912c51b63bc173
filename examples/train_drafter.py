"""Train a drafter for Gemma 3 270M on this machine, from texts that the model itself writes.

    python examples/train_drafter.py build/drafter

writes the drafter to `build/drafter/drafter.safetensors`, which `RecurrentHead.load` reads, and
reports what it is worth. To see that it runs, add `--texts 64 --steps 4 --batch 2 --repeats 1`;
the whole takes about an hour and a half on two cores, and goes on where it was broken off.
The drafter is a recurrent head on the hidden states of Gemma with a reduced vocabulary
(`speculax.RecurrentHead`).

Nothing of it is part of this repository: under the Gemma Terms of Use a model trained on Gemma's
outputs to imitate it is a Model Derivative, and those who pass one on must pass on the terms.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import speculax as sx
from speculax.drafters.recurrent import advance_hidden, init_params
from speculax.models.model import hidden_states
from speculax.training import Schedule, fit, losses

LENGTH, AT_ONCE = 160, 64  # tokens of a text, and texts that are sampled together
UNROLL = 3  # steps of the head that are trained, from each start
STARTS = 52  # places in a text from which a batch trains: more texts teach more than more places
INNER, NUM_LAYERS = 1024, 2
TEMPERATURE = 0.8  # the head is trained for texts at this temperature
PROMPTS = Path(__file__).parents[1] / "benchmarks" / "prompts" / "open_ended.jsonl"


def sample_texts(target: sx.Model, num: int, path: Path, first_seed: int) -> np.ndarray:
    """Texts of the target from nothing, int32 (num, LENGTH), BOS included."""
    done = list(np.load(path)) if path.exists() else []
    start = target.tokenizer.encode("")
    while len(done) < num:
        results = sx.generate(
            target,
            [start] * AT_ONCE,
            slots=AT_ONCE,
            max_new_tokens=LENGTH - len(start),
            temperature=TEMPERATURE,
            seed=range(first_seed + len(done), first_seed + len(done) + AT_ONCE),
            eos_ids=(),
        )
        done += [np.append(start, result.tokens).astype(np.int32) for result in results]
        np.save(path, np.stack(done))
        print(f"sampled {len(done)} of {num} texts", file=sys.stderr)
    return np.stack(done)[:num]


def read_hidden(target: sx.Model, texts: np.ndarray, path: Path) -> np.ndarray:
    """The target's hidden states along the texts, float16 (num, LENGTH, D)."""
    if path.exists():
        return np.load(path)

    @jax.jit
    def read(tokens: jax.Array) -> jax.Array:
        hidden = hidden_states(target.network, target.params, tokens)
        scale = jax.lax.rsqrt(jnp.mean(hidden * hidden, axis=-1, keepdims=True) + 1e-6)
        return (hidden * scale).astype(jnp.float16)  # the head is blind to their length

    parts = [read(jnp.asarray(texts[i : i + AT_ONCE])) for i in range(0, len(texts), AT_ONCE)]
    hidden = np.concatenate([np.asarray(part) for part in parts])
    np.save(path, hidden)
    return hidden


def choose_vocabulary(texts: np.ndarray, size: int) -> np.ndarray:
    """The tokens that the texts have most often; then those of the lowest ids, which are short."""
    ids, counts = np.unique(texts[:, 1:], return_counts=True)
    often = ids[np.argsort(-counts, kind="stable")]
    rest = np.setdiff1d(np.arange(size), often)
    return np.concatenate([often, rest])[:size].astype(np.int32)


def make_loss(target: sx.Model, head: dict) -> Callable[[dict, tuple], jax.Array]:
    """The mean loss of UNROLL steps of the head from some positions of a batch of texts.

    The laws are those over the reduced vocabulary, renormalised, at the texts' temperature.
    """
    network = target.network

    def loss(params: dict, batch: tuple) -> jax.Array:
        tokens, hidden, starts = batch
        hidden = hidden.astype(jnp.float32)

        def hidden_at(places: jax.Array) -> jax.Array:
            return jnp.take_along_axis(hidden, places[..., None], axis=1)

        state, total = hidden_at(starts), 0.0
        for step in range(1, UNROLL + 1):
            read = jnp.take_along_axis(tokens, starts + step, axis=1)
            state = advance_hidden(params, state, network.embed(target.params, read))
            total += jnp.mean(
                losses.lk_hybrid(
                    network.head(head, hidden_at(starts + step)) / TEMPERATURE,
                    network.head(head, state) / TEMPERATURE,
                )
            )
        return total / UNROLL

    return loss


def train(target: sx.Model, options: argparse.Namespace) -> sx.RecurrentHead:
    directory = options.directory
    texts = sample_texts(
        target, options.texts, directory / f"texts-{options.seed}.npy", 10**6 * options.seed
    )
    hidden = read_hidden(target, texts, directory / f"hidden-{options.texts}-{options.seed}.npy")
    ids = choose_vocabulary(texts, options.vocabulary)
    head = target.network.small_head(target.params, jnp.asarray(ids))

    def batch_of(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        random = np.random.default_rng([options.seed, i])
        picks = random.integers(0, len(texts), options.batch)
        places = np.arange(LENGTH - UNROLL, dtype=np.int32)
        starts = np.stack([random.permutation(places)[:STARTS] for _ in picks])
        return texts[picks], hidden[picks], starts

    result = fit(
        make_loss(target, head),
        init_params(jax.random.key(options.seed), hidden.shape[-1], INNER, NUM_LAYERS),
        batch_of,
        Schedule(options.steps, learning_rate=2e-3, weight_decay=0.02),
        directory=directory,
        save_every=500,
        about=f"{options.model}: {options.texts} texts, {options.vocabulary} tokens, batches of "
        f"{options.batch}, seed {options.seed}",
    )
    drafter = sx.RecurrentHead.create(target, result.params, ids)
    drafter.save(directory / "drafter.safetensors")
    return drafter


def report(target: sx.Model, drafter: sx.RecurrentHead, repeats: int) -> None:
    """Acceptance, tokens a step and speed on prompts that it was not trained on."""
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    ways: dict[str, tuple[sx.Drafter | None, str]] = {
        "plain": (None, "token"),
        "n-gram": (sx.NGram(), "token"),
    }
    for length in (1, 2, 3):
        head = replace(drafter, draft_length=length)
        ways |= {f"head, {length}, {rule}": (head, rule) for rule in ("token", "block")}

    def run(name: str, prompt: str, temperature: float, seed: int) -> sx.Stats:
        way, rule = ways[name]
        return sx.generate(
            target,
            prompt,
            drafter=way,
            verify=rule,
            max_new_tokens=64,
            temperature=temperature,
            seed=seed,
            eos_ids=(),
        ).stats

    for temperature in (0.0, TEMPERATURE, 1.0):
        for name in ways:
            run(name, prompts[0], temperature, 0)  # compiles
        times: dict[str, list[float]] = {name: [] for name in ways}
        counts = {name: np.zeros(4) for name in ways}
        for seed in range(repeats):
            for prompt in prompts:
                for name in random.sample(list(ways), len(ways)):
                    stats = run(name, prompt, temperature, seed)
                    times[name].append(stats.decode_seconds / stats.emitted)
                    counts[name] += stats.drafted, stats.accepted, stats.emitted, stats.steps
        print(f"temperature {temperature}: acceptance, tokens a step, speed-up in all, its median")
        for name in ways:
            drafted, accepted, emitted, steps = counts[name]
            ratios = np.array(times["plain"]) / times[name]
            print(
                f"  {name:<14} {accepted / max(drafted, 1):.3f} {emitted / steps:.2f} "
                f"{sum(times['plain']) / sum(times[name]):.2f} {np.median(ratios):.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="for the drafter, and what is made on the way")
    parser.add_argument("--texts", type=int, default=2560, help="sampled to train on")
    parser.add_argument("--vocabulary", type=int, default=12_288, help="tokens that it can propose")
    parser.add_argument("--batch", type=int, default=8, help="texts of an update")
    parser.add_argument("--steps", type=int, default=8000, help="updates")
    parser.add_argument(
        "--seed", type=int, default=0, help="of texts, batches and the first parameters"
    )
    parser.add_argument("--repeats", type=int, default=2, help="seeds of the report")
    parser.add_argument("--model", default="gemma3-270m", help="the target, as for speculax.load")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    target = sx.load(options.model)
    report(target, train(target, options), options.repeats)


if __name__ == "__main__":
    main()
