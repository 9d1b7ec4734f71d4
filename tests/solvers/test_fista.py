"""FISTA: what it has that ISTA has not."""

from __future__ import annotations

import numpy as np

from collops.array import from_global
from collops.operators import BlockDiag
from collops.solvers import fista, ista
from collops.solvers.schedule import momenta

from .problems import assert_close, problem
from .test_ista import step_size


def test_momenta():
    first, second, third = momenta(3)
    t1 = (1 + np.sqrt(5)) / 2
    t2 = (1 + np.sqrt(1 + 4 * t1**2)) / 2
    t3 = (1 + np.sqrt(1 + 4 * t2**2)) / 2
    assert_close([first, second, third], [0, (t1 - 1) / t2, (t2 - 1) / t3])
    assert momenta(0).size == 0


def test_is_faster_than_ista(comm):
    diagonal = np.array([1.0, 0.1, 0.02])
    op = BlockDiag([np.diag(diagonal)], comm)
    y = from_global(np.ones(3 * comm.size), op.range, comm=comm)
    options = {"eps": 1e-4, "alpha": 1.0, "tol": 0, "niter": 100}
    exact = np.tile((diagonal - 0.5e-4) / diagonal**2, comm.size)
    errors = [np.linalg.norm(solver(op, y, **options).x.gather() - exact) for solver in (fista, ista)]
    assert errors[0] < 0.7 * errors[1]


def test_the_residual_is_that_of_the_model(comm):
    op, serial, y, yd = problem("vstack", comm, "f8")
    seen = []
    result = fista(
        op,
        yd,
        niter=5,
        alpha=step_size(serial),
        callback=lambda _, view: seen.append((view.x.gather(), view.residual_norm)),
    )
    for x, norm in seen:
        assert_close(norm, np.linalg.norm(y - serial.A @ x))
    assert len(result.residual_norms) == 6 and len(result.details["updates"]) == 5
