"""A verifier that takes a key in place of uniforms.

    verify(draft_tokens, draft_probs, target_probs, key) -> {"num_accepted", "tokens"}

As `verify_token`, but for `key`: of `jax.random`, for NumPy and PyTorch an int, the seed. What
depends on chance is counted, at a stated rate of false alarms.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

import speculax as sx
from speculax.conformance.keys import mutants
from speculax.conformance.keys.call import PARAMETERS
from speculax.conformance.keys.edges import check_edges
from speculax.conformance.keys.form import check_form
from speculax.conformance.keys.law import check_law
from speculax.conformance.keys.naming import diagnose
from speculax.conformance.kind import Kind, Specimen, as_candidate

OURS: dict[str, Callable[..., Any]] = {
    "token": sx.verify_token,
    "block": sx.verify_block,
    "sampled": sx.verify_sampled,
}


def with_key(
    draft_tokens: jax.Array,
    draft_probs: jax.Array | None,
    target_probs: jax.Array,
    key: jax.Array,
    *,
    rule: str = "token",
) -> Any:
    """This library's verifier of a rule, with the uniforms that a key gives."""
    accept_key, sample_key = jax.random.split(key)
    accept_uniforms = jax.random.uniform(accept_key, draft_tokens.shape)
    sample_uniforms = jax.random.uniform(sample_key, draft_tokens.shape[:1])
    return OURS[rule](draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms)


def coupled(
    draft_tokens: jax.Array, draft_probs: jax.Array | None, target_probs: jax.Array, key: jax.Array
) -> Any:
    """This library's coupled verifier: the sampled rule, if the draft is not coupled too."""
    del draft_probs
    return sx.verify_coupled(
        draft_tokens, target_probs, jax.random.bits(key, draft_tokens.shape[:1]), positions=0
    )


def _specimens() -> list[Specimen]:
    """This library's verifiers, those in float64, and the mutants."""
    found = []
    for rule in OURS:
        ours = partial(as_candidate, partial(with_key, rule=rule), is_ours=True)
        found.append(Specimen(f"speculax, {rule}", rule, None, ours))
        control = partial(as_candidate, mutants.control(rule))
        found.append(Specimen(f"float64, {rule}", rule, None, control))
        for name, mutant in mutants.mutants_of(rule).items():
            make = partial(as_candidate, mutant)
            found.append(Specimen(name, rule, mutants.fault_of(mutant), make))
    ours = partial(as_candidate, coupled, is_ours=True)
    return [*found, Specimen("speculax, coupled", "sampled", None, ours)]


KIND = Kind(
    name="keys",
    parameters=PARAMETERS,
    rules=tuple(OURS),
    stages={"form": check_form, "edges": check_edges, "law": check_law},
    diagnose=diagnose,
    specimens=_specimens,
)
