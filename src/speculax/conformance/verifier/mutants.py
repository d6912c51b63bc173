"""Verifiers that are wrong on purpose, many of them after a fault that was seen in public.

A test that has never been seen to fail proves nothing: `test_law` and `test_edges` must refuse
every one of these. The rules that `RULES` names are right and must pass, so that refusing is worth
something; a mutant replaces one of their parts. NumPy, float64, same signature as the verifiers.
"""

# pyright: basic, reportMissingParameterType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportIncompatibleMethodOverride=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from speculax.conformance.verifier.edges import LARGEST, SETTINGS


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


class DrawRule(Rule):
    """What rules that draw the next token have in common; from the target's row if left alone."""

    def draft_at_token(self, a):
        return self.at_token(a, a.draft)

    def target_at_token(self, a):
        return self.at_token(a, a.target)

    def target_row(self, a, n):
        return a.target[a.rows, n]

    def weights(self, a, n):
        return np.maximum(self.target_row(a, n), 0)

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


class TokenRule(DrawRule):
    """Token verification, correct."""

    def passes(self, a):
        return a.valid & (a.accept * self.draft_at_token(a) < self.target_at_token(a))

    def draft_row(self, a, n):
        """The law to subtract: zero for the bonus, for an invalid id and for a row with NaN."""
        if not a.drafts:
            return np.zeros((a.batch, 1))
        at = np.minimum(n, a.drafts - 1)
        row = np.maximum(a.draft[a.rows, at], 0)
        usable = (n < a.lengths) & a.valid[a.rows, at] & ~np.isnan(row).any(axis=1)
        return np.where(usable[:, None], row, 0)

    def weights(self, a, n):
        target = np.maximum(self.target_row(a, n), 0)
        residual = np.maximum(target - self.draft_row(a, n), 0)
        return np.where((residual.sum(axis=1) == 0)[:, None], target, residual)


class BlockRule(DrawRule):
    """Block verification, correct. `bounds` are the h_i, `ratios` the P_i of Sun et al."""

    def read(self, *arguments):
        a = super().read(*arguments)
        p, q = self.target_at_token(a), self.draft_at_token(a)
        a.end = self.end(a, p, q)
        a.ratios = np.ones((a.batch, a.drafts + 1))
        for i in range(a.drafts):
            a.ratios[:, i + 1] = self.extend(a.ratios[:, i], p[:, i], q[:, i])
        self.correct_ratios(a, p, q)
        return a

    def end(self, a, p, q):
        """Where the draft ends: before a token that cannot be judged."""
        judged = a.valid & ~np.isnan(p) & ~np.isnan(q)
        return np.minimum(np.cumprod(judged, axis=1).sum(axis=1), a.lengths)

    def extend(self, ratio, p, q):
        with_mass = np.where(q > 0, ratio * p / q, (ratio > 0) & (p > 0))
        return np.minimum(with_mass, 1)

    def correct_ratios(self, a, p, q):
        pass

    def passes(self, a):
        return self.uniforms(a) < self.bounds(a)

    def uniforms(self, a):
        return a.accept

    def bounds(self, a):
        """The chance of each prefix to be held, from 1 to G."""
        bounds = a.ratios[:, 1:].copy()
        for i in range(1, a.drafts):
            ratio = a.ratios[:, i]
            bounds[:, i - 1] = np.where(i == a.end, ratio, self.bound(a, i, ratio))
        return np.where(np.arange(1, a.drafts + 1) <= a.end[:, None], bounds, -1)

    def bound(self, a, i, ratio):
        mass = self.residual(a, np.full(a.batch, i), self.weight_in_test(a, i)).sum(axis=1)
        bound = np.where(ratio == 1, 1, mass / (mass + 1 - ratio))
        return np.where(np.isfinite(mass), bound, ratio)

    def weight_in_test(self, a, i):
        return a.ratios[:, i]

    def count(self, a, passed):
        """The longest prefix that is held, whatever the shorter ones are."""
        return np.max(np.arange(1, a.drafts + 1) * passed, axis=1, initial=0)

    def residual(self, a, n, weight):
        row = np.maximum(a.draft[a.rows, np.minimum(n, a.drafts - 1)], 0)
        return np.maximum(weight[:, None] * np.maximum(self.target_row(a, n), 0) - row, 0)

    def weight(self, a, n):
        """What the target is multiplied by before the draft is subtracted."""
        return a.ratios[a.rows, n]

    def weights(self, a, n):
        target = super().weights(a, n)
        if not a.drafts:
            return target
        residual = self.residual(a, n, self.weight(a, n))
        mass = residual.sum(axis=1)
        usable = (n < a.end) & np.isfinite(mass) & (mass > 0)
        return np.where(usable[:, None], residual, target)


