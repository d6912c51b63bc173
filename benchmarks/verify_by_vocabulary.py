"""Plot the time of a step by the size of the vocabulary, beside the textbook form and the floor.

`make pictures` draws docs/pictures/verify-by-vocabulary.svg with it. Inputs, floor and clock are
those of verify.py, "warm" and "flushed" too. It needs matplotlib.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from machine import describe
from matplotlib.figure import Figure
from timing import measure_all, side_by_side
from verify import MOST_SECONDS, Contender, contender, make_floor, make_inputs, measure

import speculax as sx
from speculax.conformance.verifier import textbook

BATCH, LENGTH = 8, 4
VOCABULARIES = (1_000, 4_000, 16_000, 32_000, 65_536, 151_936, 262_144)
# Colours that the colour-blind tell apart, and marks and lines for print without any.
STYLES = {
    "textbook": {"color": "#d55e00", "marker": "^", "linestyle": "-"},
    "verify_block": {"color": "#009e73", "marker": "s", "linestyle": "--"},
    "verify_token": {"color": "#0072b2", "marker": "o", "linestyle": "-"},
    "floor": {"color": "#000000", "marker": "", "linestyle": ":"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="where the plot goes")
    parser.add_argument("--repeats", type=int, default=31)
    arguments = parser.parse_args()
    print(describe("jax", "jaxlib", "numpy", "speculax"), f"(B, G) = {BATCH, LENGTH}", sep="\n")
    times = {size: measure_one(size, arguments.repeats) for size in VOCABULARIES}
    print(f"{'ms, warm and flushed':>22}" + "".join(f"{name:>18}" for name in STYLES))
    for size, of_size in times.items():
        columns = [f"{1e3 * warm:9.3f}{1e3 * cold:9.3f}" for warm, cold in of_size]
        print(f"{size:>22,}" + "".join(columns))
    plot(times, arguments.path)


def measure_one(vocab_size: int, rounds: int) -> np.ndarray:
    """Median seconds, warm and flushed, of each of `STYLES`."""
    draft, target, draws = make_inputs(BATCH, LENGTH, vocab_size, rounds)
    q, p = jax.nn.softmax(draft), jax.nn.softmax(target)
    forms = {
        "textbook": contender(textbook.verify_token, q, p, draws),
        "verify_block": contender(sx.verify_block, q, p, draws),
        "verify_token": contender(sx.verify_token, q, p, draws),
    }
    compiled = side_by_side(Contender.compile, forms.values())
    contenders = dict(zip(forms, compiled, strict=True)) | {"floor": make_floor(q, p)}
    found = measure_all(contenders, rounds, measure, MOST_SECONDS)
    return np.array([np.median(found[name][:, :2], axis=0) for name in STYLES])


def plot(times: dict[int, np.ndarray], path: Path) -> None:
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    warm, flushed = figure.subplots(1, 2, sharey=True)
    for place, (axes, title) in enumerate([(warm, "warm"), (flushed, "caches flushed")]):
        for number, (name, style) in enumerate(STYLES.items()):
            of_name = [1e3 * of_size[number, place] for of_size in times.values()]
            axes.plot(list(times), of_name, label=name, markersize=5, **style)
        axes.set(xscale="log", yscale="log", xlabel="vocabulary", title=title)
        axes.grid(color="0.9")
    warm.set(ylabel=f"ms a step, B = {BATCH}, G = {LENGTH}")
    warm.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
