"""Samplers that are wrong on purpose, many of them named after a fault that was seen in public."""

import jax.numpy as jnp
import numpy as np

from speculax.conformance import kind
from speculax.conformance.sampler.call import Rows
from speculax.conformance.sampler.definition import ByKey, Sampler
from speculax.conformance.sampler.oracle import Order, Settings, normalized

# --- The order of the filters


class TopPBeforeTemperature(Sampler):
    """The cut-offs look at the law before the temperature (tpu-inference's rejection sampler)."""

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        cold = self.probs(logits)
        kept = self.top_k(cold, s)
        kept &= self.top_p(cold * kept if self.order == "sequential" else cold, s)
        warm = self.probs(logits / s.temperature) * kept
        return normalized(warm * self.min_p(warm, s))


class TopPOfTheWholeLaw(Sampler):
    """Top-p counts mass that top-k has taken away."""

    orders = ("sequential",)

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        self.order = "joint"
        return super().cut(logits, s)


class TopPOfWhatTopKLeaves(Sampler):
    """Top-p counts only what top-k leaves, renormalised."""

    orders = ("joint",)

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        self.order = "sequential"
        return super().cut(logits, s)


# --- The settings


class TemperatureIgnored(Sampler):
    """Every row is drawn from at temperature 1 (lattice #388)."""

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        return super().cut(logits, s._replace(temperature=1.0))


class TemperatureMultiplied(Sampler):
    """Logits are multiplied by the temperature and not divided."""

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        return super().cut(logits, s._replace(temperature=1 / s.temperature))


class SettingsOfTheFirstRow(Sampler):
    """All rows of a batch get the settings of row 0 (TensorRT-LLM #17599, for seeds)."""

    def read(self, rows: Rows) -> Rows:
        return Rows(rows.logits, *(np.full_like(setting, setting[0]) for setting in rows[1:]))