class SampledRule(DrawRule):
    """Sampled verification, correct."""

    def passes(self, a):
        drawn = np.full(a.given.shape, -1)
        for i in range(a.drafts):
            drawn[:, i] = DrawRule.extra(self, a, np.full(a.batch, i))
        return self.counts(a, self.uniforms(a)[:, :-1]) & (drawn == a.given)

    def counts(self, a, uniforms):
        return a.valid & ~np.isnan(uniforms)

    def uniforms(self, a):
        """The uniforms of positions 0 to G; from a row's length on there is only the last."""
        own = np.arange(a.drafts + 1) < a.lengths[:, None]
        return np.where(own, np.pad(a.accept, ((0, 0), (0, 1))), a.sample[:, None])

    def sample(self, a, n):
        return np.nan_to_num(self.uniforms(a)[a.rows, n])


class TypicalRule(DrawRule):
    """Typical acceptance, correct."""

    def __init__(self, epsilon, delta):
        self.epsilon, self.delta = epsilon, delta

    def entropy(self, a):
        rows = np.maximum(a.target[:, : a.drafts], 0)
        return -np.where(rows == 0, 0, rows * np.log(rows)).sum(axis=2)

    def threshold(self, a):
        return np.minimum(self.epsilon, self.delta * np.exp(-self.entropy(a)))

    def passes(self, a):
        return a.valid & (self.target_at_token(a) > self.threshold(a))


class ThresholdsRule(DrawRule):
    """SGLang's two thresholds, correct."""

    def __init__(self, threshold_single, threshold_acc):
        self.single, self.acc = threshold_single, threshold_acc

    def passes(self, a):
        p = self.target_at_token(a)
        return a.valid & ~np.isnan(a.accept) & ((a.accept * self.acc < p) | (p >= self.single))

    def taken_out(self, a, n):
        """The token that failed, and may not be drawn; -1 if none did."""
        given = np.pad(np.where(a.valid, a.given, -1), ((0, 0), (0, 1)), constant_values=-1)
        return np.where(n < a.lengths, given[a.rows, n], -1)

    def weights(self, a, n):
        target = super().weights(a, n)
        rest = np.where(np.arange(a.vocab) == self.taken_out(a, n)[:, None], 0, target)
        return np.where((rest.sum(axis=1) == 0)[:, None], target, rest)


class TopKRule(DrawRule):
    """Top-k agreement, correct."""

    def __init__(self, k):
        self.k = k

    def rank(self, a):
        """How many tokens are ahead of each draft token."""
        return (np.maximum(a.target[:, :-1], 0) > self.target_at_token(a)[..., None]).sum(axis=2)

    def passes(self, a):
        return a.valid & (self.target_at_token(a) > 0) & (self.rank(a) < self.k)


class SyntheticRule(DrawRule):
    """Synthetic acceptance, correct."""

    def __init__(self, rates):
        self.rates = rates

    def passes(self, a):
        return a.valid & (a.accept < self.rates)


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


class ResidualNotNormalisedToZero(TokenRule):
    """The residual was never normalised; where no sum exceeds the uniform, argmax gives token 0."""

    def draw(self, weights, uniform):
        return (weights.cumsum(axis=1) > uniform[:, None]).argmax(axis=1)


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


class LosesLastTile(TokenRule):
    """Large rows are read in whole tiles of 128 entries: what is left at the end is not seen."""

    def weights(self, a, n):
        weights = super().weights(a, n)
        end = a.vocab - a.vocab % 128
        return np.where(np.arange(a.vocab) < end, weights, 0) if a.vocab > 1024 else weights


