"""Counts of iterations for which a solver would keep more than there is memory: an error before it allocates."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.array import from_global
from collops.errors import InputError
from collops.operators import Diagonal
from collops.solvers import bicgstab, cg, cgls, fista, gmres, hybrid_lsqr, lsmr, lsqr, minres
from collops.solvers.nonlinear import lbfgs
from collops.solvers.proximal import L1, L2, proximal_gradient

MANY = 10**12


class Root:
    """The square root of 2."""

    def residual(self, x):
        return x * x - 2.0

    def jacobian(self, x):
        return Diagonal(2 * x)


@pytest.fixture
def problem(comm):
    return Diagonal(np.arange(1.0, 6), comm=comm), from_global(np.ones(5), comm=comm)


@pytest.mark.parametrize("solver", [cg, cgls, lsqr, lsmr, minres, bicgstab, gmres])
def test_what_is_not_kept_may_be_as_many(problem, solver):
    """They stop when the solution is found."""
    A, y = problem
    result = solver(A, y, niter=MANY)
    np.testing.assert_allclose(result.x.gather(), 1 / np.arange(1.0, 6), rtol=1e-4)


@pytest.mark.parametrize("acceleration", ["fista", "vandenberghe"])
def test_a_table_of_all_iterations(problem, acceleration):
    A, y = problem
    with pytest.raises(InputError, match=r"niter=1000000000000 makes the solver keep 7\.28 TiB") as caught:
        proximal_gradient(L2(b=y), L1(), y, tau=0.9, niter=MANY, acceleration=acceleration)
    assert caught.value.on_all_ranks
    if acceleration == "fista":
        with pytest.raises(InputError, match="choose a smaller niter"):
            fista(A, y, niter=MANY)


def test_vectors_of_all_iterations(comm, monkeypatch):
    monkeypatch.setattr("collops.solvers.problem.memory_of", lambda _: 100_000)
    n = 400 * comm.size
    A, y = Diagonal(np.arange(1.0, n + 1), comm=comm), collops.ones(n, comm=comm)
    with pytest.raises(InputError, match=r"niter=\d+ makes the solver keep"):
        hybrid_lsqr(A, y, niter=MANY)
    with pytest.raises(InputError, match="restart=100 makes the solver keep"):
        gmres(A, y, niter=MANY, restart=100)
    with pytest.raises(InputError, match="memory=1000000000000 makes the solver keep"):
        lbfgs(Root(), y, memory=MANY)
    assert gmres(A, y, niter=2, restart=3).iterations == 2
