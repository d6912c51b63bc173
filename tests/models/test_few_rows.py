"""A few vectors against a large matrix, in the two ways of `few_rows`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from speculax.models import few_rows

ROWS, WIDTH = 1 << 15, 256  # just large enough


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def trace(vectors, matrix):
    """The program, not remembered from another test."""
    return jax.make_jaxpr(lambda vectors, matrix: few_rows.row_products(vectors, matrix))(
        vectors, matrix
    )


@pytest.mark.parametrize("lead", [(1,), (2,), (1, 5), (4, 4), (17,)])
def test_products_are_those_of_float64(matrix, lead):
    vectors = np.random.default_rng(1).standard_normal((*lead, WIDTH)).astype(np.float32)
    wanted = np.einsum("...d,vd->...v", vectors.astype(np.float64), matrix.astype(np.float64))
    # Rounding of 256 products, each below 16 in absolute value times 2**-24, with room.
    given = jax.jit(few_rows.row_products)(vectors, matrix)
    assert given.dtype == jnp.float32
    np.testing.assert_allclose(given, wanted, atol=256 * 16 * 2.0**-24)


@pytest.mark.parametrize(
    ("count", "num_rows", "is_small"),
    [(1, ROWS, False), (2, ROWS, True), (17, ROWS, False), (2, 64, False)],
)
def test_the_sum_is_only_for_a_few_vectors_and_a_large_matrix(
    monkeypatch, matrix, count, num_rows, is_small
):
    asked = []
    monkeypatch.setattr(few_rows, "_is_fused", lambda *shapes: asked.append(shapes) or False)
    trace(jnp.zeros((count, WIDTH)), matrix[:num_rows])
    assert bool(asked) == (is_small and jax.default_backend() == "cpu")


def test_without_the_kernel_it_is_a_product_of_matrices(monkeypatch, matrix):
    monkeypatch.setattr(few_rows, "_is_fused", lambda *shapes: False)
    jaxpr = trace(jnp.zeros((2, WIDTH)), matrix)
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["dot_general"]


def test_with_the_kernel_the_program_has_no_loop_over_the_matrix(matrix):
    if not few_rows._is_fused((2, WIDTH), matrix.shape):
        pytest.skip("this build of XLA has no kernel for it, and the product is used")
    text = jax.jit(few_rows.row_products).lower(jnp.zeros((2, WIDTH)), matrix).compile().as_text()
    assert "ynn_fusion" in text
    assert " dot(" not in text


def test_derivatives_are_those_of_a_product_and_need_no_more_memory(matrix):
    vectors = np.random.default_rng(2).standard_normal((2, 3, WIDTH)).astype(np.float32)
    weights = np.random.default_rng(3).standard_normal((2, 3, ROWS)).astype(np.float32)

    def total(multiply):
        return lambda vectors, matrix: jnp.sum(weights * multiply(vectors, matrix))

    def gradient(multiply):
        return jax.jit(jax.grad(total(multiply), argnums=(0, 1)))

    given = gradient(few_rows._sum_products)(vectors, matrix)
    for one, other in zip(given, gradient(few_rows._products)(vectors, matrix), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    memory = gradient(few_rows._sum_products).lower(vectors, matrix).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2 * matrix.nbytes


def test_other_platforms_get_a_product(matrix):
    if not few_rows._is_fused((2, WIDTH), matrix.shape):
        pytest.skip("this build of XLA has no kernel for it, and the product is used")
    program = jax.export.export(jax.jit(few_rows.row_products), platforms=["tpu"])
    assert "dot_general" in program(jnp.zeros((2, WIDTH)), matrix).mlir_module()
