"""Verifiers in other forms of the exercise, to test the judge by: right ones, and wrong ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import speculax as sx
from speculax.conformance.kind import fault_of
from speculax.conformance.verifier import mutants

Verifier = Callable[..., Any]


def synonyms(verifier: Verifier) -> Callable[..., Any]:
    """Other names in another order; a tuple (tokens, n)."""

    def verify(
        target_distributions: Any,
        draft_distributions: Any,
        draft_ids: Any,
        acceptance_coins: Any,
        resample_coins: Any,
    ) -> tuple[Any, Any]:
        result = verifier(
            draft_ids, draft_distributions, target_distributions, acceptance_coins, resample_coins
        )
        return result["tokens"], result["num_accepted"]

    return verify


def letters(verifier: Verifier) -> Callable[..., Any]:
    """The letters of the literature; tokens only."""

    def verify(x: Any, q: Any, p: Any, u: Any, r: Any) -> Any:
        return verifier(x, q, p, u, r)["tokens"]

    return verify


def swapped(verifier: Verifier) -> Callable[..., Any]:
    """The letters the other way round: p is the draft's. Other keys, and one that nobody needs."""

    def verify(x: Any, p: Any, q: Any, u: Any, r: Any) -> dict[str, Any]:
        result = verifier(x, p, q, u, r)
        n, tokens = result["num_accepted"], result["tokens"]
        return {"output_tokens": tokens, "num_accepted_tokens": n, "num_emitted": n + 1}

    return verify


def single(verifier: Verifier) -> Callable[..., Any]:
    """One sequence without a batch axis, one array for all uniforms; (n, token)."""

    def verify(draft_tokens: Any, p_draft: Any, p_target: Any, uniforms: Any) -> tuple[Any, Any]:
        result = verifier(
            draft_tokens[None], p_draft[None], p_target[None], uniforms[None, :-1], uniforms[-1:]
        )
        n = result["num_accepted"][0]
        return n, result["tokens"][0, n]

    return verify


def lists(verifier: Verifier) -> Callable[..., Any]:
    """One sequence; the list of its new tokens, as long as it comes out. Not for `jax.jit`."""

    def verify(draft: Any, draft_probs: Any, target_probs: Any, coins: Any, coin: Any) -> list[int]:
        result = verifier(draft[None], draft_probs[None], target_probs[None], coins[None], [coin])
        return [int(token) for token in result["tokens"][0] if token != -1]

    return verify


def mask_and_token(verifier: Verifier) -> Callable[..., Any]:
    """Which drafts are accepted, and the token after them; the draft's length as a number."""

    def verify(
        gamma: int, draft_tokens: Any, q: Any, p: Any, rand_accept: Any, rand_final: Any
    ) -> tuple[Any, Any]:
        result = verifier(draft_tokens, q, p, rand_accept, rand_final)
        n = result["num_accepted"]
        xp = np if isinstance(n, np.ndarray) else jnp
        token = xp.take_along_axis(result["tokens"], n[:, None], axis=1)[:, 0]
        return xp.arange(gamma) < n[:, None], token

    return verify


class Example(NamedTuple):
    """A function in a form of its own.

    Attributes:
        name: Its name.
        function: The function.
        fault: What it does wrong; None if nothing.
        compiled: Whether it is for `jax.jit`.
    """

    name: str
    function: Callable[..., Any]
    fault: str | None
    compiled: bool


RIGHT = (synonyms, swapped, single, mask_and_token)
WRONG = {  # the mutant in a form
    "AcceptsEverything": (letters, swapped, lists, mask_and_token),
    "CorrectionFromTarget": (synonyms,),
    "CountsBeyondFirstFailure": (synonyms,),
    "BonusFromLastDraftRow": (swapped,),
    "TargetRowShifted": (mask_and_token,),
    "ResidualNotNormalised": (letters,),
}


def examples() -> list[Example]:
    """Right ones and wrong ones."""
    right = mutants.CONTROLS["token"]
    found = [Example(f"float64, {form.__name__}", form(right), None, False) for form in RIGHT]
    found.append(Example("speculax, single", single(sx.verify_token), None, True))
    for name, forms in WRONG.items():
        mutant = mutants.MUTANTS[name]
        found += [Example(name, form(mutant), fault_of(mutant), False) for form in forms]
    return found
