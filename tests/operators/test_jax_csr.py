"""Sparse matrices and scatters by index on the jax engine: eager, compiled, differentiated; against SciPy, NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import IndexScatter
from collops.array import Layout
from collops.operators.csr import CSRMatrix
from tests.operators.test_csr import matrix

pytestmark = pytest.mark.usefixtures("jax_double")
jax = pytest.importorskip("jax", reason="JAX is not installed")


def vectors(comm, op, dtype):
    x, y = np.arange(1, op.shape[1] + 1).astype(dtype), np.arange(2, op.shape[0] + 2).astype(dtype) * (1 + 0.5)
    given = [
        collops.from_global(v.astype(dtype), ends, comm=comm, engine="jax")
        for v, ends in ((x, op.domain), (y, op.range))
    ]
    return x, y.astype(dtype), *given


def test_products(comm, dtype="complex64"):
    import collops.jax as cj

    A = matrix(9, 7, dtype, density=0.4)
    op = CSRMatrix.from_global(A, comm=comm)
    x, y, dx, dy = vectors(comm, op, dtype)

    @cj.jit
    def everything(x, y, out):
        # A transpose does not conjugate.
        return op.forward(x), op.adjoint(y, out), jax.vjp(op.forward, x)[1](y)[0]

    out = collops.ones(op.domain, comm=comm, dtype=dtype, engine="jax")
    got = [np.asarray(each.gather()) for each in everything(dx, dy, out)]
    for each, want in zip(got, (A @ x, A.conj().T @ y, A.T @ y), strict=True):
        np.testing.assert_allclose(each, want, rtol=1e-6)
    # What is kept from a trace must be of use after it.
    np.testing.assert_allclose(np.asarray(op.adjoint(dy).gather()), A.conj().T @ y, rtol=1e-6)
    op.free()


def test_cg_takes_it(comm):
    import scipy.sparse as sp

    A = sp.csr_array(sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(12, 12)))
    truth = np.sin(np.arange(12))
    op = CSRMatrix.from_global(A, comm=comm)
    data = collops.from_global(A @ truth, op.range, comm=comm, engine="jax")
    found = collops.cg(op, data, niter=30, tol=1e-20)
    np.testing.assert_allclose(np.asarray(found.x.gather()), truth, atol=1e-9)


@pytest.mark.parametrize("repeated", [False, True])
def test_scatters(comm, repeated):
    import collops.jax as cj

    rng = np.random.default_rng(3)
    source, target = Layout.split(11, comm.size), Layout.split(8, comm.size)
    take = rng.integers(0, 11, 12 if repeated else 5)
    put = rng.integers(0, 8, 12) if repeated else rng.permutation(8)[:5]
    mine = [np.array_split(pairs, comm.size)[comm.rank] for pairs in (take, put)]
    scatter = IndexScatter(source, mine[0], target, mine[1], comm=comm)
    x, y = np.arange(11.0) + 1, np.full(8, 0.5)
    dx, dy = (collops.from_global(v, ends, comm=comm, engine="jax") for v, ends in ((x, source), (y, target)))
    want = [y.copy(), y.copy(), x.copy()]
    want[0][put] = x[take]
    np.add.at(want[1], put, x[take])
    np.add.at(want[2], take, y[put])
    # Adding is linear: its transpose is the way back.
    want.append(want[2] - x)

    @cj.jit
    def everything(x, y):
        def added(x):
            return scatter.forward(x, collops.zeros_like(y), "sum")

        moved = [scatter.forward(x, y.copy(), op) for op in ("replace", "sum")]
        return *moved, scatter.reverse(y, x.copy(), "sum"), jax.vjp(added, x)[1](y)[0]

    for got, each in zip(everything(dx, dy), want, strict=True):
        np.testing.assert_array_equal(np.asarray(got.gather()), each)


def test_scatters_of_plain_arrays(comm):
    layout = Layout.split(7, comm.size)
    names = (np.arange(3) + comm.rank) % 7
    scatter = IndexScatter(layout, names, 3, None, comm=comm)
    dx = collops.from_global(np.arange(7.0), layout, comm=comm, engine="jax")
    old = jax.numpy.zeros(3)
    got = scatter.forward(dx, old)
    assert isinstance(got, jax.Array) and not np.asarray(old).any()
    np.testing.assert_array_equal(got, names)
    want = np.arange(7.0)
    for rank in range(comm.size):
        np.add.at(want, (np.arange(3) + rank) % 7, 1.0)
    added = scatter.reverse(jax.numpy.ones(3), dx, "sum")
    assert added is dx
    np.testing.assert_array_equal(np.asarray(dx.gather()), want)
