"""Time Gemma 3 270M plain, with n-grams, and in transformers: `make bench-generate`.

Each prompt is continued by 128 tokens. Contenders run in random order, interleaved; a time is that
of decoding after prefill, compilation apart, and a prompt's time is the median of its repeats.
"""

import argparse
import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from machine import describe

import speculax as sx
from speculax.prompt_file import first_of_each, read_prompts

PROMPTS = Path(__file__).parent / "prompts"
EDIT_CLASS = Path(__file__).parents[1] / "examples" / "edit_class.txt"
Contender = Callable[[list[int]], tuple[float, list[int]]]  # seconds and new tokens
COPY_HEAVY = (
    EDIT_CLASS,
    PROMPTS / "edit_json.txt",
    PROMPTS / "rewrite_html.txt",
    PROMPTS / "quote_article.txt",
)
PARTS = ("copy", "shared", "open", "slots", "memory")
NEW_TOKENS = 128
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shared", type=Path, help="Spec-Bench prompts, JSON lines")
    parser.add_argument("--per-category", type=int, default=1, help="prompts of each category")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    print(describe("jax", "jaxlib", "numpy", "speculax"))
    model = sx.load("gemma3-270m")
    bench = Bench(model, options.repeats)
    others = {} if options.no_transformers else transformers_contenders()
    if "copy" in options.parts:
        prompts = {path.stem: path.read_text() for path in COPY_HEAVY}
        bench.compare("copy-heavy, greedy", prompts, 0.0, others)
    if "shared" in options.parts and options.shared:
        chosen = first_of_each(read_prompts(options.shared), options.per_category)
        prompts = {f"{prompt.category} {prompt.id}": prompt.text for prompt in chosen}
        bench.compare("Spec-Bench, greedy", prompts, 0.0, others)
    if "open" in options.parts:
        prompts = {
            f"open {prompt.id}": prompt.text
            for prompt in read_prompts(PROMPTS / "open_ended.jsonl")
        }
        bench.compare("open-ended, temperature 0.8", prompts, 0.8)
    if "slots" in options.parts:
        compare_slots(model, options.repeats)
    if "memory" in options.parts:
        report_memory()


class Bench:
    """Compares ways of continuing the same prompts."""

    def __init__(self, model: sx.Model, repeats: int) -> None:
        self.model, self.repeats, self.order = model, repeats, random.Random(SEED)
        self.last_stats: dict[str, sx.Stats] = {}

    def compare(
        self,
        title: str,
        prompts: dict[str, str],
        temperature: float,
        others: dict[str, Contender] | None = None,
    ) -> None:
        """Print speedups over plain decoding, by prompt and in the median."""
        contenders = {
            "plain": lambda ids: self.run(ids, None, temperature),
            "n-gram": lambda ids: self.run(ids, sx.NGram(), temperature),
            **(others or {}),
        }
        speedups, host, efficiency = defaultdict(list), [], []
        print(f"\n{title}\n{'':22}" + "".join(f"{name:>26}" for name in contenders))
        for name, text in prompts.items():
            ids = self.model.tokenizer.encode(text)
            seconds, tokens = self.time(contenders, ids)
            line = f"{name:22}"
            for contender, times in seconds.items():
                rate = len(tokens[contender]) / np.median(times)
                plain_rate = len(tokens["plain"]) / np.median(seconds["plain"])
                speedups[contender].append(rate / plain_rate)
                line += f"{rate:12.1f} tok/s {rate / plain_rate:5.2f} x"
            stats = self.last_stats
            host.append(max(s.host_seconds / s.decode_seconds for s in stats.values()))
            efficiency.append(stats["n-gram"].block_efficiency)
            line += f"   block efficiency {efficiency[-1]:5.2f}, acceptance "
            line += f"{stats['n-gram'].acceptance_rate:4.2f}, host {100 * host[-1]:.1f} %"
            if temperature == 0:
                line += ", " + self.difference(ids, tokens["plain"], tokens["n-gram"])
            print(line, flush=True)
        print(
            f"{'median':22}" + "".join(f"{'':18}{np.median(s):6.2f} x" for s in speedups.values())
        )

    def run(
        self, ids: list[int], drafter: sx.Drafter | None, temperature: float
    ) -> tuple[float, list[int]]:
        result = sx.generate(
            self.model,
            ids,
            drafter=drafter,
            temperature=temperature,
            max_new_tokens=NEW_TOKENS,
            seed=SEED,
        )
        self.last_stats["plain" if drafter is None else "n-gram"] = result.stats
        return result.stats.decode_seconds, result.tokens.tolist()

    def time(
        self, contenders: dict[str, Contender], ids: list[int]
    ) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
        """Seconds of each contender, in random order, and its tokens."""
        seconds, tokens = defaultdict(list), {}
        for _ in range(self.repeats):
            for name in self.order.sample(list(contenders), len(contenders)):
                taken, tokens[name] = contenders[name](ids)
                seconds[name].append(taken)
        return {name: seconds[name] for name in contenders}, tokens

    def difference(self, ids: list[int], plain: list[int], other: list[int]) -> str:
        """Whether two texts are equal; else how close the logits are where they part."""
        pairs = zip(plain, other, strict=False)
        first = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        if first is None:
            return "same text" if len(plain) == len(other) else "OTHER LENGTH"
        logits = self.model.logits(np.array([ids + plain[:first]]))[0, -1]
        gap = abs(float(logits[plain[first]] - logits[other[first]]))
        return f"parts at token {first}, logits {gap:.1e} apart{'' if gap <= 1e-3 else ', NO TIE'}"


