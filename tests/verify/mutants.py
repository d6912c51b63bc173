"""Verifiers that are wrong on purpose, most of them named after a fault that was seen in public.

A test that has never been seen to fail proves nothing: `test_law` and `test_edges` must refuse
every one of these. `TokenRule` and `GreedyRule` are right and must pass, so that refusing is worth
something; a mutant replaces one of their parts. NumPy, float64, same signature as the verifiers.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from .oracle import LARGEST


class Rule:
    """The skeleton: read the arguments, count the accepted tokens, choose the next one."""

    def __call__(
        self,
        draft_tokens,
        draft_probs,
        target_probs,
        accept_uniforms,
        sample_uniforms,
        *,
        draft_lengths=None,
    ):
        with np.errstate(all="ignore"):
            a = self.read(
                draft_tokens,
                draft_probs,
                target_probs,
                accept_uniforms,
                sample_uniforms,
                draft_lengths,
            )
            n = self.count(a, self.passes(a))
            extra = self.extra(a, n)
        tokens = np.full((a.batch, a.drafts + 1), -1)
        tokens[:, :-1] = np.where(np.arange(a.drafts) < n[:, None], a.given, -1)
        tokens[a.rows, n] = extra
        return {"num_accepted": n.astype(np.int32), "tokens": tokens.astype(np.int32)}

    def read(self, ids, draft, target, accept, sample, lengths):
        a = SimpleNamespace(given=np.asarray(ids).astype(np.int64))
        a.target = np.asarray(target).astype(np.float64)
        a.batch, a.vocab = a.target.shape[0], a.target.shape[2]
        a.drafts = a.given.shape[1]
        a.rows = np.arange(a.batch)
        a.ids, a.valid = self.index(a)
        if draft is None:
            a.draft = (np.arange(a.vocab) == a.given[..., None]).astype(np.float64)
        else:
            a.draft = np.asarray(draft).astype(np.float64)
        a.accept = np.clip(np.asarray(accept).astype(np.float64), 0, LARGEST)
        a.sample = np.clip(np.nan_to_num(np.asarray(sample).astype(np.float64)), 0, LARGEST)
        a.lengths = self.lengths(a, lengths)
        return a

    def index(self, a):
        """The ids to look entries up with, and whether they may be accepted."""
        valid = (a.given >= 0) & (a.given < a.vocab)
        return np.where(valid, a.given, 0), valid

    def lengths(self, a, lengths):
        return np.clip(np.full(a.batch, a.drafts) if lengths is None else lengths, 0, a.drafts)

    def count(self, a, passed):
        passed = passed & (np.arange(a.drafts) < a.lengths[:, None])
        return np.cumprod(passed, axis=1).sum(axis=1)

    def at_token(self, a, law):
        """The entries of the draft tokens in rows 0 .. G-1 of a law."""
        rows = law[:, : a.drafts]
        return np.maximum(np.take_along_axis(rows, a.ids[..., None], axis=2)[..., 0], 0)


class TokenRule(Rule):
    """Token verification, correct."""

    def draft_at_token(self, a):
        return self.at_token(a, a.draft)

    def target_at_token(self, a):
        return self.at_token(a, a.target)

    def passes(self, a):
        return a.valid & (a.accept * self.draft_at_token(a) < self.target_at_token(a))

    def target_row(self, a, n):
        return a.target[a.rows, n]

    def draft_row(self, a, n):
        """The law to subtract: zero for the bonus, for an invalid id and for a row with NaN."""
        if not a.drafts:
            return np.zeros((a.batch, a.vocab))
        at = np.minimum(n, a.drafts - 1)
        row = np.maximum(a.draft[a.rows, at], 0)
        usable = (n < a.lengths) & a.valid[a.rows, at] & ~np.isnan(row).any(axis=1)
        return np.where(usable[:, None], row, 0)

    def weights(self, a, n):
        target = np.maximum(self.target_row(a, n), 0)
        residual = np.maximum(target - self.draft_row(a, n), 0)
        return np.where((residual.sum(axis=1) == 0)[:, None], target, residual)

    def sample(self, a, n):
        return a.sample

    def draw(self, weights, uniform):
        cumulative = weights.cumsum(axis=1)
        return (cumulative <= (uniform * cumulative[:, -1])[:, None]).sum(axis=1)

    def extra(self, a, n):
        target = self.target_row(a, n)
        usable = np.isfinite(target).all(axis=1) & (target > 0).any(axis=1)
        weights = np.where(usable[:, None], self.weights(a, n), 1)
        drawn = self.draw(weights, self.sample(a, n))
        return np.where(usable, drawn, -1)


class GreedyRule(Rule):
    """Greedy verification, correct."""

    def choice(self, a):
        usable = np.isfinite(a.target).all(axis=2) & (a.target > 0).any(axis=2)
        return np.where(usable, a.target.argmax(axis=2), -1)

    def passes(self, a):
        return a.valid & (a.given == self.choice(a)[:, : a.drafts])

    def extra(self, a, n):
        return self.choice(a)[a.rows, n]


# --- The acceptance test


class AcceptsZeroMass(TokenRule):
    """A token without target mass passes when the coin is 0 (sglang #35771)."""

    def passes(self, a):
        return a.valid & (a.accept * self.draft_at_token(a) <= self.target_at_token(a))


class AcceptsEverything(TokenRule):
    """No test at all."""

    def passes(self, a):
        return a.valid


class FirstDraftNeverVerified(TokenRule):
    """The first draft token is taken on trust (lattice #243)."""

    def passes(self, a):
        passed = super().passes(a)
        passed[:, :1] = True
        return passed


class GuardedDivision(TokenRule):
    """u < target / (draft + 1e-9): small probabilities lose (tpu-inference)."""

    def passes(self, a):
        return a.valid & (a.accept < self.target_at_token(a) / (self.draft_at_token(a) + 1e-9))


class TargetRowShifted(TokenRule):
    """Target row i + 1 judges draft i (transformers #28166)."""

    def target_at_token(self, a):
        return self.at_token(a, a.target[:, 1:])


class DraftRowShifted(TokenRule):
    """Draft row i - 1 is used for draft i."""

    def draft_at_token(self, a):
        return self.at_token(a, np.roll(a.draft, 1, axis=1))


class SampledDraftAsPointMass(TokenRule):
    """The test takes the draft for a point mass, the residual does not (transformers #32867)."""

    def draft_at_token(self, a):
        return np.ones(a.given.shape)


class NegativeMassCounts(TokenRule):
    """Negative entries enter the test as they are."""

    def at_token(self, a, law):
        return np.take_along_axis(law[:, : a.drafts], a.ids[..., None], axis=2)[..., 0]


# --- The count


class CountsBeyondFirstFailure(TokenRule):
    """The number of matches instead of the matching prefix (transformers #28508)."""

    def count(self, a, passed):
        return (passed & (np.arange(a.drafts) < a.lengths[:, None])).sum(axis=1)


class IgnoresLengths(TokenRule):
    """Padding is verified like drafts (vllm #26498)."""

    def lengths(self, a, lengths):
        return np.full(a.batch, a.drafts)


class BonusFromPaddedRow(TokenRule):
    """The bonus token comes from row G, whatever the row's own length (TensorRT-LLM #15775)."""

    def target_row(self, a, n):
        return a.target[a.rows, np.where(n == a.lengths, a.drafts, n)]


# --- The ids


class ClampsIds(TokenRule):
    """An id outside the vocabulary is moved to the nearest one inside (vllm #53029)."""

    def index(self, a):
        a.given = np.clip(a.given, 0, a.vocab - 1)
        return a.given, np.ones(a.given.shape, bool)


class WrapsIds(TokenRule):
    """-1 reads the last entry of the row (vllm-ascend #10043)."""

    def index(self, a):
        return a.given % a.vocab, np.ones(a.given.shape, bool)


class CutsIdsTo32Bits(TokenRule):
    """Wide ids wrap around into the vocabulary (swift-transformers #384)."""

    def index(self, a):
        a.given = a.given.astype(np.int32).astype(np.int64)
        return super().index(a)


class VocabularyInTypeOfIds(TokenRule):
    """The size of the vocabulary is cut to the type of the ids (swift-transformers #384)."""

    def __call__(self, draft_tokens, *rest, **named):
        self.id_type = np.asarray(draft_tokens).dtype
        return super().__call__(draft_tokens, *rest, **named)

    def index(self, a):
        ids, valid = super().index(a)
        return ids, valid & (a.given < np.asarray(a.vocab).astype(self.id_type))


# --- The residual


class CorrectionFromTarget(TokenRule):
    """The correction token comes from the target law (vllm #8320)."""

    def draft_row(self, a, n):
        return np.zeros((a.batch, a.vocab))


class ResampledFromDraft(TokenRule):
    """A refused token is replaced by another one from the draft law."""

    def weights(self, a, n):
        draft = self.draft_row(a, n)
        return np.where((draft.sum(axis=1) == 0)[:, None], self.target_row(a, n), draft)


class ResidualFromNextRow(TokenRule):
    """The correction token comes from the row after the refused one (TensorRT-LLM #17890)."""

    def target_row(self, a, n):
        return a.target[a.rows, np.where(n < a.lengths, n + 1, n)]


class ResidualOfPreviousDraft(TokenRule):
    """The draft row before the refused one is subtracted."""

    def draft_row(self, a, n):
        row = super().draft_row(a, np.maximum(n - 1, 0))
        return np.where((n < a.lengths)[:, None], row, 0)


class PointMassResidual(TokenRule):
    """Only the refused token is taken out of the target law, as after a point mass."""

    def draft_row(self, a, n):
        row = np.zeros((a.batch, a.vocab))
        at = np.minimum(n, a.drafts - 1)
        row[a.rows, a.ids[a.rows, at]] = 1
        return np.where((n < a.lengths)[:, None], row, 0)


class NoFallback(TokenRule):
    """A residual that rounding left empty gives token 0 (vllm #2336, TorchCode #16)."""

    def weights(self, a, n):
        residual = np.maximum(self.target_row(a, n), 0) - self.draft_row(a, n)
        residual = np.maximum(residual, 0)
        residual[:, 0] += residual.sum(axis=1) == 0
        return residual


class NaNDraftSubtracted(TokenRule):
    """A draft row with NaN is not noticed, its residual is noise (vllm #41834)."""

    def draft_row(self, a, n):
        at = np.minimum(n, a.drafts - 1)
        row = np.nan_to_num(np.maximum(a.draft[a.rows, at], 0))
        return np.where(((n < a.lengths) & a.valid[a.rows, at])[:, None], row, 0)


# --- The bonus


class BonusNeverDrawn(TokenRule):
    """When everything is accepted the extra token is missing (vllm #9730)."""

    def extra(self, a, n):
        return np.where(n == a.lengths, -1, super().extra(a, n))


class BonusFromLastDraftRow(TokenRule):
    """The bonus token comes from row G - 1."""

    def target_row(self, a, n):
        return a.target[a.rows, np.where(n == a.lengths, np.maximum(n - 1, 0), n)]


class BonusSubtractsDraft(TokenRule):
    """The last draft row is subtracted from the bonus law."""

    def draft_row(self, a, n):
        at = np.minimum(n, a.drafts - 1)
        row = np.maximum(a.draft[a.rows, at], 0)
        usable = a.valid[a.rows, at] & ~np.isnan(row).any(axis=1) & (a.lengths > 0)
        return np.where(usable[:, None], row, 0)


# --- The draw


class ResidualNotNormalised(TokenRule):
    """The uniform is compared with sums of the residual that was never normalised."""

    def draw(self, weights, uniform):
        beyond = (weights.cumsum(axis=1) <= uniform[:, None]).sum(axis=1)
        return np.minimum(beyond, weights.shape[1] - 1)


class InclusiveCumulative(TokenRule):
    """cumulative >= uniform: a token without mass comes out at uniform 0."""

    def draw(self, weights, uniform):
        cumulative = weights.cumsum(axis=1)
        return (cumulative < (uniform * cumulative[:, -1])[:, None]).sum(axis=1)


class LastTokenWhenRoundedUp(TokenRule):
    """float32 sums that never reach the uniform end at the last id, mass or none (XLA's cumsum)."""

    def draw(self, weights, uniform):
        weights = weights.astype(np.float32)
        cumulative = weights.cumsum(axis=1, dtype=np.float32)
        total = weights.sum(axis=1, dtype=np.float64).astype(np.float32)
        beyond = (cumulative <= uniform.astype(np.float32)[:, None] * total[:, None]).sum(axis=1)
        return np.minimum(beyond, weights.shape[1] - 1)


class HalfPrecisionSums(TokenRule):
    """Sums that saturate on a long tail (Megatron-LM #7182)."""

    def draw(self, weights, uniform):
        cumulative = weights.astype(np.float16).cumsum(axis=1, dtype=np.float16)
        beyond = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
        return np.minimum(beyond, weights.shape[1] - 1)


class BareCumsum(TokenRule):
    """XLA's running sum is not monotone: it rises at tokens without weight."""

    def draw(self, weights, uniform):
        return np.asarray(bare_cumsum(weights.astype(np.float32), uniform.astype(np.float32)))


@jax.jit
def bare_cumsum(weights, uniform):
    cumulative = jnp.cumsum(weights, axis=1)
    return jnp.argmax(cumulative > (uniform * cumulative[:, -1])[:, None], axis=1)


class RoundingDependsOnBatch(TokenRule):
    """Sums are taken in another order in larger batches (mlx-lm #1470)."""

    def draw(self, weights, uniform):
        weights = weights.astype(np.float32)
        half = weights.shape[1] // 2 if len(weights) > 2 else 0
        head = weights[:, :half].cumsum(axis=1, dtype=np.float32)
        tail = weights[:, half:].cumsum(axis=1, dtype=np.float32)
        cumulative = np.concatenate([head, head[:, -1:].sum(axis=1, keepdims=True) + tail], axis=1)
        return (cumulative <= (uniform.astype(np.float32) * cumulative[:, -1])[:, None]).sum(axis=1)


class AcceptUniformReused(TokenRule):
    """The uniform that refused the token draws the next one (vllm-ascend #16370)."""

    def sample(self, a, n):
        at = np.minimum(n, a.drafts - 1)
        return np.where(n < a.lengths, np.nan_to_num(a.accept[a.rows, at]), a.sample)


class OneUniformForTheBatch(TokenRule):
    """Every row draws with the uniform of row 0 (vllm #9441)."""

    def sample(self, a, n):
        return np.full(a.batch, a.sample[0])


class NaNRowGivesToken(TokenRule):
    """A row of NaN becomes a plausible id, and the fault goes silent (vllm #21876, #53029)."""

    def extra(self, a, n):
        return np.maximum(super().extra(a, n), 0)


# --- Greedy


class GreedyNaNRowGivesToken(GreedyRule):
    """The argmax of a row that has none (vllm #21876)."""

    def choice(self, a):
        return a.target.argmax(axis=2)


class GreedyCountsBeyondFirstFailure(GreedyRule):
    """The number of matches instead of the matching prefix (transformers #28508)."""

    def count(self, a, passed):
        return (passed & (np.arange(a.drafts) < a.lengths[:, None])).sum(axis=1)


class GreedyTargetRowShifted(GreedyRule):
    """Target row i + 1 judges draft i (transformers #28166)."""

    def passes(self, a):
        return a.valid & (a.given == self.choice(a)[:, 1:])


class GreedyWrapsIds(GreedyRule):
    """-1 is read as the last id, and accepted (flashinfer #879)."""

    def passes(self, a):
        return a.given % a.vocab == self.choice(a)[:, : a.drafts]


class GreedyAcceptsMissing(GreedyRule):
    """-1 in the drafts equals the -1 of a row without argmax."""

    def passes(self, a):
        return a.given == self.choice(a)[:, : a.drafts]


class GreedyIgnoresLengths(GreedyRule):
    """Padding is verified like drafts (vllm #26498)."""

    def lengths(self, a, lengths):
        return np.full(a.batch, a.drafts)


class GreedySamplesBonus(GreedyRule):
    """The draft positions are greedy, the extra token is sampled (ATOM #2318)."""

    def extra(self, a, n):
        greedy = super().extra(a, n)
        sampled = TokenRule().draw(np.nan_to_num(np.maximum(a.target[a.rows, n], 0)), a.sample)
        return np.where(greedy < 0, greedy, np.minimum(sampled, a.vocab - 1))


class GreedyTieToHighestId(GreedyRule):
    """Equal probabilities go to the highest id, unlike in plain decoding (FreeToken #471)."""

    def choice(self, a):
        last = a.vocab - 1 - a.target[..., ::-1].argmax(axis=2)
        return np.where(super().choice(a) < 0, -1, last)


def wrong_ones(rule):
    return {cls.__name__: cls() for cls in rule.__subclasses__()}


MUTANTS = wrong_ones(TokenRule) | wrong_ones(GreedyRule)
