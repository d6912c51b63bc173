"""Gemma 3 270M with n-gram drafts: the same text in fewer steps. Needs `speculax[all]`."""

from pathlib import Path

import speculax as sx

model = sx.load("gemma3-270m")
prompt = Path(__file__).with_name("edit_class.txt").read_text()
for drafter in (None, sx.NGram()):  # a second time, for times without compilation
    sx.generate(model, prompt, drafter=drafter, max_new_tokens=128)
plain = sx.generate(model, prompt, max_new_tokens=128)
drafted = sx.generate(model, prompt, drafter=sx.NGram(), max_new_tokens=128)
for name, result in (("plain", plain), ("n-grams", drafted)):
    stats = result.stats
    print(
        f"{name:8}{stats.steps:4} steps, {stats.tokens_per_second:6.1f} tokens a second, "
        f"block efficiency {stats.block_efficiency:.2f}"
    )
assert plain.text == drafted.text