def transformers_contenders() -> dict[str, Contender]:
    """Greedy decoding and prompt lookup in transformers, with the same weights in float32."""
    print(describe("torch", "transformers"))
    worker = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("transformers_worker.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def run(ids: list[int], **settings: int) -> tuple[float, list[int]]:
        request = {"ids": ids, "settings": {"max_new_tokens": NEW_TOKENS, **settings}}
        print(json.dumps(request), file=worker.stdin, flush=True)
        seconds, tokens = json.loads(worker.stdout.readline())
        return seconds, tokens

    return {
        "transformers": run,
        "transformers lookup": lambda ids: run(ids, prompt_lookup_num_tokens=10),
    }


def compare_slots(model: sx.Model, repeats: int) -> None:
    """Print how much slower plain decoding is with many cache slots; they need not be filled."""
    times = defaultdict(list)
    for i in range(repeats + 1):
        for slots in (512, 4096):
            # Room for new tokens makes the slots; the text ends after NEW_TOKENS of them.
            run = sx.stream(model, [2, 3, 4], max_new_tokens=slots - 200, eos_ids=())
            for _ in run:
                stats = run.results()[0].stats
                if stats.emitted >= NEW_TOKENS:
                    break
            if i:  # the first compiles
                times[slots].append(stats.tokens_per_second)
    few, many = (float(np.median(times[slots])) for slots in (512, 4096))
    print(
        f"\nplain decoding: {few:.1f} tok/s with 512 slots, {many:.1f} with 4,096: "
        f"{few / many:.2f} x the time"
    )


MEMORY_SCRIPT = """
import pathlib, re, sys
import jax
import speculax as sx
model = sx.load("gemma3-270m")
result = sx.generate(model, sys.argv[1], drafter=sx.NGram(), max_new_tokens=128)
weights = sum(x.nbytes for x in jax.tree.leaves(model.params))
status = pathlib.Path("/proc/self/status").read_text()  # getrusage starts at the parent's peak
print(weights, 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]))
"""


def report_memory() -> None:
    """Print the peak memory of a process that loads a converted model and generates."""
    prompt = EDIT_CLASS.read_text()
    output = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, prompt], check=True, capture_output=True, text=True
    ).stdout
    weights, peak = map(int, output.split())
    print(
        f"\npeak memory {peak / 1e9:.2f} GB, of which weights {weights / 1e9:.2f} GB, "
        f"all else {(peak - weights) / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
