"""What the literature says to expect: tokens per step, speedup, and the best draft length.

Each function names its source. Arguments are numbers or arrays, which broadcast; arithmetic is
NumPy's, in float64. Letters: a is an acceptance rate, G a draft length, r the ratio
target(x) / draft(x) of a draft token x.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64] | np.float64


def block_efficiency(acceptance_rates: ArrayLike) -> Floats:
    """Expected tokens per step from acceptance rates by position: 1 + a_1 + a_1 a_2 + ...

    Exact whatever the rule, and whether or not the positions are alike. The products are the
    chances that a draft token is kept, which `Stats.acceptance_by_position` estimates.

    Source: Leviathan, Kalman, Matias (arXiv:2211.17192), equation 1 before the rates are taken as
    equal.

    Args:
        acceptance_rates: (..., G) in [0, 1], how often a draft token is accepted where all those
            before it were.

    Returns:
        (...), from 1 to G+1: the correction or bonus token counts.

    Raises:
        ValueError: If a rate is not in [0, 1], or there is no axis of positions.

    Examples:
        >>> float(block_efficiency([0.5, 0.5, 1.0]))
        2.0
    """
    rates = _read_rates("acceptance_rates", acceptance_rates)
    _require_positions("acceptance_rates", rates)
    return 1 + np.cumprod(rates, axis=-1).sum(axis=-1)


def iid_block_efficiency(acceptance_rate: ArrayLike, draft_length: ArrayLike) -> Floats:
    """Expected tokens per step if every draft token holds alike: (1 - a^(G+1)) / (1 - a).

    Accurate also where a is close to 1, and G+1 at 1.

    Source: Leviathan, Kalman, Matias (arXiv:2211.17192), equation 1.

    Args:
        acceptance_rate: (...) in [0, 1].
        draft_length: (...) whole numbers.

    Returns:
        (...), from 1 to G+1: the correction or bonus token counts.

    Raises:
        ValueError: If a rate is not in [0, 1], or a length is negative or not whole.

    Examples:
        >>> float(iid_block_efficiency(0.5, 2))
        1.75
    """
    rate = _read_rates("acceptance_rate", acceptance_rate)
    length = _read("draft_length", draft_length, "finite and at least 0", "0 is plain decoding")
    if np.any(length % 1):
        raise ValueError(
            f"draft_length must be a whole number, got {length[length % 1 > 0][0]}; it counts "
            "draft tokens."
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, and 0 / 0 at a = 1
        tokens = -np.expm1((length + 1) * np.log(rate)) / (1 - rate)
    return np.where(rate == 1, length + 1, tokens)[()]


def mean_accepted_token(ratios: ArrayLike) -> Floats:
    """Expected accepted draft tokens under the token rule: the sum of prod min(1, r).

    Exact for each draft; its mean over drafts sampled from the drafter is an unbiased estimate for
    `verify_token`, with less noise than counting acceptances. Block efficiency is that plus 1.

    Source: Leviathan, Kalman, Matias (arXiv:2211.17192), algorithm 1.

    Args:
        ratios: (..., G), the target's probability of each draft token over the drafter's, each law
            given the draft tokens before it. For deterministic drafters, the target's probability.
            Zeros fill up a shorter draft.

    Returns:
        (...), from 0 to G.

    Raises:
        ValueError: If a ratio is negative or not finite, or there is no axis of positions.

    Examples:
        Two tokens, target (1/3, 2/3), drafter (2/3, 1/3): the four drafts of length 2.

        >>> ratios = [[0.5, 0.5], [0.5, 2.0], [2.0, 0.5], [2.0, 2.0]]
        >>> mean_accepted_token(ratios).tolist()
        [0.75, 1.0, 1.5, 2.0]
    """
    ratios = _read_ratios("ratios", ratios)
    return np.cumprod(np.minimum(1, ratios), axis=-1).sum(axis=-1)


def mean_accepted_block(ratios: ArrayLike) -> Floats:
    """Expected accepted draft tokens under the block rule: the sum of P_i = min(1, P_{i-1} r_i).

    P_i, from P_0 = 1, is the chance that at least i draft tokens are accepted, given the first i.
    The draft tokens after them move it up or down, so the sum is the expectation only on average:
    its mean over drafts sampled from the drafter is an unbiased estimate for block verification.
    For no draft is it below `mean_accepted_token`.

    Source: Sun et al. (arXiv:2403.10444), algorithm 2.

    Args:
        ratios: (..., G), as for `mean_accepted_token`.

    Returns:
        (...), from 0 to G.

    Raises:
        ValueError: If a ratio is negative or not finite, or there is no axis of positions.

    Examples:
        >>> ratios = [[0.5, 0.5], [0.5, 2.0], [2.0, 0.5], [2.0, 2.0]]
        >>> mean_accepted_block(ratios).tolist()
        [0.75, 1.5, 1.5, 2.0]
    """
    ratios = _read_ratios("ratios", ratios)
    chance = np.ones(ratios.shape[:-1])
    total = np.zeros(ratios.shape[:-1])
    for ratio in np.moveaxis(ratios, -1, 0):
        chance = np.minimum(1, chance * ratio)
        total += chance
    return total[()]


def mean_accepted_sampled(target_probs: ArrayLike) -> Floats:
    """Expected accepted draft tokens under sampled verification: the sum of prod target(x).

    Exact for each draft, as each token is kept if the target's own draw is the same.

    Args:
        target_probs: (..., G) in [0, 1], the target's probability of each draft token given those
            before it. Zeros fill up a shorter draft.

    Returns:
        (...), from 0 to G.

    Raises:
        ValueError: If a probability is not in [0, 1], or there is no axis of positions.

    Examples:
        >>> float(mean_accepted_sampled([0.5, 0.5]))
        0.75
    """
    probs = _read_rates("target_probs", target_probs)
    return np.cumprod(_require_positions("target_probs", probs), axis=-1).sum(axis=-1)


def speedup(
    acceptance_rates: ArrayLike, step_costs: ArrayLike, draft_cost: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Tokens per time relative to plain decoding, for each draft length up to G.

    Draft length n makes `block_efficiency(acceptance_rates[:n])` tokens a step, which costs
    `n * draft_cost + step_costs[n]`; plain decoding makes one token for `step_costs[0]`. If all
    steps cost 1, a draft token c and all rates are a, it is (1 - a^(n+1)) / ((1 - a) (n c + 1)).

    Source: Leviathan, Kalman, Matias (arXiv:2211.17192), theorem 3.8, where scoring is as fast for
    many tokens as for one; MagicDec (arXiv:2408.11049) where it is not.

    Args:
        acceptance_rates: (..., G) in [0, 1], as for `block_efficiency`; one number, or (..., 1), if
            all positions have the same rate.
        step_costs: (..., G+1), the cost of one target call that scores 1, ..., G+1 tokens.
        draft_cost: (...), the cost of one draft token, in the unit of `step_costs`: seconds, say,
            or plain target calls if `step_costs[0]` is 1.

    Returns:
        (..., G+1), by draft length from 0; the first is 1.

    Raises:
        ValueError: If a rate is not in [0, 1], a cost is negative or not finite, a step is free or
            there is none, or shapes disagree.

    Examples:
        >>> speedup(0.5, step_costs=[1.0, 1.0, 1.25], draft_cost=0.25).tolist()
        [1.0, 1.2, 1.0]
    """
    rates = _read_rates("acceptance_rates", acceptance_rates)
    cost = _read("draft_cost", draft_cost, "finite and at least 0", "0 is free drafting")
    hint = "give the cost of a target call for 1, ..., G+1 tokens"
    tiny = np.finfo(np.float64).tiny
    steps = _read("step_costs", step_costs, "finite and positive", hint, least=tiny)
    if steps.ndim == 0 or steps.shape[-1] == 0:
        raise ValueError(
            f"step_costs must have shape (..., G+1), got {steps.shape}; the first of a row is the "
            "cost of a plain target call."
        )
    lengths = np.arange(steps.shape[-1])
    try:
        rates = np.broadcast_to(rates, (*rates.shape[:-1], len(lengths) - 1))
        survival = np.cumprod(np.insert(rates, 0, 1, axis=-1), axis=-1)
        step_time = lengths * cost[..., None] + steps
        return np.cumsum(survival, axis=-1) * steps[..., :1] / step_time
    except ValueError:
        raise ValueError(
            "acceptance_rates (..., G), step_costs (..., G+1) and draft_cost (...) must broadcast, "
            f"got shapes {np.shape(acceptance_rates)}, {steps.shape} and {cost.shape}; give one "
            "step cost more than there are rates."
        ) from None