class BareCumsum(TokenRule):
    """XLA's running sum is not monotone: it rises at tokens without weight."""

    def draw(self, weights, uniform):
        return np.asarray(bare_cumsum(weights.astype(np.float32), uniform.astype(np.float32)))


@jax.jit
def bare_cumsum(weights, uniform):
    """The draw as everybody writes it first."""
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


# --- Block


class BlockTokenResidual(BlockRule):
    """Block acceptance with the residual of the token rule (vllm-ascend #7808)."""

    def weight(self, a, n):
        return np.ones(a.batch)


class BlockTestsTokenResidual(BlockRule):
    """The token rule's residual in the tests."""

    def weight_in_test(self, a, i):
        return np.ones(a.batch)


class BlockStopsAtFirstFailure(BlockRule):
    """The prefixes before the first that is not held, instead of the longest that is."""

    def count(self, a, passed):
        return np.cumprod(passed, axis=1).sum(axis=1)


class BlockRatioAsBound(BlockRule):
    """Prefixes are held with chance P_i, without the correction by what longer ones take."""

    def bound(self, a, i, ratio):
        return ratio


class BlockNotCappedAtLast(BlockRule):
    """The whole draft is judged by the joint ratio, its parts not capped at 1 (HSD as released)."""

    def correct_ratios(self, a, p, q):
        joint = np.cumprod(np.where(q > 0, p / q, p > 0), axis=1)
        for b, end in enumerate(a.end):
            if end:
                a.ratios[b, end] = min(1, joint[b, end - 1])


class BlockNeverCapped(BlockRule):
    """All prefixes are judged by joint ratios, capped only when used."""

    def correct_ratios(self, a, p, q):
        joint = np.cumprod(np.where(q > 0, p / q, p > 0), axis=1)
        a.ratios[:, 1:] = np.minimum(joint, 1)


class BlockUniformOfPositionAfter(BlockRule):
    """Prefix i is judged with the uniform of prefix i + 1."""

    def uniforms(self, a):
        return np.roll(a.accept, -1, axis=1)


class BlockOneUniform(BlockRule):
    """All prefixes are judged with the first uniform."""

    def uniforms(self, a):
        return np.repeat(a.accept[:, :1], a.drafts, axis=1)


class BlockWeightOfPrefixBefore(BlockRule):
    """The residual is weighted with the prefix before the one that is held."""

    def weight(self, a, n):
        return a.ratios[a.rows, np.maximum(n - 1, 0)]


class BlockWeightOfPrefixAfter(BlockRule):
    """The residual is weighted with the prefix that was refused."""

    def weight(self, a, n):
        return a.ratios[a.rows, np.minimum(n + 1, a.drafts)]


class BlockBoundFromRowBefore(BlockRule):
    """The mass in the test of prefix i is taken after prefix i - 1."""

    def bound(self, a, i, ratio):
        mass = self.residual(a, np.full(a.batch, i - 1), self.weight_in_test(a, i)).sum(axis=1)
        return mass / (mass + 1 - ratio)


class BlockAcceptsZeroMass(BlockRule):
    """A prefix passes when uniform and bound are both 0 (sglang #35771)."""

    def passes(self, a):
        return self.uniforms(a) <= self.bounds(a)


class BlockGuardedDivision(BlockRule):
    """target / (draft + 1e-9): small probabilities lose (tpu-inference)."""

    def extend(self, ratio, p, q):
        return np.minimum(ratio * p / (q + 1e-9), 1)


class BlockRevivesDeadPrefix(BlockRule):
    """A token without draft mass makes a prefix certain that the target rules out."""

    def extend(self, ratio, p, q):
        return np.minimum(np.where(q > 0, ratio * p / q, 1), 1)


class BlockReadsOnAfterBadId(BlockRule):
    """A draft id outside the vocabulary ends nothing: the tests before it look beyond it."""

    def end(self, a, p, q):
        return a.lengths

    def bounds(self, a):
        bounds = super().bounds(a)
        return np.where(np.cumprod(a.valid, axis=1), bounds, -1)


class BlockNaNRefusesPrefix(BlockRule):
    """NaN in the draft row that would be subtracted refuses the prefix before it."""

    def bound(self, a, i, ratio):
        bound = super().bound(a, i, ratio)
        unreadable = np.isnan(a.draft[:, i]).any(axis=1)
        return np.where(unreadable, -1, bound)


