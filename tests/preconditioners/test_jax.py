"""Preconditioners in compiled programs of JAX: products, and derivatives of solutions that were found with them."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import collops
from collops.preconditioners import block_jacobi, multigrid, two_level
from collops.solvers import cg

from .matrices import distributed, poisson

pytestmark = pytest.mark.usefixtures("jax_double")
jax = pytest.importorskip("jax", reason="JAX is not installed")

KINDS = {
    "multigrid": multigrid,
    "dense blocks": lambda A: block_jacobi(A, "dense"),
    "ILU(0)": lambda A: block_jacobi(A, "ilu0"),
    "two levels": lambda A: two_level(A, aggregates=12),
}


@pytest.fixture(autouse=True)
def two_levels_of_multigrid(monkeypatch):
    monkeypatch.setattr(importlib.import_module("collops.preconditioners.multigrid"), "_DENSE", 20)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("name", KINDS)
def test_compiled_products(comm, name, dtype):
    """Those of NumPy, in a program that does not call the host."""
    A = distributed(poisson(4, dtype=dtype), comm)
    M = KINDS[name](A)
    x = collops.random(A.rows, comm=comm, seed=1, dtype=dtype)
    traced = collops.random(A.rows, comm=comm, seed=1, dtype=dtype, engine="jax")
    both = jax.jit(lambda x: (M @ x, M.H @ x))
    for found, expected in zip(both(traced), (M @ x, M.H @ x), strict=True):
        np.testing.assert_allclose(found.gather(), expected.gather(), rtol=1e-12, atol=1e-12)
    if comm.size == 1:  # the messages of several ranks may be callbacks
        assert "callback" not in both.lower(traced).as_text()


@pytest.mark.parametrize(
    "make",
    [multigrid, lambda A: two_level(A, block_jacobi(A, "dense"), aggregates=12)],
    ids=["multigrid", "two levels"],
)
def test_derivatives_of_solutions(comm, make):
    """The implicit derivative, which solves the adjoint system with the same preconditioner."""
    matrix = poisson(4)
    A = distributed(matrix, comm)
    M = make(A)
    weights = np.linspace(1, 2, 64)
    w, y = (collops.from_global(each, A.rows, comm=comm, engine="jax") for each in (weights, np.cos(weights)))

    def objective(scale, y):
        x = cg(scale * A, y, niter=60, rtol=1e-12, M=M).x
        return w.vdot(x) + x.vdot(x)

    value, (by_scale, by_data) = jax.jit(jax.value_and_grad(objective, (0, 1)))(1.5, y)
    dense = 1.5 * matrix.toarray()
    x = np.linalg.solve(dense, np.cos(weights))
    adjoint = np.linalg.solve(dense, weights + 2 * x)
    assert float(value) == pytest.approx(weights @ x + x @ x, rel=1e-10)
    np.testing.assert_allclose(by_data.gather(), adjoint, atol=1e-9)
    assert float(by_scale) == pytest.approx(-adjoint @ matrix @ x, rel=1e-9)
