"""A sampler by its definition: sorted, float64, row by row. The mutants each change a part."""

import numpy as np

from speculax.conformance.sampler.call import Rows, make_rows
from speculax.conformance.sampler.oracle import LARGEST_UNIFORM, Order, Settings, normalized

MOST_KEPT = 400  # laws that are remembered: rows come again and again


class Sampler:
    """A right sampler of uniforms, for the order of filters that it is made with."""

    orders: tuple[Order, ...] = ("sequential", "joint")

    def __init__(self, order: Order = "sequential"):
        self.order = order
        self._laws: dict[bytes, np.ndarray] = {}

    def __call__(
        self,
        logits: np.ndarray,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        uniforms: np.ndarray,
    ) -> np.ndarray:
        """int32 (R,); see `speculax.conformance.sampler.kind`."""
        rows = self.read(Rows(logits, temperature, top_k, top_p, min_p))
        laws, which = self.laws(rows)
        return self.draw_rows(laws, which, self.noise(uniforms)).astype(np.int32)

    def laws(self, rows: Rows) -> tuple[list[np.ndarray], np.ndarray]:
        """The laws that occur, float64 (V,), and which of them each row has; NaN without one."""
        place, which, found = {}, np.empty(len(rows.logits), int), []
        columns = [array.reshape(len(which), -1).view(np.uint8) for array in rows]
        for r, packed in enumerate(np.concatenate(columns, axis=1)):
            name = packed.tobytes()
            if name not in place:
                place[name] = len(found)
                found.append(self._remembered(name, rows, r))
            which[r] = place[name]
        return found, which

    def _remembered(self, name: bytes, rows: Rows, r: int) -> np.ndarray:
        if name not in self._laws:
            if len(self._laws) >= MOST_KEPT:
                self._laws.clear()
            with np.errstate(all="ignore"):
                self._laws[name] = self.law(rows.logits[r], rows.settings(r))
        return self._laws[name]

    def draw_rows(
        self, laws: list[np.ndarray], which: np.ndarray, uniforms: np.ndarray
    ) -> np.ndarray:
        """The ids of rows, each drawn with its uniform."""
        ids = np.full(len(which), -1)
        for number, law in enumerate(laws):
            rows = which == number
            if not np.isnan(law).any():
                with np.errstate(all="ignore"):
                    ids[rows] = self.draw(law, uniforms[rows])
        return ids

    # What mutants change.

    def read(self, rows: Rows) -> Rows:
        """The rows as they are used."""
        return rows

    def noise(self, uniforms: np.ndarray) -> np.ndarray:
        """The uniforms as they are used, float64 (R,)."""
        wide = np.nan_to_num(np.asarray(uniforms, np.float64), nan=0.0)
        return np.clip(wide, 0, LARGEST_UNIFORM)

    def law(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        """The law of one row, float64 (V,); NaN if it has none."""
        wide = logits.astype(np.float64)
        if not self.is_usable(wide, s):
            return np.full(len(wide), np.nan)
        if s.temperature == 0:
            return (np.arange(len(wide)) == self.greedy(wide)) * 1.0
        return self.cut(wide, s)

    def is_usable(self, logits: np.ndarray, s: Settings) -> bool:
        """Whether a row has a law at all."""
        t, k, p, m = s[:4]
        in_range = 0 <= t < np.inf and k >= 0 and 0 < p <= 1 and 0 <= m <= 1
        return bool(in_range and np.isfinite(logits.max()))

    def greedy(self, logits: np.ndarray) -> int:
        """The likeliest token."""
        return int(np.argmax(logits))

    def cut(self, logits: np.ndarray, s: Settings) -> np.ndarray:
        """The law of a row that is not greedy."""
        warm = self.probs(logits / s.temperature)
        after_k = warm * self.top_k(warm, s)
        seen = after_k if self.order == "sequential" else warm
        after_p = after_k * self.top_p(seen, s)
        return self.normalized(after_p * self.min_p(after_p, s))

    def probs(self, logits: np.ndarray) -> np.ndarray:
        """The softmax."""
        return normalized(np.exp(logits - logits.max()))

    def top_k(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        """The tokens that top-k keeps, bool (V,)."""
        if s.top_k == 0:
            return np.ones(len(probs), bool)
        return probs >= np.sort(probs)[::-1][min(s.top_k, len(probs)) - 1]

    def top_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        """The tokens that top-p keeps, bool (V,)."""
        if s.top_p >= 1:
            return np.ones(len(probs), bool)
        falling = np.sort(probs)[::-1]
        reached = np.cumsum(falling) >= s.top_p * falling.sum()
        return probs >= falling[np.argmax(reached) if reached.any() else -1]

    def min_p(self, probs: np.ndarray, s: Settings) -> np.ndarray:
        """The tokens that min-p keeps, bool (V,)."""
        return probs >= s.min_p * probs.max()

    def normalized(self, weights: np.ndarray) -> np.ndarray:
        """What is left, renormalised."""
        return normalized(weights)

    def draw(self, law: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """The ids that uniforms give, int (n,)."""
        cumulative = np.cumsum(law)
        return np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")


class ByKey:
    """A sampler of uniforms that gets them from a seed."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler

    def __call__(
        self,
        logits: np.ndarray,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        key: int,
    ) -> np.ndarray:
        """int32 (R,)."""
        rows = self.sampler.read(Rows(logits, temperature, top_k, top_p, min_p))
        laws, which = self.sampler.laws(rows)
        return self.draw_rows(laws, which, self.generator(key)).astype(np.int32)

    def generator(self, key: int) -> np.random.Generator:
        """What the noise of a call comes from."""
        return np.random.default_rng(key)

    def draw_rows(
        self, laws: list[np.ndarray], which: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """The ids of rows."""
        noise = self.sampler.noise(rng.random(len(which)))
        return self.sampler.draw_rows(laws, which, noise)


def laws_of(sampler: Sampler, logits: np.ndarray, many: list[Settings]) -> np.ndarray:
    """The laws that a sampler draws from, float64 (R, V)."""
    laws, which = sampler.laws(sampler.read(make_rows(logits, many)))
    return np.stack(laws)[which]
