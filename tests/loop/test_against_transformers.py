"""Settings at every position of speculative texts, against the logits processors of transformers.

It needs the `reference` dependencies: `make .venv/.ready-reference`.
"""

import numpy as np
import pytest

import speculax as sx
from tests import toy

pytestmark = pytest.mark.slow

V, NUM_NEW = 60, 40
NETWORK = toy.LongMemory(vocab_size=V)
LOGITS = toy.random_logits(NETWORK, seed=3, spread=2.0)
TARGET = toy.model(NETWORK, LOGITS)
NEAR = toy.model(NETWORK, LOGITS + 0.5 * toy.random_logits(NETWORK, seed=4))
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [9, 9, 9, 9, 40, 41]]
SETTINGS = [
    {"temperature": 1.0, "repetition_penalty": 1.5},
    {"temperature": 0.7, "repetition_penalty": 0.6, "top_k": 20},
    {"temperature": 1.4, "repetition_penalty": 1.2, "top_p": 0.8},
    {"temperature": 1.4, "logit_bias": {3: 2.5, 7: -1.5, 50: 4.0}, "min_p": 0.05},
    {"temperature": 0.9, "logit_bias": {1: -np.inf, 2: -np.inf}},
    {
        "temperature": 1.1, "repetition_penalty": 1.3, "logit_bias": {8: 1.5}, "top_k": 30,
        "top_p": 0.9, "min_p": 0.01,
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch", reason="needs the `reference` dependencies")
    return pytest.importorskip("transformers", reason="needs the `reference` dependencies")


def processors(transformers, settings):
    """In the order in which `generate` of transformers applies them."""
    makers = {
        "logit_bias": lambda bias: transformers.SequenceBiasLogitsProcessor(
            [[[token], float(value)] for token, value in bias.items()]
        ),
        "repetition_penalty": transformers.RepetitionPenaltyLogitsProcessor,
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
    }
    return transformers.LogitsProcessorList(
        make(settings[name]) for name, make in makers.items() if name in settings
    )


@pytest.mark.parametrize("drafter", [None, sx.NGram(5), sx.DraftModel(NEAR, 4)], ids=repr)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings))
def test_each_token_has_the_probability_that_transformers_gives_it(transformers, settings, drafter):
    import torch

    process = processors(transformers, settings)
    results = sx.generate(
        TARGET, PROMPTS, drafter=drafter, max_new_tokens=NUM_NEW, seed=[1, 2, 3], log_probs=0,
        **settings,
    )  # fmt: skip
    for prompt, result in zip(PROMPTS, results, strict=True):
        state, text, expected = 0, list(prompt), []
        for token in prompt:
            state = NETWORK.after(state, token)
        for token in result.tokens.tolist():
            scores = process(torch.tensor([text]), torch.from_numpy(LOGITS[state][None].copy()))
            expected.append(torch.log_softmax(scores.double(), dim=-1)[0, token].item())
            state = NETWORK.after(state, token)
            text.append(token)
        np.testing.assert_allclose(result.log_probs.sampled, expected, atol=1e-4)
    if isinstance(drafter, sx.DraftModel):  # there is little to copy
        assert sum(result.stats.accepted for result in results) > 0