class TopKDropsTies(Sampler):
    """Of tokens that tie with the k-th only those of lower ids stay (SGLang's sorted form)."""

    def top_k(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        rank = np.argsort(np.argsort(-probs, kind="stable"))
        return (rank < s.top_k) | (s.top_k == 0)


class TopKOneMore(Sampler):
    """Top-k keeps k + 1 tokens."""

    def top_k(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        return super().top_k(probs, s._replace(top_k=s.top_k + (s.top_k > 0)))


class TopKOneLess(Sampler):
    """Top-k keeps k - 1 tokens."""

    def top_k(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        return super().top_k(probs, s._replace(top_k=max(s.top_k - 1, s.top_k > 0)))


class TopKWraps(Sampler):
    """A k beyond the vocabulary counts from the start again."""

    def top_k(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        wrapped = (s.top_k - 1) % len(probs) + 1 if s.top_k > 0 else 0
        return super().top_k(probs, s._replace(top_k=wrapped))


class TopPDropsTies(Sampler):
    """Of tokens that tie with the last of top-p some are dropped (transformers' sorted form)."""

    def top_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]
        kept = np.zeros(len(probs), bool)
        kept[order] = before < s.top_p * probs.sum()
        return kept | (s.top_p >= 1)


class TopPWithoutTheTokenThatReaches(Sampler):
    """Top-p stops before the token with which the mass is reached."""

    def top_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        falling = np.sort(probs)[::-1]
        within = np.cumsum(falling) <= s.top_p * falling.sum()
        return (probs >= falling[max(within.sum() - 1, 0)]) | (s.top_p >= 1)


class MinPOfOne(Sampler):
    """Min-p is compared with the probability itself, not with its ratio to the likeliest."""

    def min_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        return (probs >= s.min_p * probs.sum()) | (probs == probs.max())


class MinPIgnored(Sampler):
    """Min-p has no effect (vllm #42744, #38202)."""

    def min_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        return np.ones(len(probs), bool)


class NeverRenormalised(Sampler):
    """What the filters leave is drawn from as if it still summed to one (transformers #47932)."""

    def normalized(self, weights: np.ndarray) -> np.ndarray:
        return weights

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        drawn = np.searchsorted(np.cumsum(law), uniforms, side="right")
        return np.minimum(drawn, np.flatnonzero(law)[-1])


# --- Greedy rows


class GreedyLogitsInverted(Sampler):
    """Greedy rows beside sampled ones are divided by -1: the least likely token (tpu-inference)."""

    def read(self, rows: Rows) -> Rows:
        is_greedy = rows.temperature == 0
        is_mixed = is_greedy.any() and not is_greedy.all()
        used = np.where(is_greedy & is_mixed, np.float32(-1), rows.temperature)
        return rows._replace(temperature=used)

    def is_usable(self, logits: np.ndarray, s: Settings) -> bool:
        return super().is_usable(logits, s._replace(temperature=abs(s.temperature)))


class GreedyTakesTheLastOfATie(Sampler):
    """Of the likeliest tokens the one of highest id."""

    def greedy(self, logits: np.ndarray) -> int:
        return len(logits) - 1 - int(np.argmax(logits[::-1]))


class ColdInsteadOfGreedy(Sampler):
    """Greedy rows are drawn at temperature 1e-6: ties are broken at random (FreeToken #471)."""

    def read(self, rows: Rows) -> Rows:
        cold = np.float32(1e-6)
        return rows._replace(temperature=np.where(rows.temperature == 0, cold, rows.temperature))


# --- Rows that are out of the ordinary


class NaNRowGivesToken(Sampler):
    """A row without a law becomes a plausible id (vllm #21876, #53029)."""

    def law(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        law = super().law(logits, s)
        return (np.arange(len(law)) == 0) * 1.0 if np.isnan(law).any() else law


class ExponentialOverflows(Sampler):
    """exp(logits) without taking the largest away."""

    def probs(self, logits: np.ndarray) -> np.ndarray:
        return normalized(np.exp(logits.astype(np.float32)).astype(np.float64))


# --- The draw


class InclusiveCumulative(Sampler):
    """cumulative >= uniform: a token without mass comes out at uniform 0."""

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        cumulative = np.cumsum(law)
        return np.searchsorted(cumulative, uniforms * cumulative[-1], side="left")


class LastIdWhenRoundedUp(Sampler):
    """float32 sums that never reach the uniform end at the last id, mass or none (XLA's cumsum)."""

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        cumulative = np.cumsum(law.astype(np.float32), dtype=np.float32)
        drawn = np.searchsorted(cumulative, uniforms.astype(np.float32), side="right")
        return np.minimum(drawn, len(law) - 1)


class BFloat16Sums(Sampler):
    """Sums of bfloat16 saturate on a long tail (Megatron-LM #7182)."""

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        cumulative = np.cumsum(law.astype(jnp.bfloat16), dtype=jnp.bfloat16).astype(np.float64)
        drawn = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
        return np.minimum(drawn, len(law) - 1)


class IdsOf16Bits(Sampler):
    """Ids stick at 65,535 (swift-transformers #384)."""

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        return np.minimum(super().draw(law, uniforms), 2**16 - 1)


class OneUniformForTheBatch(Sampler):
    """Every row draws with the uniform of row 0 (vllm #9441)."""

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        return super().noise(np.full_like(uniforms, uniforms[0]))


# --- Noise from a key


class KeyIgnored(ByKey):
    """Every call draws with the same noise, whatever the key (TensorRT-LLM #19487)."""

    def generator(self, key: int) -> np.random.Generator:
        return super().generator(0)


class Race(ByKey):
    """Draws by one noise a token, the best of which wins: uniforms have 23 bits."""

    def __init__(self, sampler: Sampler):
        super().__init__(sampler)
        self._grouped: tuple[np.ndarray | None, tuple[np.ndarray, ...]] = None, ()

    def groups(self, law: np.ndarray) -> tuple[np.ndarray, ...]:
        """The probabilities that occur, how often each, the ids in their order, where each begins.

        Of tokens that are equally likely only the best counts, and any may be it.
        """
        if self._grouped[0] is not law:
            probs, group, counts = np.unique(law, return_inverse=True, return_counts=True)
            order, start = np.argsort(group, kind="stable"), np.append(0, np.cumsum(counts))
            self._grouped = law, (probs, counts, order, start)
        return self._grouped[1]

    def draw_rows(
        self, laws: list[np.ndarray], which: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        ids = np.full(len(which), -1)
        for number, law in enumerate(laws):
            rows = np.flatnonzero(which == number)
            if np.isnan(law).any():
                continue
            probs, counts, order, start = self.groups(law)
            with np.errstate(all="ignore"):
                winners = self.scores(probs, counts, rng.random((len(rows), len(probs)))).argmax(1)
            inside = (rng.random(len(rows)) * counts[winners]).astype(int)
            ids[rows] = order[start[winners] + inside]
        return ids

    def scores(self, probs: np.ndarray, counts: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class GumbelTruncated(Race):
    """The largest noise is 15.9, which rare tokens need more of (jax.random.categorical)."""

    def scores(self, probs: np.ndarray, counts: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        largest = np.floor(uniforms ** (1 / counts) * 2**23) / 2**23
        return np.log(probs) - np.log(-np.log(np.maximum(largest, 2.0**-126)))


class RaceWithTinyDivisor(Race):
    """probability / (exponential + 1e-9): noise of 0 lets rare tokens win (tpu-inference)."""

    def scores(self, probs: np.ndarray, counts: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        smallest = np.floor((1 - (1 - uniforms) ** (1 / counts)) * 2**23) / 2**23
        return probs / (1e-9 - np.log1p(-smallest))


MUTANTS = {mutant.__name__: mutant for mutant in Sampler.__subclasses__()}
OF_UNIFORMS = {"InclusiveCumulative", "LastIdWhenRoundedUp"}  # only uniforms at the ends show them
BY_KEY = {mutant.__name__: mutant for mutant in (KeyIgnored, GumbelTruncated, RaceWithTinyDivisor)}


def mutants_of(order: Order, by_key: bool) -> dict[str, Sampler | ByKey]:
    """The wrong samplers for an order of filters, of uniforms or by key."""
    made = {name: make(order) for name, make in MUTANTS.items() if order in make.orders}
    if not by_key:
        return {**made}
    found = {name: ByKey(sampler) for name, sampler in made.items() if name not in OF_UNIFORMS}
    return {**found, **{name: make(Sampler(order)) for name, make in BY_KEY.items()}}


def fault_of(mutant: Sampler | ByKey) -> str:
    """What a mutant does wrong, in a sentence."""
    return kind.fault_of(mutant.sampler if type(mutant) is ByKey else mutant)
