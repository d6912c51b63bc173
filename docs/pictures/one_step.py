"""Draw one-step.svg, a step of token verification, from what the library and its oracle give."""

from pathlib import Path

import numpy as np

import speculax as sx
from speculax.conformance.verifier.examples import EXAMPLES
from speculax.conformance.verifier.oracle import plan

WIDTH, HEIGHT, FLOOR = 760, 336, 280
MINUS = "\u2212"
INK, GREEN, RED = "#222", "#176f2c", "#b3261e"
TARGET, DRAFT, RESIDUAL, PALE = "#7aa6d8", "#d9a25f", "#8a6fc0", "#c9b8ea"


def draw() -> str:
    """The picture of the contract's first example."""
    arguments, _ = EXAMPLES[0]
    verdict = sx.verify_token(*arguments[:5])
    tokens = np.asarray(verdict["tokens"])[0].tolist()
    ids, draft, target, accept, sample, _ = arguments.take(0)
    n, weights = plan(ids, draft, target, accept)
    assert n == verdict["num_accepted"][0] < len(ids)  # the picture has a residual
    residual = np.array([float(x) for x in weights])

    parts = [text(20, 29, "draft tokens", bold=True)]
    for i, x in enumerate(ids):
        fill = "#d8f0dc" if i < n else "#f8d7d3"
        parts.append(box(130 + 56 * i, 10, 46, 28, fill, outlined=True))
        parts.append(text(153 + 56 * i, 29, str(x), anchor="middle"))
    for i, x in enumerate(ids[: n + 1]):
        passes = i < n
        end = f"passes, {x} is kept" if passes else f"fails, the step ends with n = {n}"
        ratio = f"target({x}) / draft({x}) = {target[i, x]:.2f} / {draft[i, x]:.2f}"
        test = f"u = {accept[i]:.2f} {'&lt;' if passes else '≥'} {ratio}: {end}"
        parts.append(text(20, 66 + 26 * i, f"test {i}", bold=True))
        parts.append(text(130, 66 + 26 * i, test, color=GREEN if passes else RED))
    parts += bars(20, f"target, row {n}", target[n], TARGET, scale=180)
    parts.append(text(205, 215, MINUS, size=22, anchor="middle"))
    parts += bars(225, f"draft, row {n}", draft[n], DRAFT, scale=180)
    parts.append(text(410, 215, "→", size=22, anchor="middle"))
    parts += bars(432, "residual, from 0 up", residual, RESIDUAL, scale=500, width=26)
    parts += pile(610, residual, float(sample), tokens[n])
    result = ", ".join(map(str, tokens)).replace("-", MINUS)
    parts.append(text(20, 324, f"result: num_accepted {n}, tokens {result}", bold=True))
    title = "One step: draft tokens are tested in order; after a failure the residual gives a token"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="t" '
            'font-family="sans-serif">',
            f'<title id="t">{title}</title>',
            box(0, 0, WIDTH, HEIGHT, "#fff"),
            *parts,
            "</svg>\n",
        ]
    )


def bars(
    left: int, title: str, row: np.ndarray, color: str, *, scale: int, width: int = 32
) -> list[str]:
    """A law as bars over their token ids."""
    step = width + width * 3 // 8
    parts = [text(left, 125, title, bold=True)]
    for i, value in enumerate(row):
        x, height = left + step * i, scale * value
        label = f"{value:.2f}".removeprefix("0") if value > 0 else "0"
        parts.append(box(x, FLOOR - height, width, height, color))
        parts.append(text(x + width / 2, FLOOR - 5 - height, label, size=12, anchor="middle"))
        parts.append(text(x + width / 2, FLOOR + 16, str(i), anchor="middle"))
    return [*parts, line(left - 6, FLOOR, left + step * len(row))]


def pile(left: int, weights: np.ndarray, uniform: float, drawn: int) -> list[str]:
    """Weights on top of each other, and where the uniform hits them."""
    height = 140
    parts = [text(left - 10, 125, "cumulative", bold=True)]
    ends = FLOOR - height * np.cumsum(weights) / weights.sum()
    for token, (top, bottom) in enumerate(zip(ends, [FLOOR, *ends], strict=False)):
        if bottom > top:
            color = RESIDUAL if token == drawn else PALE
            parts.append(box(left, top, 40, bottom - top, color, outlined=True))
            parts.append(text(left + 20, (top + bottom) / 2 + 5, str(token), anchor="middle"))
    at = FLOOR - height * uniform
    parts.append(line(left - 10, at, left + 54, color=RED, width=2))
    parts.append(text(left + 60, at + 5, f"s = {uniform:.2f}", color=RED))
    return [*parts, text(left + 60, at + 24, f"draws {drawn}", color=RED)]


def text(
    x: float,
    y: float,
    content: str,
    *,
    color: str = INK,
    size: int = 14,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    """Words, from, around or up to a point of their base line."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" font-size="{size}"'
        f"{weight}>{content}</text>"
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, *, outlined: bool = False
) -> str:
    """A filled rectangle."""
    stroke = ' stroke="#555"' if outlined else ""
    size = f'width="{width:g}" height="{height:.1f}"'
    return f'<rect x="{x:g}" y="{y:.1f}" {size} fill="{fill}"{stroke}/>'


def line(left: float, y: float, right: float, *, color: str = "#555", width: int = 1) -> str:
    """A line from left to right."""
    ends = f'x1="{left:g}" y1="{y:.1f}" x2="{right:g}" y2="{y:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}"/>'


if __name__ == "__main__":
    Path(__file__).with_name("one-step.svg").write_text(draw(), "utf-8")