def best_draft_length(
    acceptance_rates: ArrayLike, step_costs: ArrayLike, draft_cost: ArrayLike = 0.0
) -> NDArray[np.intp] | np.intp:
    """The draft length of the largest `speedup`, the shortest of equals; 0 if drafting never pays.

    Source: Leviathan, Kalman, Matias (arXiv:2211.17192), section 3.5, on its theorem 3.8.

    Args:
        acceptance_rates: (..., G), and so on, as for `speedup`.
        step_costs: (..., G+1).
        draft_cost: (...).

    Returns:
        (...), from 0 to G.

    Raises:
        ValueError: As `speedup`.

    Examples:
        >>> int(best_draft_length(0.5, step_costs=[1.0, 1.0, 1.25], draft_cost=0.25))
        1
    """
    return np.argmax(speedup(acceptance_rates, step_costs, draft_cost), axis=-1)


def _read_rates(name: str, values: ArrayLike) -> NDArray[np.float64]:
    return _read(name, values, "from 0 to 1", "pass a fraction such as 0.8, not per cent", most=1.0)


def _read_ratios(name: str, values: ArrayLike) -> NDArray[np.float64]:
    hint = "divide by the law the token was sampled from, after every filter"
    return _require_positions(name, _read(name, values, "finite and at least 0", hint))


def _require_positions(name: str, array: NDArray[np.float64]) -> NDArray[np.float64]:
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have shape (..., G), got the number {array}; pass one for each position."
        )
    return array


def _read(
    name: str,
    values: ArrayLike,
    expected: str,
    hint: str,
    least: float = 0.0,
    most: float = np.finfo(np.float64).max,
) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    is_wrong = ~((array >= least) & (array <= most))  # so is NaN
    if np.any(is_wrong):
        raise ValueError(f"{name} must be {expected}, got {array[is_wrong][0]}; {hint}.")
    return array
