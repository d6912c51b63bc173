"""Functions to check, as text: one that is right at the contract level, and what is made of it."""

RIGHT = """
import jax.numpy as jnp


def verify(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
    batch, drafts = draft_tokens.shape
    b, i = jnp.arange(batch)[:, None], jnp.arange(drafts)[None]
    target, draft = target_probs[b, i, draft_tokens], draft_probs[b, i, draft_tokens]
    passed = accept_uniforms * draft < target
    n = jnp.cumprod(passed.astype(jnp.int32), axis=1).sum(axis=1)
    weights = target_probs[jnp.arange(batch), n]
    if drafts:
        row = draft_probs[jnp.arange(batch), jnp.minimum(n, drafts - 1)]
        weights = jnp.maximum(weights - jnp.where((n < drafts)[:, None], row, 0), 0)
    cumulative = jnp.cumsum(weights, axis=1)
    drawn = jnp.argmax(cumulative > sample_uniforms[:, None] * cumulative[:, -1:], axis=1)
    i = jnp.arange(drafts + 1)[None]
    tail = jnp.where(i == n[:, None], drawn[:, None], -1)
    tokens = jnp.where(i < n[:, None], jnp.pad(draft_tokens, ((0, 0), (0, 1))), tail)
    return {"num_accepted": n.astype(jnp.int32), "tokens": tokens.astype(jnp.int32)}
"""
NUMPY = RIGHT.replace("import jax.numpy as jnp", "import numpy as jnp")
TORCH = """
import torch


def verify(draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms):
    batch, drafts = draft_tokens.shape
    ids = draft_tokens.long()[..., None]
    target = target_probs[:, :drafts].gather(2, ids)[..., 0]
    draft = draft_probs.gather(2, ids)[..., 0]
    n = (accept_uniforms * draft < target).int().cumprod(1).sum(1).long()
    rows = torch.arange(batch)
    weights = target_probs[rows, n].double()
    if drafts:
        row = draft_probs[rows, n.clamp(max=drafts - 1)]
        weights = (weights - torch.where((n < drafts)[:, None], row, 0)).clamp(min=0)
    cumulative = weights.cumsum(1)
    drawn = (cumulative <= sample_uniforms[:, None] * cumulative[:, -1:]).sum(1)
    tokens = torch.full((batch, drafts + 1), -1)
    i = torch.arange(drafts + 1)[None]
    tokens = torch.where(i < n[:, None], torch.nn.functional.pad(draft_tokens, (0, 1)), tokens)
    tokens[rows, n] = drawn
    return {"num_accepted": n.int(), "tokens": tokens.int()}
"""


def changed(old, new):
    """The right function with a mistake."""
    assert RIGHT.count(old) == 1
    return RIGHT.replace(old, new)


def last_line(line):
    """The right function, but it returns something else."""
    return RIGHT[: RIGHT.index("    return {")] + f"    {line}\n"


BRANCH = last_line("return {} if n[0] > 0 else None")
RESIDUAL = "jnp.maximum(weights - jnp.where((n < drafts)[:, None], row, 0), 0)"
OF_TARGET = "target_probs[b, i, draft_tokens]"
# With the name that the mistake should be given.
NAMED = {
    "CorrectionFromTarget": changed(RESIDUAL, "weights"),
    "CountsBeyondFirstFailure": changed("jnp.cumprod(passed.astype(jnp.int32), axis=1)", "passed"),
    "AcceptsZeroMass": changed("* draft < target", "* draft <= target"),
    "TargetRowShifted": changed(OF_TARGET, OF_TARGET.replace("i,", "i + 1,")),
    "ResidualNotNormalisedToZero": changed(" * cumulative[:, -1:]", ""),
    "OneUniformForTheBatch": changed("sample_uniforms[:, None]", "sample_uniforms[:1, None]"),
    "ResampledFromDraft": changed(RESIDUAL, "jnp.where((n < drafts)[:, None], row, weights)"),
}  # fmt: skip
