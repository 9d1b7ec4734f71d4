"""The dot test on JAX, with and without 64 bits."""

import jax
import numpy as np
import pytest

import collops

MATRIX = np.random.default_rng(1).standard_normal((6, 4))
SQUARE = np.random.default_rng(2).standard_normal((8, 8))


@pytest.mark.parametrize("double", [False, True])
def test_dottest_judges_by_the_dtype_of_its_vectors(comm, double):
    """JAX without 64 bits computes in single precision, which the tolerance of double precision does not allow for."""
    jax.config.update("jax_enable_x64", double)
    for A in (
        collops.FFT(64, comm=comm, dtype="complex128"),
        collops.BlockDiag([SQUARE + 1j * SQUARE[::-1]], comm),
        collops.BlockDiag([MATRIX], comm),
        collops.BlockDiag([SQUARE], comm).astype("bfloat16"),
    ):
        for complex_vectors in (None, True):
            assert all(
                collops.dottest(A, engine="jax", seed=seed, complex_vectors=complex_vectors) for seed in range(3)
            )
    wrong = collops.BlockDiag([SQUARE], comm)
    wrong._adjoint = lambda y, out: 1.1 * collops.BlockDiag([SQUARE], comm)._adjoint(y, out)
    assert not collops.dottest(wrong, engine="jax", raises=False)
