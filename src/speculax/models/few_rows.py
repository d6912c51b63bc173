"""A few vectors against every row of a large matrix: the head of a model that judges a draft.

XLA's matrix product on CPUs first rearranges the matrix, which takes longer than to read it. As a
sum of products, which XLA (0.10) hands to a library of small kernels (YNNPACK), it is read once and
that is all. Whether that happens is looked up in a compiled program: without the kernels the sum
would be a hundred times slower.
"""

import math
from functools import cache

import jax
import jax.numpy as jnp

_MOST_VECTORS = 16  # with more it is arithmetic that takes the time, and little is won
_LARGE = 1 << 23  # entries; a smaller matrix stays in the caches


def row_products(vectors: jax.Array, matrix: jax.Array) -> jax.Array:
    """The products of `vectors` (..., D) with the rows of `matrix` (V, D): float32 (..., V)."""
    if not _has_kernel(vectors, matrix):
        return _products(vectors, matrix)
    return jax.lax.platform_dependent(vectors, matrix, cpu=_sum_products, default=_products)


def _products(vectors: jax.Array, matrix: jax.Array) -> jax.Array:
    dimensions = (((vectors.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(vectors, matrix, dimensions, preferred_element_type=jnp.float32)


@jax.custom_jvp
def _sum_products(vectors: jax.Array, matrix: jax.Array) -> jax.Array:
    flat = vectors.reshape(-1, vectors.shape[-1])
    sums = jnp.sum(matrix[:, None] * flat[None], axis=-1).T
    return sums.reshape(*vectors.shape[:-1], len(matrix))


@_sum_products.defjvp
def _sum_products_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    """Derivatives by matrix products: as sums they would be written out, (V, ..., D)."""
    (vectors, matrix), (by_vectors, by_matrix) = primals, tangents
    tangent = _products(by_vectors, matrix) + _products(vectors, by_matrix)
    return _sum_products(vectors, matrix), tangent


def _has_kernel(vectors: jax.Array, matrix: jax.Array) -> bool:
    return (
        1 < (count := math.prod(vectors.shape[:-1])) <= _MOST_VECTORS
        and matrix.size >= _LARGE
        and vectors.dtype == matrix.dtype == jnp.float32
        and jax.default_backend() == "cpu"
        and _is_fused((count, matrix.shape[1]), matrix.shape)
    )


@cache
def _is_fused(*shapes: tuple[int, ...]) -> bool:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return "ynn_fusion" in str(jax.jit(_sum_products).lower(*arrays).compile().as_text())
