"""A sampler: logits and the settings of requests to one token a row.

    sample(logits, temperature, top_k, top_p, min_p, uniforms) -> ids

logits float32 (R, V), -inf for a token without mass; temperature float32 (R,), 0 for the likeliest
token, the lowest id of a tie; top_k int32 (R,), 0 for off; top_p float32 (R,), 1 for off; min_p
float32 (R,), 0 for off; uniforms float32 (R,) in [0, 1), one a row; ids int32 (R,). The last
parameter may be `key`, of `jax.random` (for NumPy and PyTorch an int, the seed), in place of
uniforms. Rules: "sequential", each filter sees what the one before has left, in the order of the
parameters; "joint", all look at the law after the temperature, and a token must pass each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax

import speculax as sx
from speculax.conformance.candidate import Candidate
from speculax.conformance.kind import Check, Kind, Specimen, as_candidate
from speculax.conformance.report import Diagnosis, Level, Outcome
from speculax.conformance.sampler import naming
from speculax.conformance.sampler.call import PARAMETERS
from speculax.conformance.sampler.definition import ByKey, Sampler
from speculax.conformance.sampler.edges import check_edges
from speculax.conformance.sampler.form import check_form
from speculax.conformance.sampler.large import check_large, check_rare
from speculax.conformance.sampler.laws import check_greedy, check_law, check_settings
from speculax.conformance.sampler.mutants import BY_KEY, fault_of, mutants_of
from speculax.conformance.sampler.oracle import Order

ORDERS: tuple[Order, ...] = ("sequential", "joint")
SHOWN: list[tuple[Order, bool]] = [("sequential", False), ("sequential", True), ("joint", False)]


def sample_by_uniforms(
    logits: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    min_p: jax.Array,
    uniforms: jax.Array,
    *,
    order: Order = "sequential",
) -> jax.Array:
    """This library's sampler with the signature of the kind, int32 (R,)."""
    law = sx.law_from_logits(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order
    )
    return sx.sample(law, uniforms)


def sample_by_key(
    logits: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    min_p: jax.Array,
    key: jax.Array,
    *,
    order: Order = "sequential",
) -> jax.Array:
    """The same by a key, int32 (R,)."""
    law = sx.law_from_logits(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, order=order
    )
    return sx.sample(law, key=key)


def sample_coupled(
    logits: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    min_p: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """The coupled draw, by a key that the seeds of rows come from, int32 (R,)."""
    law = sx.law_from_logits(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return sx.coupled_draw(law, jax.random.bits(key, logits.shape[:1]), positions=0)


def _by_order(check: Callable[[Candidate, Order, Level], Outcome]) -> Check:
    return lambda candidate, rule, level: check(candidate, cast(Order, rule), level)


def _diagnose(candidate: Candidate, rule: str, level: Level) -> Diagnosis | None:
    return naming.diagnose(candidate, cast(Order, rule), level)


# In the second order of filters, and by key, the mutants that this may make a difference for.
OF_ORDER = {
    "TopPBeforeTemperature",
    "TopPOfWhatTopKLeaves",
    "TopPWithoutTheTokenThatReaches",
    "TopKOneMore",
    "MinPOfOne",
}
OF_KEY = {
    *BY_KEY,
    "OneUniformForTheBatch",
    "TopPBeforeTemperature",
    "GreedyLogitsInverted",
    "ColdInsteadOfGreedy",
}


def _specimens() -> list[Specimen]:
    """This library's samplers, those in float64, and the mutants; of uniforms and by key."""
    found = []
    for order, by_key in SHOWN:
        chosen = mutants_of(order, by_key)
        if order == "joint" or by_key:
            some = OF_KEY if by_key else OF_ORDER
            chosen = {name: chosen[name] for name in chosen if name in some}
        ours = partial(sample_by_key if by_key else sample_by_uniforms, order=order)
        right = ByKey(Sampler(order)) if by_key else Sampler(order)
        made: list[tuple[str, str | None, Callable[..., Any]]]
        made = [("speculax", None, ours), ("float64", None, right)]
        made += [(name, fault_of(mutant), mutant) for name, mutant in chosen.items()]
        for name, fault, function in made:
            title = f"{name}, {'by key' if by_key else 'of uniforms'}" if fault is None else name
            make = partial(as_candidate, function, is_ours=function is ours)
            found.append(Specimen(title, order, fault, make))
    ours = partial(as_candidate, sample_coupled, is_ours=True)
    return [*found, Specimen("speculax, coupled", "sequential", None, ours)]


KIND = Kind(
    name="sampler",
    parameters=PARAMETERS,
    rules=ORDERS,
    stages={
        "form": _by_order(check_form),
        "law": _by_order(check_law),
        "settings": _by_order(check_settings),
        "greedy": _by_order(check_greedy),
        "edges": _by_order(check_edges),
        "large": _by_order(check_large),
        "rare tokens": _by_order(check_rare),
    },
    diagnose=_diagnose,
    specimens=_specimens,
)
