"""Laws with settings against the logits warpers of transformers, where no tokens tie.

transformers applies temperature, top-k, top-p and min-p one after the other, which is the
"sequential" order. It needs the `reference` dependencies: `make .venv/.ready-reference`.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import speculax as sx

from .expand import expand

pytestmark = pytest.mark.slow

ROWS = 6
SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.8},
    {"top_k": 1},
    {"top_k": 50},
    {"top_p": 0.9},
    {"top_p": 0.3},
    {"min_p": 0.05},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 5, "top_p": 0.99},
    {"temperature": 2.0, "top_p": 0.95, "min_p": 0.02},
]
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="needs the `reference` dependencies")
    return pytest.importorskip("transformers", reason="needs the `reference` dependencies")


def warped(transformers, logits, temperature=None, top_k=None, top_p=None, min_p=None):
    """Their law, in the order in which `generate` applies the warpers; float32 (R, V)."""
    import torch

    warpers = []
    if temperature is not None:
        warpers.append(transformers.TemperatureLogitsWarper(temperature))
    if top_k is not None:
        warpers.append(transformers.TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(transformers.TopPLogitsWarper(top_p))
    if min_p is not None:
        warpers.append(transformers.MinPLogitsWarper(min_p))
    scores = torch.from_numpy(logits.copy())
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores, dim=-1).numpy()


def logits_without_ties(size):
    """Peaked, plain and flat rows; a permutation of distinct numbers each."""
    rng = np.random.default_rng([70, size])
    spread = np.array([4, 2, 1, 0.3, 8, 0.02])[:, None]
    logits = (spread * rng.standard_normal((ROWS, size))).astype(np.float32)
    for row in logits:
        while len(distinct := np.unique(row)) < size:
            again = size - len(distinct)
            row[:] = rng.permutation(np.append(distinct, rng.uniform(row.min(), 0, again)))
    return logits


@pytest.mark.parametrize("size", [65, 5000, 151_936])
def test_same_law_as_the_warpers(transformers, size):
    """The same tokens and the same masses.

    They add up masses in float32 one by one: of 151,936 tokens, top-p may keep one more or less.
    """
    logits = logits_without_ties(size)
    for settings in SETTINGS:
        theirs = warped(transformers, logits, **settings)
        given = {name: jnp.full(ROWS, x) for name, x in {**NEUTRAL, **settings}.items()}
        ours = np.asarray(expand(sx.law_from_logits(logits, **given)))
        at_most = 1 if "top_p" in settings and size > 100_000 else 0
        for r in range(ROWS):
            kept = ours[r] > 1e-30, theirs[r] > 1e-30
            assert (kept[0] != kept[1]).sum() <= at_most, f"{settings}, row {r}"
            both = kept[0] & kept[1]
            rtol = 1e-4 if at_most else 2e-5
            np.testing.assert_allclose(ours[r][both], theirs[r][both], rtol)
