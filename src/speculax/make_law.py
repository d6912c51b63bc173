"""Laws from probabilities or logits and the settings of requests."""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.arrays import as_array, as_int32, check_kind
from speculax.flat_laws import SETTINGS, Order
from speculax.laws import Law


def law_from_logits(
    logits: ArrayLike,
    *,
    temperature: ArrayLike | None = None,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    order: Order | np.ndarray | jax.Array = "sequential",
    rows: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> Law:
    """The laws that a model's logits and the settings of requests define; no row is read yet.

    Verifiers and samplers take them in place of probabilities, and expand one row at a time. What
    is None costs nothing; a row turns a setting off by its neutral value. All values are traced.

    A setting has the shape of some of the leading axes of `logits`, from the left: for logits (B,
    G+1, V) it is a number, (B,) or (B, G+1); a mask or bias is (V,), (B, V) or (B, G+1, V), and is
    never repeated in memory.

    Args:
        logits: floating (..., V); -inf marks a token without mass. Arithmetic is float32.
        temperature: At least 0, finite; 0 is a point mass on the likeliest token, the lowest id of
            a tie. Neutral: 1.
        top_k: int, keep the k likeliest tokens and all that tie with the last. Neutral: 0.
        top_p: In (0, 1], keep the likeliest tokens until their mass reaches this, and all that tie
            with the last. Masses within about 1e-6 of it may fall on either side. Neutral: 1.
        min_p: In [0, 1], keep tokens at least this likely compared with the likeliest. Neutral: 0.
        mask: bool, which tokens are allowed.
        bias: floating, added to the logits.
        order: "sequential": mask and bias, temperature, top-k, top-p, min-p, each seeing what the
            one before left, renormalised (as transformers does it); "joint": the cut-offs look at
            the same law, and a token must pass them all (as SGLang does it). Where rows differ in
            it, a setting like the others: bool, True for "joint".
        rows: int (...), which entry of the settings each row uses. Settings then have one entry a
            request, (N,), masks and biases (N, V): for layouts in which a request has several rows.
        ids: int (V,), (B, V) or as `logits`, which token of the target's vocabulary each entry
            stands for, at most once in a row; -1 for none, an entry to be given no mass. For draft
            laws: sparse ones, and those of drafters with a smaller vocabulary.

    Returns:
        The laws. In a row whose settings are out of range, or do not exist, no token has mass: it
        is never drawn from, and a verifier gives -1.

    Raises:
        ValueError: If shapes disagree, or a setting given as a number or NumPy array is out of
            range.
        TypeError: If a dtype is of the wrong kind.

    Examples:
        >>> import jax.numpy as jnp
        >>> import speculax as sx
        >>> law = sx.law_from_logits(jnp.array([[0.0, 3.0, 2.0, 1.0]]), temperature=0.7, top_k=2)
        >>> sx.sample(law, jnp.array([0.99])).tolist()
        [2]
    """
    return _make_law(
        "logits", logits, temperature, top_k, top_p, min_p, mask, bias, order, rows, ids
    )


def law_from_probs(
    probs: ArrayLike,
    *,
    temperature: ArrayLike | None = None,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    order: Order | np.ndarray | jax.Array = "sequential",
    rows: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> Law:
    """The laws that probabilities and the settings of requests define; no row is read yet.

    Args:
        probs: floating (..., V); negative entries count as zero. Without mask, bias and settings
            rows are taken as they are, with them they are normalised by their own sum.
        temperature: Applied to their logarithms. This and the rest as for `law_from_logits`.
        top_k: See there.
        top_p: See there.
        min_p: See there.
        mask: See there.
        bias: Added to the logarithms of the probabilities, from -80 to 80: it is a factor exp(bias)
            in float32, and beyond that rows may be left without mass that can be used.
        order: See there.
        rows: See there.
        ids: See there. With them, `probs` may hold only the tokens that have mass.

    Returns:
        The laws.

    Raises:
        ValueError: As `law_from_logits`.
        TypeError: As `law_from_logits`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import speculax as sx
        >>> law = sx.law_from_probs(jnp.array([0.5, 0.5]), ids=jnp.array([7, 3]))
        >>> sx.sample(law, 0.2).tolist()
        7
    """
    return _make_law("probs", probs, temperature, top_k, top_p, min_p, mask, bias, order, rows, ids)


def _make_law(
    name: str,
    values: ArrayLike,
    temperature: ArrayLike | None,
    top_k: ArrayLike | None,
    top_p: ArrayLike | None,
    min_p: ArrayLike | None,
    mask: ArrayLike | None,
    bias: ArrayLike | None,
    order: Order | np.ndarray | jax.Array,
    rows: ArrayLike | None,
    ids: ArrayLike | None,
) -> Law:
    table = as_array(name, values)
    check_kind(name, table, jnp.floating)
    if table.ndim == 0 or table.shape[-1] == 0:
        raise ValueError(
            f"{name} must have shape (..., V) with V at least 1, got {table.shape}; pass one entry "
            "for each token."
        )
    is_joint = None
    if isinstance(order, np.ndarray | jax.Array):
        order, is_joint = "sequential", order
    if order not in get_args(Order):
        raise ValueError(f'order must be "sequential", "joint" or an array of bool, got {order!r}.')
    lead, size = table.shape[:-1], table.shape[-1]
    given_rows = rows
    if rows is not None:
        rows = as_array("rows", rows)
        check_kind("rows", rows, jnp.integer)
        if rows.shape != lead:
            raise ValueError(
                f"rows must have shape {lead}, that of {name} without its last axis, got "
                f"{rows.shape}; say for each row which entry of the settings it uses."
            )
    num_settings: dict[str, int] = {}  # with rows: of each setting that has one a request

    def read(name: str, value: ArrayLike | None, kind: Any, num_entries: int = 0) -> Any:
        """A setting as an array, its shape checked; masks and the like have a last axis."""
        if value is None:
            return None
        if name in SETTINGS:
            _check_range(name, value)
        array = as_array(name, value)
        check_kind(name, array, kind)
        if num_entries and (array.ndim == 0 or array.shape[-1] != num_entries):
            raise ValueError(
                f"{name} must have {num_entries} entries on its last axis, one for each entry of "
                f"{law_name}, got shape {array.shape}."
            )
        prefix = array.shape[:-1] if num_entries else array.shape
        expected = lead[: len(prefix)] if rows is None else prefix[:1]
        if prefix != expected:
            wanted = f"() or the first axes of {lead}" if rows is None else "() or (N,)"
            raise ValueError(
                f"{name} has shape {prefix}{' before its entries' if num_entries else ''}, which "
                f"must be {wanted}, to go with {law_name} of shape {table.shape}; pass one value "
                "for all rows, or one for each."
            )
        if rows is not None and prefix and name != "rows":
            num_settings[name] = prefix[0]
        return array

    law_name, is_logits = name, name == "logits"
    law = Law(
        table=table,
        is_logits=is_logits,
        order=order,
        mask=read("mask", mask, jnp.bool_, size),
        bias=read("bias", bias, jnp.floating, size),
        ids=_cast(read("ids", ids, jnp.integer, size), jnp.int32),
        temperature=_cast(read("temperature", temperature, jnp.number), jnp.float32),
        top_k=_cast(read("top_k", top_k, jnp.integer), jnp.int32),
        top_p=_cast(read("top_p", top_p, jnp.number), jnp.float32),
        min_p=_cast(read("min_p", min_p, jnp.number), jnp.float32),
        is_joint=read("order", is_joint, jnp.bool_),
        rows=_cast(rows, jnp.int32),
    )
    _check_rows(given_rows, num_settings)
    return law


def _check_rows(rows: ArrayLike | None, num_settings: dict[str, int]) -> None:
    """One number of settings for all; rows on the host can be checked, as `_check_range` says."""
    if len(set(num_settings.values())) > 1:
        several = ", ".join(f"{name} {number}" for name, number in num_settings.items())
        raise ValueError(
            "With rows, settings must have one entry for each of the same N requests, got "
            f"{several}."
        )
    if rows is None or isinstance(rows, jax.Array) or not num_settings:
        return
    number = min(num_settings.values())
    wrong = [row for row in np.asarray(rows).flat if not 0 <= row < number]
    if wrong:
        raise ValueError(
            f"rows must be numbers from 0 to {number - 1}, as there are {number} entries of the "
            f"settings, got {wrong[0]}."
        )


def _cast(array: jax.Array | None, dtype: Any) -> jax.Array | None:
    if array is None:
        return None
    return as_int32(array) if dtype == jnp.int32 else array.astype(dtype)


def _is_in_range(name: str, values: np.ndarray) -> np.ndarray:
    """Which values of a setting mean something, in the precision they are used in."""
    with np.errstate(over="ignore"):
        if name != "top_k":
            values = values.astype(np.float32)
            values = np.where(abs(values) < np.finfo(np.float32).tiny, 0, values)  # as XLA does
    return SETTINGS[name].holds(values)


def _check_range(name: str, value: ArrayLike) -> None:
    """Settings on the host can be checked; those on device are judged row by row."""
    if isinstance(value, jax.Array):
        return
    array = np.asarray(value)
    is_wrong = ~_is_in_range(name, array) if array.dtype.kind in "iuf" else np.bool_(False)
    if is_wrong.any():
        wrong = array[is_wrong].flat[0].item()
        raise ValueError(f"{name} must be {SETTINGS[name].words}, got {wrong}.")
