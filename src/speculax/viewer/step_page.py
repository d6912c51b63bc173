"""One step to play with: laws and uniforms to move, tests, residual and draw to watch."""

import html
from typing import Any

import numpy as np

from speculax.viewer.template import make_page


def step_page(
    draft_tokens: Any,
    draft_probs: Any,
    target_probs: Any,
    accept_uniforms: Any,
    sample_uniform: float,
    *,
    rule: str = "token",
) -> str:
    """A page that begins with a step and shows what follows when any of it is moved.

    Args:
        draft_tokens: int (G,).
        draft_probs: floating (G, V), of few tokens: each has a slider.
        target_probs: floating (G+1, V).
        accept_uniforms: floating (G,).
        sample_uniform: A number in [0, 1).
        rule: "token" or "block", to begin with.
    """
    case = {
        "tokens": np.asarray(draft_tokens).tolist(),
        "draft": np.asarray(draft_probs, float).tolist(),
        "target": np.asarray(target_probs, float).tolist(),
        "accept": np.asarray(accept_uniforms, float).tolist(),
        "sample": float(sample_uniform),
        "rule": rule,
    }
    told = ", ".join(f"{name}: {value}" for name, value in case.items())
    title = "One step of speculative decoding"
    return make_page("step", title, case, {"<!--CASE-->": html.escape(told)})
