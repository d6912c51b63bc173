"""A verification rule of one's own, in one function: checked, compared and used.

Token verification draws a uniform for each draft token. One for the whole draft is enough: keep
the first n tokens while it lies below the product of their acceptance probabilities. Token i, if
those before it were kept, is then kept with probability min(1, target / draft), as it should be.
Below it is the version that comes to mind first, and it is wrong.
"""

import jax
import jax.numpy as jnp

import speculax as sx
from speculax.conformance.check import check


def verify_one_uniform(
    draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, *, draft_lengths=None
):
    """One uniform a row for all tests. Lossless."""
    ratios = _ratios(draft_tokens, draft_probs, target_probs)
    kept = accept_uniforms[:, :1] < jnp.cumprod(jnp.minimum(ratios, 1), axis=1)
    return _finish(kept, draft_tokens, draft_probs, target_probs, sample_uniforms, draft_lengths)


def verify_same_uniform(
    draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, *, draft_lengths=None
):
    """The same uniform for each test, as it is. Wrong: tokens are kept together too often."""
    ratios = _ratios(draft_tokens, draft_probs, target_probs)
    kept = jnp.cumprod(accept_uniforms[:, :1] < ratios, axis=1)
    return _finish(kept, draft_tokens, draft_probs, target_probs, sample_uniforms, draft_lengths)


def _ratios(draft_tokens, draft_probs, target_probs):
    """target(x) / draft(x) of each draft token; a draft without laws is certain of its tokens."""
    ids = jnp.clip(draft_tokens, 0, target_probs.shape[2] - 1)[..., None]
    target = jnp.take_along_axis(target_probs[:, : ids.shape[1]], ids, axis=2)[..., 0]
    draft = 1.0
    if draft_probs is not None:
        draft = jnp.take_along_axis(draft_probs, ids, axis=2)[..., 0]
    # Nothing that the target rules out, and no padding.
    return jnp.where((target > 0) & (ids[..., 0] == draft_tokens), target / draft, 0)


def _finish(kept, draft_tokens, draft_probs, target_probs, sample_uniforms, draft_lengths):
    """Count what is kept, and draw one more from the residual, or from the last row."""
    batch, length = draft_tokens.shape
    lengths = jnp.full(batch, length) if draft_lengths is None else draft_lengths
    place = jnp.arange(length + 1)[None]
    num_accepted = jnp.sum(kept & (place[:, :length] < lengths[:, None]), axis=1)

    if draft_probs is None:
        draft_probs = jax.nn.one_hot(draft_tokens, target_probs.shape[2])
    rows, refused = jnp.arange(batch), (num_accepted < lengths)[:, None]
    draft_row = jnp.pad(draft_probs, ((0, 0), (0, 1), (0, 0)))[rows, num_accepted]
    target_row = target_probs[rows, num_accepted]
    residual = jnp.maximum(target_row - jnp.where(refused, draft_row, 0), 0)
    has_mass = jnp.any(residual > 0, axis=1, keepdims=True)  # or rounding has left none
    drawn = sx.sample(jnp.where(has_mass, residual, target_row), sample_uniforms)

    tokens = jnp.pad(draft_tokens, ((0, 0), (0, 1)))
    tokens = jnp.where(place < num_accepted[:, None], tokens, -1)
    tokens = jnp.where(place == num_accepted[:, None], drawn[:, None], tokens)
    return {"num_accepted": num_accepted, "tokens": tokens}


def main() -> None:
    for rule in (verify_one_uniform, verify_same_uniform):
        report = check(f"{__file__}:{rule.__name__}", kind="rule")
        stages = {stage.name: "ok" if stage.passed else "FAILS" for stage in report.stages}
        print(f"{rule.__name__}: {stages}")
        assert report.passed == (rule is verify_one_uniform)

    target, drafter = sx.load("demo"), sx.DraftModel(sx.load("demo-draft"), 4)
    for rule in ("token", verify_one_uniform):
        texts = sx.generate(
            target,
            ["import os\n"] * 32,
            drafter=drafter,
            verify=rule,
            temperature=1.0,
            seed=list(range(32)),
            max_new_tokens=64,
            slots=32,
        )
        name = rule if isinstance(rule, str) else rule.__name__
        made, steps = (sum(getattr(one.stats, of) for one in texts) for of in ("emitted", "steps"))
        print(f"{name}: {made / steps:.2f} tokens a step")


if __name__ == "__main__":
    main()
