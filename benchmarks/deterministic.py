"""Gemma 3 270M at one width, and many requests: `make bench-deterministic`.

- bytes: texts and the log-probabilities behind them, with n-gram drafts of each length and without,
  must be the same bytes; with a floating width they are not.
- cost: what the fixed width costs plain decoding.
- rows: requests in rows of a batch against one after another, prefill included.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from machine import describe

import speculax as sx
from speculax.prompt_file import first_of_each, read_prompts

OPEN_ENDED = Path(__file__).parent / "prompts" / "open_ended.jsonl"
PARTS = ("bytes", "cost", "rows")
DRAFT_LENGTHS = range(1, 8)
MAX_LENGTH = 1024  # of prompt and text; the same for all runs, or they need not be the same bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, default=OPEN_ENDED, help="JSON lines")
    parser.add_argument("--per-category", type=int, default=4, help="prompts of each category")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    print(describe("jax", "jaxlib", "numpy", "speculax"))
    model = sx.load("gemma3-270m")
    if "bytes" in options.parts:
        chosen = first_of_each(read_prompts(options.prompts), options.per_category)
        compare_bytes(model, [prompt.text for prompt in chosen], options.new_tokens)
    texts = [prompt.text for prompt in read_prompts(OPEN_ENDED)]
    if "cost" in options.parts:
        compare_cost(model, texts, options.repeats)
    if "rows" in options.parts:
        compare_rows(model, texts, options.repeats)


def compare_bytes(model: sx.Model, prompts: Sequence[str], num_new: int) -> None:
    """Print how many texts are the same bytes as those of plain decoding."""
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]

    def run(draft_length: int, rows: int, temperature: float, width: bool) -> list[bytes]:
        """Tokens, text and log-probabilities of each prompt."""
        results = sx.generate(
            model,
            ids,
            drafter=sx.NGram(draft_length) if draft_length else None,
            verify="coupled",
            temperature=temperature,
            seed=range(len(ids)),
            max_new_tokens=num_new,
            max_length=MAX_LENGTH,
            eos_ids=(),
            slots=rows,
            deterministic=width,
            log_probs=0,
        )
        counts = [sum(getattr(r.stats, name) for r in results) for name in ("drafted", "accepted")]
        print(f"{counts[0]:7} drafted, {counts[1]:6} accepted", end="", flush=True)
        return [r.tokens.tobytes() + r.text.encode() + r.log_probs.model.tobytes() for r in results]

    print(f"\n{len(ids)} prompts, {num_new} new tokens: same bytes as without drafts")
    print("of tokens, text and log-probabilities, under coupled verification")
    total = same = 0
    for rows in (1, 4):
        for temperature in (0.0, 0.8):
            print(f"{rows} rows, temperature {temperature}, plain   ", end="")
            plain = run(0, rows, temperature, True)
            print()
            for draft_length in DRAFT_LENGTHS:
                print(f"{rows} rows, temperature {temperature}, drafts {draft_length}", end="")
                other = run(draft_length, rows, temperature, True)
                equal = sum(one == two for one, two in zip(plain, other, strict=True))
                print(f", {equal} of {len(plain)} the same", flush=True)
                total, same = total + len(plain), same + equal
    print(f"in all {same} of {total}")
    print("control, floating width, 1 row, temperature 0.8, drafts 7", end="")
    plain, other = run(0, 1, 0.8, False), run(7, 1, 0.8, False)
    equal = sum(one == two for one, two in zip(plain, other, strict=True))
    print(f", {equal} of {len(plain)} the same", flush=True)


def interleaved(ways: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of what each returns, in turn; the first round compiles and does not count."""
    measures = {name: [] for name in ways}
    for i in range(repeats + 1):
        for name, measure in ways.items():
            measured = measure()
            if i:
                measures[name].append(measured)
    return {name: float(np.median(some)) for name, some in measures.items()}


def run_plain(
    model: sx.Model, prompts: Sequence[str], rows: int, is_fixed: bool
) -> list[sx.Generation]:
    """Continue each prompt by 64 tokens without drafts."""
    return sx.generate(
        model,
        list(prompts),
        temperature=0.8,
        seed=1,
        max_new_tokens=64,
        max_length=200,
        eos_ids=(),
        slots=rows,
        deterministic=is_fixed,
    )


def compare_cost(model: sx.Model, prompts: Sequence[str], repeats: int) -> None:
    """Print the time of a plain step at one width over that of an ordinary one."""
    for rows in (1, 4):

        def step_seconds(is_fixed: bool, rows: int = rows) -> float:
            results = run_plain(model, prompts[:rows], rows, is_fixed)
            return max(r.stats.decode_seconds / r.stats.steps for r in results)

        seconds = interleaved(
            {"ordinary": lambda: step_seconds(False), "fixed": lambda: step_seconds(True)}, repeats
        )
        print(
            f"\nplain step, {rows} rows: ordinary {1000 * seconds['ordinary']:.1f} ms, "
            f"8 wide {1000 * seconds['fixed']:.1f} ms, "
            f"{seconds['fixed'] / seconds['ordinary']:.2f} x",
            flush=True,
        )


def compare_rows(model: sx.Model, prompts: Sequence[str], repeats: int) -> None:
    """Print tokens per second of many requests, by the rows that they share."""

    def tokens_per_second(rows: int) -> float:
        start = time.perf_counter()
        results = run_plain(model, [prompt for prompt in prompts for _ in range(2)], rows, False)
        return sum(len(r.tokens) for r in results) / (time.perf_counter() - start)

    rates = interleaved(
        {str(rows): lambda rows=rows: tokens_per_second(rows) for rows in (1, 4, 8)}, repeats
    )
    print(f"\n{2 * len(prompts)} requests, 64 tokens each, plain, prefill included")
    for rows, rate in rates.items():
        print(f"{rows} rows: {rate:6.1f} tok/s, {rate / rates['1']:.2f} x", flush=True)


if __name__ == "__main__":
    main()
