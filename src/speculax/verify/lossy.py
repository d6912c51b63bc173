"""Lossy rules: they keep more draft tokens than the target's law allows, and change that law.

Nothing here is used unless asked for by name. All have the signature of the lossless rules and
their edges, and emit at least one token a step, drawn from the target.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.arrays import as_array, check_kind
from speculax.batching import map_rows, number_rows, vary_with
from speculax.flat_laws import PointMass, TargetLaw
from speculax.inverse_cdf import block_sums
from speculax.laws import Law
from speculax.types import NO_TOKEN, Verdict
from speculax.verify.inputs import Arguments, as_arguments, read_arguments
from speculax.verify.step import Plan, Step, StepLaw, count_accepted, draw_verdict

SHARE = (lambda x: (x > 0) & (x <= 1)), "above 0 and at most 1"

# Whether a draft token passes: of (row of the target, token, uniform).
Test = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def verify_lossy_typical(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
    epsilon: ArrayLike = 0.09,
    delta: ArrayLike = 0.3,
) -> Verdict:
    """Typical acceptance: keep draft tokens that the target finds likely enough.

    Draft token x passes when target(x) > min(epsilon, delta * exp(-entropy of the target's row));
    the next token is drawn from the target's row. Cai et al., "Medusa" (arXiv:2401.10774),
    section 2.3.2. **Lossy**: unlikely tokens become rarer and likely ones more frequent, and the
    text depends on the drafter. Time is that of reading the target's rows up to the last one.

    Args:
        draft_tokens: As for `verify_token`, and so is what is not explained here.
        draft_probs: Not used.
        target_probs: See there.
        accept_uniforms: Not used.
        sample_uniforms: See there.
        draft_lengths: See there.
        epsilon: float () in (0, 1], the threshold for rows of low entropy.
        delta: float () above 0, the threshold for rows of high entropy, compared with the inverse
            of the number of typical tokens.

    Returns:
        As `verify_token`.

    Raises:
        ValueError: If shapes disagree, or epsilon or delta are numbers out of range.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    epsilon = _read("epsilon", epsilon, *SHARE)
    delta = _read("delta", delta, lambda x: x > 0, "above 0")
    arguments = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    return _verify_typical(arguments, epsilon, delta)


def verify_lossy_thresholds(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
    threshold_single: ArrayLike = 1.0,
    threshold_acc: ArrayLike = 1.0,
) -> Verdict:
    """Two thresholds on the target's probability.

    SGLang's `speculative_accept_threshold_single` and `speculative_accept_threshold_acc` (its
    kernel for tree speculative sampling from the target alone), for chains of drafts.

    Draft token x passes when `accept_uniforms[b, i] * threshold_acc < target(x)`, or when target(x)
    is `threshold_single` or more. After a failure the next token is drawn from the target's row
    without x. With both thresholds 1 that is the target's law; **lossy** otherwise. The draft's law
    is not used. Time is that of reading one row a batch row, of logits all rows up to it.

    Args:
        draft_tokens: As for `verify_token`, and so is what is not explained here.
        draft_probs: Not used.
        target_probs: See there.
        accept_uniforms: See there.
        sample_uniforms: See there.
        draft_lengths: See there.
        threshold_single: float () in (0, 1].
        threshold_acc: float () in (0, 1].

    Returns:
        As `verify_token`.

    Raises:
        ValueError: If shapes disagree, or a threshold is a number out of range.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    threshold_single = _read("threshold_single", threshold_single, *SHARE)
    threshold_acc = _read("threshold_acc", threshold_acc, *SHARE)
    arguments = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    return _verify_thresholds(arguments, threshold_single, threshold_acc)


def verify_lossy_top_k(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
    k: ArrayLike = 1,
) -> Verdict:
    """Top-k agreement: keep draft tokens that are among the target's k likeliest.

    Tokens that tie with the k-th count. The next token is drawn from the target's row. **Lossy**:
    the text is the drafter's as long as the target does not object. Time is that of reading the
    target's rows up to the last one.

    Args:
        draft_tokens: As for `verify_token`, and so is what is not explained here.
        draft_probs: Not used.
        target_probs: See there.
        accept_uniforms: Not used.
        sample_uniforms: See there.
        draft_lengths: See there.
        k: int (), at least 1.

    Returns:
        As `verify_token`.

    Raises:
        ValueError: If shapes disagree, or k is a number below 1.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.
    """
    k = _read("k", k, lambda x: x >= 1, "at least 1", kind=jnp.integer)
    arguments = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    return _verify_top_k(arguments, k)


def verify_lossy_synthetic(
    draft_tokens: ArrayLike,
    draft_probs: ArrayLike | Law | None,
    target_probs: ArrayLike | Law,
    accept_uniforms: ArrayLike,
    sample_uniforms: ArrayLike,
    *,
    draft_lengths: ArrayLike | None = None,
    rates: ArrayLike = 0.8,
) -> Verdict:
    """Synthetic acceptance: keep draft tokens at given rates, whatever they are.

    For load tests of engines, where text does not matter and the acceptance rate is to be chosen.
    Draft token i passes when `accept_uniforms[b, i] < rates[i]`; the next token is drawn from the
    target's row. **Lossy**: the text means nothing. Time is that of reading one row a batch row.

    Args:
        draft_tokens: As for `verify_token`, and so is what is not explained here.
        draft_probs: Not used.
        target_probs: See there.
        accept_uniforms: See there.
        sample_uniforms: See there.
        draft_lengths: See there.
        rates: float () or (G,) in [0, 1], the acceptance rate of each position, given that those
            before it were accepted.

    Returns:
        As `verify_token`.

    Raises:
        ValueError: If shapes disagree, or rates on the host are out of range.
        TypeError: If ids are not integers, or probabilities or uniforms not floating.

    Examples:
        >>> import jax.numpy as jnp
        >>> verdict = verify_lossy_synthetic(
        ...     jnp.array([[1, 1]]), None, jnp.full((1, 3, 2), 0.5), jnp.array([[0.7, 0.7]]),
        ...     jnp.array([0.0]), rates=jnp.array([0.9, 0.5])
        ... )
        >>> verdict["num_accepted"].tolist(), verdict["tokens"].tolist()
        ([1], [[1, 0, -1]])
    """
    arguments = as_arguments(
        draft_tokens, draft_probs, target_probs, accept_uniforms, sample_uniforms, draft_lengths
    )
    shape = arguments.draft_tokens.shape[1:]
    rates = _read("rates", rates, lambda x: (x >= 0) & (x <= 1), "from 0 to 1", shape)
    return _verify_synthetic(arguments, rates)


@jax.jit
def _verify_typical(arguments: Arguments, epsilon: jax.Array, delta: jax.Array) -> Verdict:
    step, target, _ = read_arguments(arguments)
    law = target.law

    def passes(row: jax.Array, token: jax.Array, uniform: jax.Array) -> jax.Array:
        normalizer = law.normalizer(row)
        probs = law.read(row, 0, law.size, normalizer)
        logs = jnp.log(jnp.where(probs > 0, probs, 1.0))
        entropy = -jnp.sum(block_sums(probs * logs))
        threshold = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
        return law.at(row, token, normalizer) > threshold

    return _draw(step, target, _count_lazily(step, target, passes))


@jax.jit
def _verify_thresholds(
    arguments: Arguments, threshold_single: jax.Array, threshold_acc: jax.Array
) -> Verdict:
    step, target, _ = read_arguments(arguments)
    law = target.law

    def passes(row: jax.Array, token: jax.Array, uniform: jax.Array) -> jax.Array:
        p = law.at(row, token, law.normalizer(row))
        return (uniform * threshold_acc < p) | ((p >= threshold_single) & ~jnp.isnan(uniform))

    return _draw(step, target, _count_lazily(step, target, passes), without_failed=True)


@jax.jit
def _verify_top_k(arguments: Arguments, k: jax.Array) -> Verdict:
    step, target, _ = read_arguments(arguments)
    law = target.law

    def passes(row: jax.Array, token: jax.Array, uniform: jax.Array) -> jax.Array:
        p = law.at(row, token, law.prepare(row))
        score = law.scores(row, token, 1)[0]
        ahead = jnp.sum(law.scores(row, 0, law.size) > score, dtype=jnp.int32)
        return (p > 0) & (ahead < k)

    return _draw(step, target, _count_lazily(step, target, passes))


@jax.jit
def _verify_synthetic(arguments: Arguments, rates: jax.Array) -> Verdict:
    step, target, _ = read_arguments(arguments)
    passed = step.accept_uniforms < jnp.broadcast_to(rates, step.tokens.shape[1:])[None]
    return _draw(step, target, count_accepted(step.is_token & passed))


def _count_lazily(step: Step, target: StepLaw[TargetLaw], passes: Test) -> jax.Array:
    """How many draft tokens of each row pass; rows are read up to the first that does not."""
    length = step.tokens.shape[1]
    if length == 0:
        return jnp.zeros_like(step.lengths)

    def count(b: jax.Array) -> jax.Array:
        tokens, uniforms, is_token = step.tokens[b], step.accept_uniforms[b], step.is_token[b]

        def test(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            i, _ = carry
            passed = passes(target.pick(b, i)[0], tokens[i], uniforms[i])
            return i + passed.astype(jnp.int32), passed

        def goes_on(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
            i, passed = carry
            return passed & (i < length) & is_token[jnp.minimum(i, length - 1)]

        start = vary_with((jnp.int32(0), jnp.bool_(True)), (step, target))
        return jax.lax.while_loop(goes_on, test, start)[0]

    return map_rows(count, number_rows(step.tokens.shape[0], (step, target)))


def _draw(
    step: Step,
    target: StepLaw[TargetLaw],
    num_accepted: jax.Array,
    without_failed: bool = False,
) -> Verdict:
    """Draw the next token from the target's row, or from what the failed token leaves of it."""
    batch = step.tokens.shape[0]
    rows = jnp.take_along_axis(target.rows, num_accepted[:, None], axis=1)
    normalizers = map_rows(
        lambda b: target.law.normalizer(rows[b, 0]), number_rows(batch, (step, target))
    )
    stop_law = StepLaw(target.law, rows, jax.tree.map(lambda x: x[:, None], normalizers))
    tokens = jnp.pad(step.tokens, ((0, 0), (0, 1)), constant_values=NO_TOKEN)
    failed = jnp.take_along_axis(tokens, num_accepted[:, None], axis=1)[:, 0]
    draft = StepLaw(PointMass(failed), jnp.arange(batch, dtype=jnp.int32)[:, None])
    subtract = (num_accepted < step.lengths) & (failed >= 0) & without_failed
    return draw_verdict(step, Plan(num_accepted, subtract), stop_law, draft)


def _read(
    name: str,
    value: ArrayLike,
    holds: Callable[[np.ndarray], Any],
    words: str,
    shape: tuple[int, ...] = (),
    kind: Any = jnp.number,
) -> jax.Array:
    """A parameter as an array, its shape and dtype checked; its range too if it is on the host."""
    array = as_array(name, value)
    check_kind(name, array, kind)
    if array.shape not in ((), shape):
        also = f" or have shape {shape}" if shape else ""
        raise ValueError(f"{name} must be one number{also}, got shape {array.shape}.")
    if not isinstance(value, jax.Array):
        host = np.asarray(value)
        wrong = host[~np.asarray(holds(host))]
        if wrong.size:
            raise ValueError(f"{name} must be {words}, got {wrong.flat[0].item()}; change it.")
    return array.astype(jnp.int32 if kind is jnp.integer else jnp.float32)
