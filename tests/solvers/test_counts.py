"""Counts of iterations for which a solver would keep more than there is memory: an error before it allocates."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import collops
from collops.array import Layout, from_global
from collops.backend import engine
from collops.errors import InputError
from collops.operators import Diagonal
from collops.solvers import CG, bicgstab, cg, cgls, fista, gmres, hybrid_lsqr, lsmr, lsqr, minres
from collops.solvers.history import open_history
from collops.solvers.nonlinear import lbfgs
from collops.solvers.problem import check_kept
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
    with pytest.raises(InputError, match=r"niter=1000000000000 needs 7\.28 TiB") as caught:
        proximal_gradient(L2(b=y), L1(), y, tau=0.9, niter=MANY, acceleration=acceleration)
    assert caught.value.on_all_ranks
    if acceleration == "fista":
        with pytest.raises(InputError, match="choose a smaller niter"):
            fista(A, y, niter=MANY)


def test_vectors_of_all_iterations(comm, monkeypatch):
    monkeypatch.setattr("collops.solvers.problem.memory_of", lambda _: 100_000)
    n = 400 * comm.size
    A, y = Diagonal(np.arange(1.0, n + 1), comm=comm), collops.ones(n, comm=comm)
    with pytest.raises(InputError, match=r"niter=\d+ needs"):
        hybrid_lsqr(A, y, niter=MANY)
    with pytest.raises(InputError, match="restart=100 needs"):
        gmres(A, y, niter=MANY, restart=100)
    with pytest.raises(InputError, match="memory=1000000000000 needs"):
        lbfgs(Root(), y, memory=MANY)
    assert gmres(A, y, niter=2, restart=3).iterations == 2


@pytest.mark.parametrize(("dtype", "most"), [("f8", 30), ("f4", 60), ("c16", 15)])
def test_the_size_of_what_is_kept(comm, monkeypatch, dtype, most):
    """Five numbers, and a vector whose largest part, on the last rank, has 400 elements."""
    monkeypatch.setattr("collops.solvers.problem.memory_of", lambda _: 100_000)
    sizes = [7] * (comm.size - 1) + [400]
    kept = {"numbers": 5, "layout": Layout.split(sum(sizes), comm.size, sizes=sizes), "dtype": dtype}
    check_kept("memory", most, engine("numpy"), **kept)
    with pytest.raises(InputError, match=f"memory={most + 1} needs") as caught:
        check_kept("memory", most + 1, engine("numpy"), **kept)
    assert caught.value.on_all_ranks


def test_rows_of_all_iterations_on_a_device(comm):
    device = SimpleNamespace(memory="device", mutable=True)
    with pytest.raises(InputError, match=f"niter={MANY} needs"):
        open_history(device, CG(), MANY + 1, None, comm, size=1, ahead=False)  # pyright: ignore[reportArgumentType]


def test_rows_of_a_compiled_loop(comm):
    pytest.importorskip("jax")
    with pytest.raises(InputError, match=f"niter={MANY} needs"):
        cgls(Diagonal(np.arange(1.0, 6), comm=comm), collops.ones(5, comm=comm, engine="jax"), niter=MANY)
