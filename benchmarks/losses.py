"""Compare losses for the embedded draft model: `python benchmarks/losses.py build/demo`.

Drafts of the embedded pair are trained from random starts on the same texts of the target, in the
same order and for the same number of steps, with each loss and several seeds. What is compared is
the block efficiency on texts that none was trained on, by the closed forms for both rules, at
temperature 1; differences to `forward_kl` are paired by seed, with Student's 95 % interval.

The folder is that of `examples/train_demo.py`, with the target and its texts.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from machine import describe
from safetensors.numpy import load_file

import speculax as sx
from speculax.models.decoder import Decoder
from speculax.models.params import nested
from speculax.training import Schedule, losses

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import train_demo as demo

LENGTH = 8  # of the drafts that are judged
T_QUANTILE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262}  # Student's, 97.5 %
HELD_OUT = 256  # texts


def without_tokens(loss):
    return lambda wanted, given, tokens: loss(wanted, given)


LOSSES = {
    name: without_tokens(getattr(losses, name))
    for name in ("forward_kl", "reverse_kl", "total_variation", "lk", "lk_hybrid")
} | {
    f"block_efficiency, {rule}": partial(losses.block_efficiency, draft_length=LENGTH, rule=rule)
    for rule in ("token", "block")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5, choices=[n + 1 for n in T_QUANTILE])
    parser.add_argument("--journal", type=Path, help="keep results there, and go on with them")
    parser.add_argument("--only", nargs="+", choices=LOSSES, default=list(LOSSES))
    options = parser.parse_args()
    print(describe("jax", "jaxlib", "numpy", "optax", "speculax"))
    tensors = load_file(options.directory / "demo.safetensors")
    arrays = {name: jnp.asarray(x, jnp.float32) for name, x in tensors.items()}
    target = sx.Model(Decoder(demo.TARGET), nested(arrays, demo.TARGET.num_layers))
    texts = np.load(demo.texts_path(options.directory, 4096, 0))
    hidden = demo.read_texts(target, texts)
    done: dict[tuple[int, str], tuple[float, float]] = {}
    if options.journal and options.journal.exists():
        for line in options.journal.read_text().splitlines():
            steps, seed, name, *values = json.loads(line)
            if steps == options.steps:
                done[seed, name] = tuple(values)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in options.only}
    for seed in range(options.seeds):
        for name in options.only:
            if (seed, name) in done:
                results[name].append(done[seed, name])
                continue
            params = demo.train_draft(
                target,
                texts[HELD_OUT:],
                hidden[HELD_OUT:],
                LOSSES[name],
                Schedule(options.steps, learning_rate=4e-3),
                seed,
            )
            results[name].append(judge(target, params, texts[:HELD_OUT], hidden[:HELD_OUT]))
            token, block = results[name][-1]
            print(f"seed {seed}, {name}: {token:.3f} {block:.3f}", file=sys.stderr, flush=True)
            if options.journal:
                with options.journal.open("a") as file:
                    file.write(json.dumps([options.steps, seed, name, token, block]) + "\n")
    print(f"{options.steps} steps, {options.seeds} seeds, drafts of {LENGTH}: block efficiency")
    print(
        f"{'loss':<26}{'token rule':>12}{f'less {options.only[0]}':>26}{'block rule':>12}{'':>26}"
    )
    for name, values in results.items():
        line = f"{name:<26}"
        for rule in range(2):
            mine = np.array(values)[:, rule]
            gain = mine - np.array(results[options.only[0]])[:, rule]
            error = T_QUANTILE[len(gain) - 1] * gain.std(ddof=1) / np.sqrt(len(gain))
            line += f"{mine.mean():>12.3f}{f'{gain.mean():+.3f} +- {error:.3f}':>26}"
        print(line)


def judge(
    target: sx.Model, params: dict, texts: np.ndarray, hidden: np.ndarray
) -> tuple[float, float]:
    """Block efficiency under the token and the block rule, from texts of the target."""
    read = slice(demo.PROMPT - 1, -1)

    @jax.jit
    def lost(tokens: jax.Array, hidden: jax.Array) -> jax.Array:
        wanted = target.network.head(target.params, hidden[:, read].astype(jnp.float32))
        given = demo.logits_along(Decoder(demo.DRAFT), params, tokens)[:, read]
        both = [
            losses.block_efficiency(
                wanted, given, tokens[:, demo.PROMPT :], draft_length=LENGTH, rule=rule
            )
            for rule in ("token", "block")
        ]
        return jnp.stack([jnp.mean(one) for one in both])

    parts = [lost(texts[i : i + 16], hidden[i : i + 16]) for i in range(0, len(texts), 16)]
    token, block = 1 + LENGTH * (1 - np.mean(parts, axis=0))
    return float(token), float(block)


if __name__ == "__main__":
    main()
