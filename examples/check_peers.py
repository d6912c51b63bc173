"""Steps and samplers of other packages, in the form that `speculax check` takes.

    speculax check examples/check_peers.py:transformers_step --as keys --no-jit --level contract
    speculax check examples/check_peers.py:transformers_sampler --as sampler --no-jit

They take their randomness from a generator, so that their laws are tested, not their tokens.
"""

import numpy as np
import torch


def transformers_step(draft_tokens, draft_probs, target_probs, key):
    """transformers, `_speculative_sampling`: a batch of one at a time, from logits."""
    from transformers.generation.utils import _speculative_sampling

    torch.manual_seed(key)
    return _lined_up(
        draft_tokens,
        [
            _speculative_sampling(ids[None], draft.log()[None], len(ids), target.log()[None])
            for ids, draft, target in zip(
                draft_tokens.long(), draft_probs, target_probs, strict=True
            )
        ],
        lambda found: (int(found[1]), int(found[0][0, -1])),
    )


def flashspec_step(draft_tokens, draft_probs, target_probs, key):
    """flashspec, `rejection_step`: from log-probabilities."""
    from flashspec.sampling.rejection import rejection_step

    generator = torch.Generator().manual_seed(key)
    found = rejection_step(
        draft_tokens.long(), draft_probs.log(), target_probs.log(), generator=generator
    )
    return _lined_up(draft_tokens, found.tolist(), tuple)


def dflash_step(draft_tokens, draft_probs, target_probs, key):
    """dflash, `_rejection_sample`: a batch of one at a time."""
    from dflash.model import _rejection_sample

    torch.manual_seed(key)
    return _lined_up(
        draft_tokens,
        [
            _rejection_sample(ids[None], target[None], draft[None])
            for ids, draft, target in zip(
                draft_tokens.long(), draft_probs, target_probs, strict=True
            )
        ],
        lambda found: (int(found[0]), int(found[1])),
    )


def _lined_up(draft_tokens, results, read):
    """Results of rows, each (num_accepted, the token after), as a verdict."""
    tokens = np.full((len(results), draft_tokens.shape[1] + 1), -1, np.int32)
    counts = np.zeros(len(results), np.int32)
    for b, result in enumerate(results):
        counts[b], extra = read(result)
        tokens[b, : counts[b]] = draft_tokens[b, : counts[b]]
        tokens[b, counts[b]] = extra
    return {"num_accepted": counts, "tokens": tokens}


def transformers_sampler(logits, temperature, top_k, top_p, min_p, key):
    """transformers, the warpers of `generate` in their order, then `torch.multinomial`."""
    from transformers.generation import logits_process as warpers

    torch.manual_seed(key)
    ids = []
    for row, t, k, share, floor in zip(logits, temperature, top_k, top_p, min_p, strict=True):
        if t == 0:
            ids.append(int(row.argmax()))
            continue
        row = row[None]
        row = warpers.TemperatureLogitsWarper(float(t))(None, row)
        if k > 0:
            row = warpers.TopKLogitsWarper(int(k))(None, row)
        if share < 1:
            row = warpers.TopPLogitsWarper(float(share))(None, row)
        if floor > 0:
            row = warpers.MinPLogitsWarper(float(floor))(None, row)
        ids.append(int(torch.multinomial(row.softmax(-1), 1)))
    return np.array(ids, np.int32)
