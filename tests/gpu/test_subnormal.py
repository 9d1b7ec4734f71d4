"""Kernels of this package keep subnormal numbers, as NumPy does. CuPy's own, as in ``x + y``, flush them to zero."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import collops

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SMALLEST = float(np.finfo("float32").smallest_subnormal)
SIZE = 301


def subnormal(size=SIZE, seed=0):
    """Integers times the smallest number, all of them below the normal numbers; sums of a few are exact."""
    return (np.random.default_rng(seed).integers(1, 1000, size) * SMALLEST).astype("float32")


def on_device(values, comm, layout=None):
    return collops.from_global(values, layout, comm=comm, engine="cupy")


def check(got, want):
    """Compare with exact values in units of the smallest number; rounding may be by one unit."""
    got = cupy.asnumpy(got.gather()).astype("float64") / SMALLEST
    assert np.count_nonzero(want) > len(want) // 2
    np.testing.assert_allclose(got, np.asarray(want, "float64") / SMALLEST, rtol=0, atol=1)


def test_sums_of_vectors(comm):
    x, y = subnormal(), subnormal(seed=1)
    check(collops.axpby(1, on_device(x, comm), 2, on_device(y, comm)), x.astype("float64") + 2 * y.astype("float64"))


def test_derivative(comm):
    x = np.cumsum(subnormal().astype("float64")).astype("float32")
    D = collops.FirstDerivative((SIZE,), kind="forward", dtype="float32", comm=comm)
    check(D @ on_device(x, comm), np.append(np.diff(x.astype("float64")), 0))


def test_sparse_product(comm):
    matrix = scipy.sparse.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(SIZE, SIZE), format="csr")
    A = collops.CSRMatrix.from_global(matrix.astype("float32"), comm=comm)
    x = subnormal()
    check(A @ on_device(x, comm, A.domain), matrix @ x.astype("float64"))


def test_sums_over_a_star_forest(comm):
    """Every rank adds a leaf to each root of all ranks."""
    count = comm.size * 7
    forest = collops.StarForest(comm, 7, None, np.arange(count) // 7, np.arange(count) % 7)
    leaves = subnormal(count)
    roots = forest.reduce(cupy.asarray(leaves), cupy.zeros(7, "float32"), op="sum")
    want = comm.size * leaves[7 * comm.rank : 7 * (comm.rank + 1)].astype("float64") / SMALLEST
    np.testing.assert_allclose(cupy.asnumpy(roots).astype("float64") / SMALLEST, want, rtol=0, atol=1)