class BlockNoFallback(BlockRule):
    """A residual that rounding left empty gives token 0 (vllm #2336)."""

    def weights(self, a, n):
        weights = super().weights(a, n)
        if a.drafts:
            empty = (n < a.end) & (self.residual(a, n, self.weight(a, n)).sum(axis=1) == 0)
            weights = np.where(empty[:, None], np.arange(a.vocab) == 0, weights)
        return weights


class BlockBonusFromPaddedRow(BlockRule):
    """The bonus token comes from row G, whatever the row's own length (TensorRT-LLM #15775)."""

    def target_row(self, a, n):
        return a.target[a.rows, np.where(n == a.lengths, a.drafts, n)]


class BlockIgnoresLengths(BlockRule):
    """Padding is verified like drafts (vllm #26498)."""

    def lengths(self, a, lengths):
        return np.full(a.batch, a.drafts)


class BlockAcceptUniformReused(BlockRule):
    """The uniform of the first prefix that was refused draws the next token."""

    def sample(self, a, n):
        at = np.minimum(n, a.drafts - 1)
        return np.where(n < a.lengths, np.nan_to_num(a.accept[a.rows, at]), a.sample)


# --- Sampled


class SampledUniformReused(SampledRule):
    """The bonus token is drawn with the uniform of the last draft position."""

    def uniforms(self, a):
        uniforms = super().uniforms(a)
        last = np.nan_to_num(a.accept[a.rows, np.maximum(a.lengths - 1, 0)])
        bonus = np.arange(a.drafts + 1) >= np.maximum(a.lengths, 1)[:, None]
        return np.where(bonus, last[:, None], uniforms)


class SampledOneUniform(SampledRule):
    """All draft positions are drawn with one uniform."""

    def uniforms(self, a):
        own = np.arange(a.drafts + 1) < a.lengths[:, None]
        return np.where(own, a.accept[:, :1], a.sample[:, None])


class SampledResidual(SampledRule):
    """What differs is replaced by a draw from max(target - draft, 0), as after a ratio test."""

    def extra(self, a, n):
        own, residual = super().extra(a, n), self.draw(TokenRule().weights(a, n), a.sample)
        return np.where((n < a.lengths) & (own >= 0), residual, own)


class SampledDrawnAgain(SampledRule):
    """What differs is drawn once more, with the last uniform: the draft token comes out too."""

    def extra(self, a, n):
        again = self.draw(self.weights(a, n), a.sample)
        return np.where(super().extra(a, n) < 0, -1, again)


class SampledEmitsDraft(SampledRule):
    """At the first difference the draft token is emitted, not the target's."""

    def extra(self, a, n):
        own = super().extra(a, n)
        given = np.pad(np.where(a.valid, a.given, 0), ((0, 0), (0, 1)))[a.rows, n]
        return np.where((n < a.lengths) & (own >= 0), given, own)


class SampledRowShifted(SampledRule):
    """Target row i + 1 judges draft i (transformers #28166)."""

    def target_row(self, a, n):
        return a.target[a.rows, np.minimum(n + 1, a.drafts)]


class SampledCountsBeyondFirstFailure(SampledRule):
    """The number of matches instead of the matching prefix (transformers #28508)."""

    def count(self, a, passed):
        return (passed & (np.arange(a.drafts) < a.lengths[:, None])).sum(axis=1)


class SampledUniformOfPositionAfter(SampledRule):
    """Position i is drawn with the uniform of position i + 1."""

    def uniforms(self, a):
        own = np.arange(a.drafts + 1) < a.lengths[:, None]
        return np.where(own, np.pad(np.roll(a.accept, -1, 1), ((0, 0), (0, 1))), a.sample[:, None])


class SampledNaNCounts(SampledRule):
    """A uniform NaN draws as 0, and that draw may accept."""

    def counts(self, a, uniforms):
        return a.valid


class SampledAcceptsMissing(SampledRule):
    """-1 in the drafts equals the -1 of a row that cannot be drawn from."""

    def counts(self, a, uniforms):
        return ~np.isnan(uniforms)


