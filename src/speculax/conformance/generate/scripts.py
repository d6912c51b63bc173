"""Texts that are certain: a target and a drafter that put all mass on one token at each place."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from speculax.conformance.generate.call import Call
from speculax.conformance.generate.laws import VOCAB, as_ids
from speculax.conformance.report import Level

LENGTH, SLOTS = 12, 9  # of a script; places of it where a text may end
PLAIN = [i % 3 for i in range(LENGTH)]  # no token 3, which ends texts
OTHER = [(i + 1) % 3 for i in range(LENGTH)]  # agrees with it nowhere
END = 3


class Script(NamedTuple):
    """What the target says after a prompt, what the drafter says, and what must come out.

    Attributes:
        target: The target's tokens.
        draft: The drafter's.
        max_new_tokens: The most tokens to make.
        eos: The token that ends the text, or None.
        text: What must come out.
        prompt: The tokens to continue.
    """

    target: list[int]
    draft: list[int]
    max_new_tokens: int
    eos: int | None
    text: list[int]
    prompt: tuple[int, ...] = (1,)

    def call(self) -> Call:
        """The call that this is about."""
        start = len(self.prompt)

        def row(tokens: list[int], ids: Sequence[int]) -> np.ndarray:
            place = min(len(as_ids(ids)) - start, len(tokens) - 1)
            return np.eye(VOCAB)[tokens[place]]

        return Call(
            lambda ids: row(self.target, ids),
            lambda ids: row(self.draft, ids),
            list(self.prompt),
            self.max_new_tokens,
            self.eos,
        )

    def lines(self) -> list[str]:
        """Python that makes target and drafter."""

        def row(tokens: list[int]) -> str:
            place = f"min(len(ids) - {len(self.prompt)}, {len(tokens) - 1})"
            return f"lambda ids: np.eye({VOCAB})[{tokens}[{place}]]"

        return [
            "import numpy as np",
            "",
            f"target = {row(self.target)}",
            f"drafter = {row(self.draft)}",
        ]


def _with(tokens: list[int], place: int, token: int = END) -> list[int]:
    """The script with another token at a place."""
    return [*tokens[:place], token, *tokens[place + 1 :]]


def stopping(level: Level) -> dict[str, list[Script]]:
    """Scripts by what they are about, each list from small to large."""
    slots = range(SLOTS)
    groups = {
        "the text ends with an accepted EOS": [
            Script(_with(PLAIN, k), _with(PLAIN, k), LENGTH, END, _with(PLAIN, k)[: k + 1])
            for k in slots
        ],
        "the text ends with an EOS that the target puts in place of a draft": [
            Script(_with(PLAIN, k), PLAIN, LENGTH, END, _with(PLAIN, k)[: k + 1]) for k in slots
        ],
        "an EOS of the draft that the target refuses ends nothing": [
            Script(PLAIN, _with(PLAIN, k), LENGTH, END, PLAIN) for k in slots
        ],
        "the first of two EOS ends the text": [
            Script(_with(_with(PLAIN, k), k + 1), _with(_with(PLAIN, k), k + 1), LENGTH, END,
                   _with(PLAIN, k)[: k + 1])
            for k in slots
        ],
        "no more tokens than asked for, all drafts accepted": [
            Script(PLAIN, PLAIN, cap, END, PLAIN[:cap]) for cap in range(LENGTH)
        ],
        "as many tokens as asked for, no draft accepted": [
            Script(PLAIN, OTHER, cap, END, PLAIN[:cap]) for cap in range(LENGTH)
        ],
        "an EOS at the last place, or just beyond it": [
            Script(_with(PLAIN, k), _with(PLAIN, k), cap, END, _with(PLAIN, k)[: min(k + 1, cap)])
            for k in slots
            for cap in (k, k + 1)
        ],
        "an EOS ends the text though the run would reach beyond the limit": [
            Script(_with(PLAIN, k), _with(PLAIN, k), k + 2, END, _with(PLAIN, k)[: k + 1])
            for k in slots
        ],
        "without an EOS no token ends the text": [
            Script(_with(PLAIN, k), _with(PLAIN, k), LENGTH, None, _with(PLAIN, k)) for k in slots
        ],
        "an EOS of id 0 ends the text": [
            Script(ones, ones, LENGTH, 0, ones[: k + 1])
            for k in slots
            for ones in [_with([1 + i % 3 for i in range(LENGTH)], k, 0)]
        ],
    }  # fmt: skip
    if level != "contract":
        groups["an EOS in the prompt ends nothing"] = [
            Script(PLAIN, PLAIN, LENGTH, END, PLAIN, prompt)
            for prompt in ((END,), (END, 1), (1, END, 2, END))
        ]
    return groups


# --- Greedy texts: the context decides, and the drafter has any law


class Chain(NamedTuple):
    """A target that is certain of a token that depends on the whole text.

    Attributes:
        prompt: The tokens to continue.
        drafter: What the drafter does, one of `DRAFTERS`.
    """

    prompt: tuple[int, ...]
    drafter: str

    def call(self, seed: int = 0) -> Call:
        """The call that this is about."""
        law = DRAFTERS[self.drafter]

        def target(ids: Sequence[int]) -> np.ndarray:
            return np.eye(VOCAB)[after(ids)]

        def drafter(ids: Sequence[int]) -> np.ndarray:
            return np.roll(law[len(ids) % len(law)], after(ids))

        return Call(target, drafter, list(self.prompt), LENGTH, None, seed)

    def text(self) -> list[int]:
        """What plain decoding gives."""
        ids = list(self.prompt)
        for _ in range(LENGTH):
            ids.append(after(ids))
        return ids[len(self.prompt) :]

    def lines(self) -> list[str]:
        """Python that makes target and drafter."""
        return [
            "from speculax.conformance.generate.scripts import Chain",
            "",
            f"target, drafter, *_ = Chain({self.prompt}, {self.drafter!r}).call()",
        ]


def after(ids: Sequence[int]) -> int:
    """The token that follows a text: every token and its place have a say."""
    return sum((i + 1) * (token + 1) for i, token in enumerate(as_ids(ids))) % 7 % VOCAB


# Laws of the drafter, one after another by place; entry 0 is the target's own token.
DRAFTERS: dict[str, list[list[float]]] = {
    "knows the target": [[1, 0, 0, 0]],
    "is always wrong": [[0, 1, 0, 0]],
    "is now and then wrong": [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]],
    "is not certain": [[0.4, 0.3, 0.2, 0.1]],
    "has another favourite": [[0.1, 0.7, 0.1, 0.1]],
    "rules the token out": [[0, 0.5, 0.25, 0.25]],
}


def chains(level: Level) -> Iterator[Chain]:
    """Prompts of several lengths, each with every drafter."""
    prompts = [(0,), (2, 1), (3, 0, 1, 1, 2), tuple(i * i % 4 for i in range(100))]
    if level == "strict":
        prompts.insert(0, ())
    for prompt in prompts:
        for drafter in DRAFTERS:
            yield Chain(prompt, drafter)
