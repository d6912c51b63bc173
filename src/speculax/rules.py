"""The rules that `generate` can judge drafts by, found by name or by function."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from speculax.drafting import write_out
from speculax.laws import Law, expand, flat_law_with_settings
from speculax.types import NO_TOKEN, Draft, Verdict
from speculax.verify.block import block_verdict, verify_block
from speculax.verify.coupled import coupled_verdict, verify_coupled
from speculax.verify.greedy import greedy_verdict, verify_greedy
from speculax.verify.inputs import draft_rows, target_rows
from speculax.verify.lossy import (
    verify_lossy_synthetic,
    verify_lossy_thresholds,
    verify_lossy_top_k,
    verify_lossy_typical,
)
from speculax.verify.sampled import sampled_verdict, verify_sampled
from speculax.verify.step import Step, StepLaw, count_accepted
from speculax.verify.token import token_verdict, verify_token


class Keys(NamedTuple):
    """What coupled noise is keyed by: seeds uint32 (B,), and positions of the first draft token."""

    seeds: jax.Array
    positions: jax.Array


class Rule(NamedTuple):
    """A rule as the loop uses it; hashable.

    Attributes:
        name: Its name.
        judge: `judge(step, draft, target, keys)`, the verdict.
        reads_draft: Whether it reads the draft's laws.
        is_keyed: Whether its noise belongs to positions, so that the text is a function of the
            seed alone, and not to steps.
        is_coupled: Whether drafts are to be drawn with the target's noise.
        is_greedy: Whether it gives greedy texts only.
        becomes_greedy: Whether at temperature 0 it is greedy verification, which is used then.
        draws: What it draws from after a refused draft token: "residual", max(target - draft, 0);
            "block residual", max(P_n * target - draft, 0); "target"; "target without", the target
            without that token; or "unknown".
    """

    name: str
    judge: Callable[[Step, Draft, Law, Keys], Verdict]
    reads_draft: bool = False
    is_keyed: bool = False
    is_coupled: bool = False
    is_greedy: bool = False
    becomes_greedy: bool = True
    draws: Literal["residual", "block residual", "target", "target without", "unknown"] = "target"


def _token(step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
    return token_verdict(step, target_rows(target), draft_rows(step.tokens, draft.probs))


def _block(step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
    return block_verdict(step, target_rows(target), draft_rows(step.tokens, draft.probs))


def _greedy(step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
    return greedy_verdict(step, target_rows(target))


def _sampled(step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
    return sampled_verdict(step, target_rows(target))


def _coupled(step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
    rows = StepLaw(flat_law_with_settings(target), target_rows(target).rows)
    return coupled_verdict(step, rows, *keys)


class _Given(NamedTuple):
    """The judge made of a function with the signature of `verify_token`, and its settings."""

    verify: Callable[..., Verdict]
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self, step: Step, draft: Draft, target: Any, keys: Keys) -> Verdict:
        settings = getattr(self.verify, "keywords", {}) | dict(self.settings)
        # One rate a place, of which a step may have fewer.
        if np.ndim(settings.get("rates", 0)) == 1:
            settings["rates"] = settings["rates"][: step.tokens.shape[1]]
        return self.verify(
            step.tokens,
            draft.probs,
            target,
            step.accept_uniforms,
            step.sample_uniforms,
            draft_lengths=step.lengths,
            **settings,
        )


class _Dense(NamedTuple):
    """The judge made of somebody's own function, which is given arrays and what is in contract."""

    verify: Callable[..., Verdict]

    def __call__(self, step: Step, draft: Draft, target: Law, keys: Keys) -> Verdict:
        target_probs, draft_probs = expand(target, target.size), write_out(draft, target.size)
        # Where a draft token cannot be judged, the draft ends.
        lengths = count_accepted(step.is_token)
        dense = Draft(jnp.maximum(step.tokens, 0), lengths, draft_probs)
        step = step._replace(tokens=dense.tokens, lengths=lengths)
        given: Any = _Given(self.verify)(step, dense, target_probs, keys)
        batch, length = step.tokens.shape
        wanted = {"num_accepted": (batch,), "tokens": (batch, length + 1)}
        is_dict = isinstance(given, dict)
        shapes = {name: jnp.shape(x) for name, x in given.items()} if is_dict else type(given)
        if shapes != wanted:
            raise ValueError(
                f"verify must return a dict of arrays of the shapes {wanted}, got {shapes}."
            )
        num_accepted, tokens = (jnp.asarray(given[name]).astype(jnp.int32) for name in wanted)
        num_accepted = jnp.clip(num_accepted, 0, length)  # or the loop would never end
        # It need not fill up with -1, nor know what to do with a row that cannot be drawn from.
        kept, place = num_accepted[:, None], jnp.arange(length + 1, dtype=jnp.int32)[None]
        has_mass = jnp.take_along_axis(jnp.sum(target_probs, axis=2), kept, axis=1) > 0
        is_made = (place < kept) | ((place == kept) & has_mass)
        return {"num_accepted": num_accepted, "tokens": jnp.where(is_made, tokens, NO_TOKEN)}


