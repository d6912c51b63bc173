"""The sampling step of transformers in a process of its own; started by laws.py.

In one process its threads and JAX's would disturb each other. The command line says how many rows
of float32 logits there are and how long they are. A line of standard input is a JSON object of
settings, as `generate` takes them; a line of output the tokens drawn from the rows, as a list.
"""

import json
import sys
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}


def main() -> None:
    logits = 3 * torch.randn(*map(int, sys.argv[1:]))

    def sample(settings: dict[str, Any]) -> torch.Tensor:
        warp = LogitsProcessorList(WARPERS[name](value) for name, value in settings.items())
        scores = warp(torch.empty(0), logits)
        probs = torch.nn.functional.softmax(scores, dim=-1)
        return torch.multinomial(probs, num_samples=1).squeeze(1)

    for line in sys.stdin:
        print(json.dumps(sample(json.loads(line)).tolist()), flush=True)


if __name__ == "__main__":
    main()
