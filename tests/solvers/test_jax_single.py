"""JAX as it comes, without its switch for 64 bits: numbers, operators and solvers are NumPy's in single precision."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from tests.operators.test_jax_operators import CASES, gathered

pytestmark = pytest.mark.usefixtures("jax_single")
jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16"])
def test_random_numbers_are_those_of_numpy(comm, kind, dtype):
    expected, found = (
        collops.random((7, 3), kind=kind, seed=5, dtype=dtype, comm=comm, engine=engine).gather()
        for engine in ("numpy", "jax")
    )
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("name", ["HStack", "sparse", "FirstDerivative", "FFT", "Restriction", "repeated"])
def test_operators(comm, name):
    make, dtype = CASES[name]
    A = make(comm)
    dtype = np.dtype("complex64") if np.dtype(dtype).kind == "c" else np.dtype("float32")
    image = np.dtype("complex64") if A.dtype.kind == "c" else dtype
    given, traced = (
        [
            collops.random(layout, seed=2, dtype=kind, comm=comm, engine=engine)
            for layout, kind in ((A.domain, dtype), (A.range, image))
        ]
        for engine in ("numpy", "jax")
    )
    np.testing.assert_allclose(gathered(A.forward(traced[0])), gathered(A.forward(given[0])), atol=1e-5)
    np.testing.assert_allclose(gathered(jax.jit(A.adjoint)(traced[1])), gathered(A.adjoint(given[1])), atol=1e-5)


@pytest.mark.parametrize("name", ["cg", "cgls", "lsqr", "fista"])
def test_solvers(comm, name):
    matrix = np.random.default_rng(comm.rank).standard_normal((9, 5)).astype(np.float32)
    A = collops.VStack([matrix], comm)
    options = {"alpha": 0.1} if name == "fista" else {}
    found = []
    for engine in ("numpy", "jax"):
        y = collops.random(A.range, seed=1, dtype="float32", comm=comm, engine=engine)
        operator, data = (A.H @ A, A.H @ y) if name == "cg" else (A, y)
        result = getattr(collops, name)(operator, data, niter=8, **options)
        assert result.x.dtype == np.float32
        assert result.iterations > 2  # single precision may be used up before the last of them
        found.append(gathered(result.x))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)
