"""Requests with settings of their own in one batch, handed out as their tokens are made."""

import speculax as sx

target, draft = sx.load("demo"), sx.load("demo-draft")
stream = sx.stream(
    target,
    ["class Stack:\n", "import os\n", "def mean(values):\n", "for name in names:\n"],
    drafter=sx.DraftModel(draft),
    temperature=[0.0, 0.8, 1.0, 0.7],
    top_p=[1.0, 0.95, 0.9, 1.0],
    repetition_penalty=[1.0, 1.0, 1.2, 1.0],
    max_new_tokens=[48, 32, 40, 24],
    stop=["\n\n\n"],
    seed=[0, 1, 2, 3],
    slots=2,  # two at a time: those that end make way
)
for chunk in stream:
    for new in chunk:
        if new.stop_reason:
            print(f"request {new.request} ended: {new.stop_reason}")
for result in stream.results():
    print("-" * 40, result.text, sep="\n")
assert all(result.stop_reason in ("stop", "length") for result in stream.results())
