"""Sparse matrices on device arrays, against the same on the host; launched, and replayed in a solver's CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import collops
from collops.operators.csr import CSRMatrix
from tests.operators.test_csr import matrix
from tests.solvers.problems import assert_close

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("shape", "density"), [((17, 17), 0.2), ((300, 211), 0.5), ((211, 300), 0.02), ((3, 2), 0.5)])
def test_products(comm, dtype, shape, density):
    A = matrix(*shape, dtype, density=density)
    op = CSRMatrix.from_global(A, comm=comm)
    x, y = np.arange(1, shape[1] + 1).astype(dtype), np.arange(2, shape[0] + 2).astype(dtype)
    dx = collops.from_global(x, op.domain, comm=comm, engine="cupy")
    dy = collops.from_global(y, op.range, comm=comm, engine="cupy")
    for _ in range(2):
        assert_close(cupy.asnumpy(op.forward(dx).gather()), A @ x, dtype)
        assert_close(cupy.asnumpy(op.adjoint(dy).gather()), A.conj().T @ y, dtype)
    op.dottest(engine="cupy")
    op.free()


@pytest.mark.parametrize(("single", "double"), [("float32", "float64"), ("complex64", "complex128")])
def test_entries_in_single_precision_with_vectors_in_double_precision(comm, single, double):
    A = matrix(300, 211, single, density=0.1)
    op = CSRMatrix.from_global(A, comm=comm)
    x, y = (collops.random(layout, seed=1, comm=comm, dtype=double, engine="cupy") for layout in (op.domain, op.range))
    exact = A.astype(double)
    assert_close(cupy.asnumpy((op @ x).gather()), exact @ cupy.asnumpy(x.gather()), double)
    assert_close(cupy.asnumpy((op.H @ y).gather()), exact.conj().T @ cupy.asnumpy(y.gather()), double)
    op.free()


@pytest.mark.parametrize("entries", [3, 7, 27, 40, 400])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_rows_of_any_length(comm, dtype, entries):
    """Few and many threads for a row, in several blocks, with one long row; the same bits in every run."""
    rng = np.random.default_rng(0)
    A = sp.csr_array(sp.random_array((3000, 3000), density=entries / 3000, rng=rng, dtype=dtype))
    A = sp.vstack([A[:1000], sp.csr_array(np.ones((1, 3000), dtype)), A[1001:]], format="csr")
    op = CSRMatrix.from_global(A, comm=comm)
    x, total = (collops.random(op.domain, seed=seed, comm=comm, dtype=dtype, engine="cupy") for seed in (1, 2))
    expected = A @ cupy.asnumpy(x.gather())
    found = cupy.asnumpy((op @ x).gather())
    assert_close(found, expected, dtype)
    np.testing.assert_array_equal(cupy.asnumpy((op @ x).gather()), found)
    before = cupy.asnumpy(total.gather())
    assert_close(cupy.asnumpy(op._direction(False).add(x, total).gather()), before + expected, dtype)
    op.free()


def test_solver_replays_it(comm):
    n = 200
    A = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    truth = np.sin(np.arange(n))
    op = CSRMatrix.from_global(A, comm=comm)
    data = collops.from_global(A @ truth, op.range, comm=comm, engine="cupy")
    eager = collops.cg(op, data, niter=60, tol=0.0, graph=False)
    replayed = collops.cg(op, data, niter=60, tol=0.0)
    np.testing.assert_allclose(cupy.asnumpy(eager.x.gather()), truth, atol=1e-10)
    np.testing.assert_allclose(cupy.asnumpy(replayed.x.gather()), truth, atol=1e-10)
    assert "replayed" in str(replayed.execution).lower() or comm.device_transport not in (None, "nccl")
    op.free()
