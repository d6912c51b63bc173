"""Coupled sampling: a text is a function of its seed, whatever drafts and whether anything does."""

import speculax as sx

target, draft = sx.load("demo"), sx.load("demo-draft")
texts = set()
for drafter in (None, sx.NGram(7), sx.DraftModel(draft, 2), sx.DraftModel(draft, 5)):
    result = sx.generate(
        target,
        "import os\n",
        drafter=drafter,
        verify="coupled",
        temperature=0.8,
        seed=7,
        max_new_tokens=64,
        deterministic=True,  # equal bytes, not only equal up to the rounding of logits
    )
    print(f"{result.stats.steps:3} steps, {result.stats.accepted} drafts accepted")
    texts.add(result.text)
assert len(texts) == 1