def _lossy(verify: Callable[..., Verdict], **kwargs: Any) -> Rule:
    name = verify.__name__.removeprefix("verify_")
    return Rule(name, _Given(verify), becomes_greedy=False, **kwargs)


_FUNCTIONS: dict[Callable[..., Verdict], Rule] = {
    verify_token: Rule("token", _token, reads_draft=True, draws="residual"),
    verify_block: Rule("block", _block, reads_draft=True, draws="block residual"),
    verify_greedy: Rule("greedy", _greedy, is_greedy=True),
    verify_coupled: Rule("coupled", _coupled, is_keyed=True, is_coupled=True),
    verify_sampled: Rule("sampled", _sampled, is_keyed=True),
    verify_lossy_typical: _lossy(verify_lossy_typical),
    verify_lossy_thresholds: _lossy(verify_lossy_thresholds, draws="target without"),
    verify_lossy_top_k: _lossy(verify_lossy_top_k),
    verify_lossy_synthetic: _lossy(verify_lossy_synthetic),
}
RULES = {rule.name: rule for rule in _FUNCTIONS.values()}


_POSITIONAL = 5 * (None,)  # as many arguments as a rule is called with


def as_rule(verify: str | Callable[..., Any]) -> Rule:
    """The rule of a name or a function; see `speculax.generate`.

    Raises:
        ValueError: If there is none of that name, or the function cannot be called as a rule is.
    """
    if isinstance(verify, str):
        if verify not in RULES:
            raise ValueError(
                f"verify must be one of {', '.join(RULES)} or a function, got {verify!r}."
            )
        return RULES[verify]
    if not callable(verify):
        raise ValueError(f"verify must be the name of a rule or a function, got {verify!r}.")
    own = verify.func if isinstance(verify, partial) else verify
    name = getattr(own, "__name__", type(own).__name__)
    try:
        rule = _FUNCTIONS.get(own)
        if rule is not None and own is verify:
            return rule
        inspect.signature(verify).bind(*_POSITIONAL, draft_lengths=None)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"verify must be a hashable function of (draft_tokens, draft_probs, target_probs, "
            f"accept_uniforms, sample_uniforms, *, draft_lengths), as verify_token is, and {name} "
            f"is not ({error}); add what it lacks."
        ) from None
    if rule is None:
        return Rule(name, _Dense(verify), reads_draft=True, becomes_greedy=False, draws="unknown")
    assert isinstance(verify, partial)
    settings = tuple(sorted(verify.keywords.items()))
    try:
        hash(settings)
    except TypeError:  # arrays: the object itself says which rule it is
        return rule._replace(judge=_Given(verify))
    return rule._replace(judge=_Given(own, settings))