class SampledIgnoresLengths(SampledRule):
    """Padding is verified like drafts (vllm #26498)."""

    def lengths(self, a, lengths):
        return np.full(a.batch, a.drafts)


class SampledBonusFromPaddedRow(SampledRule):
    """The bonus token comes from row G, whatever the row's own length (TensorRT-LLM #15775)."""

    def target_row(self, a, n):
        return a.target[a.rows, np.where(n == a.lengths, a.drafts, n)]


# --- Lossy


class TypicalEntropyInBits(TypicalRule):
    """The entropy in base 2, the exponential in base e."""

    def entropy(self, a):
        return super().entropy(a) / np.log(2)


class TypicalLargerThreshold(TypicalRule):
    """max where the rule says min."""

    def threshold(self, a):
        return np.maximum(self.epsilon, self.delta * np.exp(-self.entropy(a)))


class TypicalNotStrict(TypicalRule):
    """>= where the rule says >."""

    def passes(self, a):
        return a.valid & (self.target_at_token(a) >= self.threshold(a))


class TypicalFirstNeverVerified(TypicalRule):
    """The first draft token is taken on trust (lattice #243)."""

    def passes(self, a):
        passed = super().passes(a)
        passed[:, :1] = True
        return passed


class ThresholdsFailedTokenAgain(ThresholdsRule):
    """The token that failed may be drawn again."""

    def taken_out(self, a, n):
        return np.full(a.batch, -1)


class ThresholdsNotStrict(ThresholdsRule):
    """A token without mass passes when the uniform is 0 (sglang #35771)."""

    def passes(self, a):
        p = self.target_at_token(a)
        return a.valid & ((a.accept * self.acc <= p) | (p >= self.single))


class ThresholdsSwapped(ThresholdsRule):
    """Each threshold has the other's place."""

    def passes(self, a):
        p = self.target_at_token(a)
        return a.valid & ((a.accept * self.single < p) | (p >= self.acc))


class ThresholdsDivides(ThresholdsRule):
    """The uniform is divided where it is to be multiplied."""

    def passes(self, a):
        p = self.target_at_token(a)
        return a.valid & ((a.accept / self.acc < p) | (p >= self.single))


class TopKWithoutTies(TopKRule):
    """Of tokens that tie with the k-th only those of lower ids count."""

    def rank(self, a):
        order = np.argsort(-np.maximum(a.target[:, :-1], 0), axis=2, kind="stable")
        return np.take_along_axis(np.argsort(order, axis=2), a.ids[..., None], axis=2)[..., 0]


class TopKOneTooMany(TopKRule):
    """One token more than asked for."""

    def passes(self, a):
        return a.valid & (self.target_at_token(a) > 0) & (self.rank(a) <= self.k)


class TopKWithoutMass(TopKRule):
    """Tokens without mass count where fewer than k have any."""

    def passes(self, a):
        return a.valid & (self.rank(a) < self.k)


class SyntheticNotStrict(SyntheticRule):
    """A token passes at rate 0 when the uniform is 0."""

    def passes(self, a):
        return a.valid & (a.accept <= self.rates)


class SyntheticBelievesIds(SyntheticRule):
    """Ids outside the vocabulary are accepted too."""

    def passes(self, a):
        return a.accept < self.rates


RULES = {
    "token": TokenRule,
    "greedy": GreedyRule,
    "block": BlockRule,
    "sampled": SampledRule,
    "typical": TypicalRule,
    "thresholds": ThresholdsRule,
    "top_k": TopKRule,
    "synthetic": SyntheticRule,
}


CONTROLS = {name: rule(**SETTINGS.get(name, {})) for name, rule in RULES.items()}
MUTANTS = {
    wrong.__name__: wrong(**SETTINGS.get(name, {}))
    for name, rule in RULES.items()
    for wrong in rule.__subclasses__()
}


def wrong_ones(rule):
    """The mutants of a rule."""
    return {name: mutant for name, mutant in MUTANTS.items() if isinstance(mutant, rule)}


def rule_of(verifier):
    """The name of the rule that a mutant gets wrong."""
    return next(name for name, rule in RULES.items() if isinstance(verifier, rule))
