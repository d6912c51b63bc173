"""A stub for whoever writes the acceptance step themselves, and hints, one at a time."""

from pathlib import Path

# In the order in which the step is built.
HINTS = [
    "Start from the two probabilities that a test compares. With b = jnp.arange(B)[:, None] and i "
    "= jnp.arange(G)[None], target_probs[b, i, draft_tokens] is the target's probability of each "
    "draft token, (B, G); the same of draft_probs. jnp.take_along_axis does it too.",
    "All tests at once: passed = accept_uniforms * draft < target, a boolean (B, G). Multiplying "
    "does not fail at a draft probability of 0, as dividing would; < and not <=, or a uniform of "
    "0 accepts a token that the target rules out.",
    "The first failure ends the step, but there is no if and no break on traced values. The "
    "cumulative product of 1, 1, 0, 1 is 1, 1, 0, 0: its sum is the number of tests before the "
    "first failure. num_accepted = jnp.cumprod(passed.astype(jnp.int32), axis=1).sum(axis=1).",
    "Which row does the next token come from? Row num_accepted of the target, which has G + 1 "
    "rows: target_probs[jnp.arange(B), num_accepted], (B, V). The draft has only G rows, "
    "and G may be 0: pad it by one row of zeros, jnp.pad(draft_probs, ((0, 0), (0, 1), (0, 0))), "
    "and index it the same way.",
    "The residual: where a token was refused, weights = jnp.maximum(target_row - draft_row, 0); "
    "where all were kept, weights = target_row. A draft_row of zeros where all were kept does both "
    "in one expression, without an if.",
    "Drawing from the weights by inverting their cumulative sum: the token is the first id whose "
    "cumulative weight is greater than sample_uniforms times the total. With cumulative = "
    "jnp.cumsum(weights, axis=1), that is jnp.argmax(cumulative > s * cumulative[:, -1:], "
    "axis=1): argmax of booleans is the first that is true.",
    "Lining up: with i = jnp.arange(G + 1)[None] and n = num_accepted[:, None], tokens is the "
    "draft (padded by one column) where i < n, the drawn token where i == n, and -1 beyond: two "
    "nested jnp.where. Cast to int32.",
    "Passing at level contract? Read what --level robust says: rounding leaves residuals of no "
    "mass at all, ids of -1 as padding, and a float32 cumsum over 262,144 entries that is not "
    "monotone.",
]


def stub() -> str:
    """The text of a file to fill in."""
    return Path(__file__).with_name("stub.txt").read_text(encoding="utf-8")
