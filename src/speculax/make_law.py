"""Laws from probabilities or logits and the settings of requests."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from speculax.laws import Law, Order

SETTINGS = {
    "temperature": "finite and at least 0",
    "top_k": "at least 0; 0 keeps all tokens",
    "top_p": "above 0 and at most 1; 1 keeps all tokens",
    "min_p": "at least 0 and at most 1; 0 keeps all tokens",
}


def law_from_logits(
    logits: ArrayLike,
    *,
    temperature: ArrayLike | None = None,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    order: Order = "sequential",
    rows: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> Law:
    """The laws that a model's logits and the settings of requests define; nothing is computed yet.

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
            the same law, and a token must pass them all (as SGLang does it).
        rows: int (...), which entry of the settings each row uses. Settings then have one entry a
            request, (N,), masks and biases (N, V): for layouts in which a request has several rows.
        ids: int (V,), (B, V) or as `logits`, which token of the target's vocabulary each entry
            stands for, at most once in a row; -1 for none. For draft laws: sparse ones, and those
            of drafters with a smaller vocabulary.

    Returns:
        The laws. In a row whose settings are out of range no token has mass: it is never drawn
        from, and a verifier gives -1.

    Raises:
        ValueError: If shapes disagree, or a setting given as a number or NumPy array is out of
            range.
        TypeError: If a dtype is of the wrong kind.

    Example:
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
    order: Order = "sequential",
    rows: ArrayLike | None = None,
    ids: ArrayLike | None = None,
) -> Law:
    """The laws that probabilities and the settings of requests define; nothing is computed yet.

    Args:
        probs: floating (..., V); negative entries count as zero. Without mask, bias and settings
            rows are taken as they are, with them they are normalised by their own sum.
        temperature: Applied to their logarithms. This and the rest as for `law_from_logits`.
        top_k: See there.
        top_p: See there.
        min_p: See there.
        mask: See there.
        bias: Added to the logarithms of the probabilities.
        order: See there.
        rows: See there.
        ids: See there. With them, `probs` may hold only the tokens that have mass.

    Returns:
        The laws.

    Raises:
        ValueError: As `law_from_logits`.
        TypeError: As `law_from_logits`.

    Example:
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
    order: Order,
    rows: ArrayLike | None,
    ids: ArrayLike | None,
) -> Law:
    table = _as_array(name, values, jnp.floating)
    if table.ndim == 0 or 0 in table.shape[-1:]:
        raise ValueError(
            f"{name} must have shape (..., V) with V at least 1, got {table.shape}; pass one entry "
            "for each token."
        )
    if order not in get_args(Order):
        raise ValueError(f'order must be "sequential" or "joint", got {order!r}.')
    lead, size = table.shape[:-1], table.shape[-1]
    if rows is not None:
        rows = _as_array("rows", rows, jnp.integer)
        if rows.shape != lead:
            raise ValueError(
                f"rows must have shape {lead}, that of {name} without its last axis, got "
                f"{rows.shape}; say for each row which entry of the settings it uses."
            )

    def setting(name: str, value: ArrayLike | None, dtype: type = jnp.float32) -> jax.Array | None:
        if value is None:
            return None
        _check_range(name, value)
        kind = jnp.integer if dtype is jnp.int32 else jnp.number
        array = _as_array(name, value, kind).astype(dtype)
        if rows is not None and array.ndim > 0:
            _check_prefix(name, array.shape, array.shape[:1])
            return array[rows]
        _check_prefix(name, array.shape, lead)
        return _spread(array, lead)

    def table_setting(
        name: str, value: ArrayLike | None, kind: type
    ) -> tuple[jax.Array | None, jax.Array | None]:
        if value is None:
            return None, None
        array = _as_array(name, value, kind)
        if array.ndim == 0 or array.shape[-1] != size:
            raise ValueError(
                f"{name} must have {size} entries on its last axis, one for each entry of the "
                f"law, got shape {array.shape}."
            )
        prefix = array.shape[:-1]
        array = array.reshape(-1, size)
        if rows is not None and prefix:
            _check_prefix(name, prefix, prefix[:1])
            return array, rows.astype(jnp.int32)
        _check_prefix(name, prefix, lead)
        numbers = jnp.arange(array.shape[0], dtype=jnp.int32).reshape(prefix)
        return array, _spread(numbers, lead)

    is_logits = name == "logits"
    mask_table, mask_rows = table_setting("mask", mask, jnp.bool_)
    bias_table, bias_rows = table_setting("bias", bias, jnp.floating)
    if bias_table is not None and not is_logits:
        bias_table = jnp.exp(bias_table.astype(jnp.float32))
    ids_table, ids_rows = table_setting("ids", ids, jnp.integer)
    return Law(
        table=table,
        is_logits=is_logits,
        order=order,
        mask=mask_table,
        mask_rows=mask_rows,
        bias=bias_table,
        bias_rows=bias_rows,
        ids=None if ids_table is None else ids_table.astype(jnp.int32),
        ids_rows=ids_rows,
        temperature=setting("temperature", temperature),
        top_k=setting("top_k", top_k, jnp.int32),
        top_p=setting("top_p", top_p),
        min_p=setting("min_p", min_p),
    )


def _as_array(name: str, values: ArrayLike, kind: type) -> jax.Array:
    array = values if isinstance(values, jax.Array) else np.asarray(values)
    if not jnp.issubdtype(array.dtype, kind):
        words = {
            jnp.floating: "a floating-point",
            jnp.integer: "an integer",
            jnp.bool_: "a boolean",
            jnp.number: "a numeric",
        }[kind]
        raise TypeError(
            f"{name} must have {words} dtype, got {array.dtype} of shape {array.shape}; cast it "
            "with astype if its values mean what they should."
        )
    if isinstance(array, np.ndarray) and array.dtype == np.int64:
        array = np.clip(array, np.iinfo(np.int32).min, np.iinfo(np.int32).max).astype(np.int32)
    return jnp.asarray(array)


def is_in_range(name: str, values: np.ndarray) -> np.ndarray:
    """Which values of a setting mean something; NaN does not."""
    if name == "temperature":
        return (values >= 0) & (values < np.inf)
    if name == "top_p":
        return (values > 0) & (values <= 1)
    return (values >= 0) & ((values <= 1) | (name != "min_p"))


def _check_range(name: str, value: ArrayLike) -> None:
    """Settings on the host can be checked; those on device are judged row by row."""
    if isinstance(value, jax.Array):
        return
    array = np.asarray(value)
    is_wrong = ~is_in_range(name, array) if array.dtype.kind in "iuf" else np.bool_(False)
    if is_wrong.any():
        raise ValueError(f"{name} must be {SETTINGS[name]}, got {array[is_wrong].flat[0].item()}.")


def _check_prefix(name: str, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    if shape != lead[: len(shape)]:
        raise ValueError(
            f"{name} has leading shape {shape}, which must be () or begin like {lead}, the leading "
            "shape of the law; pass one value for all rows, or one a batch row."
        )


def _spread(array: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """Repeat an array along the leading axes it lacks."""
    return jnp.broadcast_to(array.reshape(array.shape + (1,) * (len(lead) - array.ndim)), lead)
