"""Wrong verifiers that draw their uniforms by a key, and those that are wrong in how they do it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from speculax.conformance import kind
from speculax.conformance.verifier import mutants
from speculax.conformance.verifier.rules import RULES

Verifier = Callable[..., dict[str, Any]]


class Keyed:
    """A verifier of uniforms that gets them from a seed: float64 (B, G) and (B,)."""

    def __init__(self, verifier: Verifier):
        self.verifier = verifier

    def __call__(
        self,
        draft_tokens: np.ndarray,
        draft_probs: np.ndarray | None,
        target_probs: np.ndarray,
        key: int,
    ) -> dict[str, Any]:
        """A verdict."""
        noise = self.noise(key, len(draft_tokens), draft_tokens.shape[1] + 1)
        return self.verifier(
            draft_tokens, draft_probs, target_probs, *self.split(noise[:, :-1], noise[:, -1])
        )

    def noise(self, key: int, batch: int, size: int) -> np.ndarray:
        """All uniforms of a call, float64 (B, G + 1)."""
        return np.random.default_rng(key).random((batch, size))

    def split(self, accept: np.ndarray, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The uniforms of the tests and of the draw, of independent ones."""
        return accept, sample


class KeyIgnored(Keyed):
    """Every step has the same noise, whatever the key (TensorRT-LLM #19487)."""

    def noise(self, key: int, batch: int, size: int) -> np.ndarray:
        return super().noise(0, batch, size)


class KeyNotEnough(Keyed):
    """Noise comes from elsewhere too: the same key gives other text (vllm #6038)."""

    def __init__(self, verifier: Verifier):
        super().__init__(verifier)
        self.calls = 0

    def noise(self, key: int, batch: int, size: int) -> np.ndarray:
        self.calls += 1
        return np.random.default_rng([key, self.calls]).random((batch, size))


class OneNoiseForTheBatch(Keyed):
    """All rows have the same noise: it is drawn without the axis of rows (vllm #9441)."""

    def noise(self, key: int, batch: int, size: int) -> np.ndarray:
        return np.tile(super().noise(key, 1, size), (batch, 1))


class RowsShareNoise(Keyed):
    """Each pair of neighbours has the same noise: seeds wrap around."""

    def noise(self, key: int, batch: int, size: int) -> np.ndarray:
        return np.repeat(super().noise(key, (batch + 1) // 2, size), 2, axis=0)[:batch]


class KeyNotSplit(Keyed):
    """The first test and the draw share their noise: the key was not split (vllm #47386)."""

    def split(self, accept: np.ndarray, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return accept, accept[:, 0] if accept.shape[1] else sample


class OneNoiseForAllTests(Keyed):
    """All tests of a row use one number: the key was not split by position."""

    def split(self, accept: np.ndarray, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(accept[:, :1], accept.shape[1], axis=1), sample


BY_KEY = {mutant.__name__: mutant for mutant in Keyed.__subclasses__()}
# Faults that only particular uniforms, `draft_lengths`, types of ids or large rows show.
UNSEEN = {
    "AcceptsZeroMass",
    "GuardedDivision",
    "IgnoresLengths",
    "BonusFromPaddedRow",
    "CutsIdsTo32Bits",
    "VocabularyInTypeOfIds",
    "InclusiveCumulative",
    "LastTokenWhenRoundedUp",
    "HalfPrecisionSums",
    "LosesLastTile",
    "BareCumsum",
    "RoundingDependsOnBatch",
    "NoFallback",
    "BlockAcceptsZeroMass",
    "BlockGuardedDivision",
    "BlockUniformOfPositionAfter",  # right, as long as the uniforms are independent
    "BlockBonusFromPaddedRow",
    "BlockIgnoresLengths",
    "BlockNoFallback",
    "SampledUniformOfPositionAfter",  # the same
    "SampledBonusFromPaddedRow",
    "SampledIgnoresLengths",
    "SampledNaNCounts",
}


def control(rule: str) -> Keyed:
    """A right verifier, in float64."""
    return Keyed(RULES[rule].control)


def mutants_of(rule: str) -> dict[str, Keyed]:
    """The wrong verifiers that a key can show."""
    wrong = {name: Keyed(v) for name, v in RULES[rule].mutants.items() if name not in UNSEEN}
    by_key = {name: make(RULES[rule].control) for name, make in BY_KEY.items()}
    if rule != "token":  # BlockOneUniform, BlockAcceptUniformReused and so on are the same
        del by_key["OneNoiseForAllTests"], by_key["KeyNotSplit"]
    return {**wrong, **by_key}


def fault_of(mutant: Keyed) -> str:
    """What a mutant does wrong, in a sentence."""
    return kind.fault_of(mutant.verifier if type(mutant) is Keyed else mutant)


def of_uniforms(mutant: Keyed) -> Verifier:
    """The mutant as a verifier of independent uniforms, of which each row has its own."""

    def verifier(
        draft_tokens: np.ndarray,
        draft_probs: np.ndarray | None,
        target_probs: np.ndarray,
        accept_uniforms: np.ndarray,
        sample_uniforms: np.ndarray,
    ) -> dict[str, Any]:
        uniforms = mutant.split(np.asarray(accept_uniforms), np.asarray(sample_uniforms))
        return mutant.verifier(draft_tokens, draft_probs, target_probs, *uniforms)

    return verifier


def has_own_law(mutant: Keyed) -> bool:
    """Whether each row by itself has a law that may be wrong; else only rows together have."""
    if type(mutant) is Keyed:
        return not isinstance(mutant.verifier, mutants.OneUniformForTheBatch)
    return type(mutant).split is not Keyed.split
