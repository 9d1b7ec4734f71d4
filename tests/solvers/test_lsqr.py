"""LSQR against serial PyLops, SciPy and exact solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
from pylops.optimization import basic

from collops.array import from_global
from collops.operators import BlockDiag, VStack
from collops.solvers import Status, lsqr

from .problems import VARIETY, assert_close, problem, random_matrix, start
from .test_cgls import messages_of_one_iteration


@pytest.mark.parametrize(("damp", "with_start"), [(0.0, True), (0.7, False), (0.7, True)])
@pytest.mark.parametrize(("kind", "dtype"), VARIETY[:4])
def test_iterates_are_those_of_pylops(comm, kind, damp, dtype, with_start):
    op, serial, y, yd = problem(kind, comm, dtype)
    x0, x0d = start(op, comm, dtype) if with_start else (None, None)
    iterates = []
    options = {"niter": 4, "damp": damp, "calc_var": dtype in ("f4", "f8")}
    result = lsqr(op, yd, x0d, callback=lambda _, view: iterates.append(view.x.gather()), **options)
    x, _, iterations, _, r2norm, anorm, acond, arnorm, _, var, cost = basic.lsqr(
        serial, y, x0=x0, niter=4, damp=damp, calc_var=dtype in ("f4", "f8")
    )
    assert result.iterations == iterations
    assert result.x.dtype == np.dtype(dtype)
    assert_close(result.x.gather(), x, dtype)
    # With damping PyLops and SciPy subtract a norm of x that belongs to the next iteration.
    norms = [np.linalg.norm(y - serial.A @ iterate) for iterate in iterates]
    assert_close(result.residual_norms[1:], norms, dtype, factor=10)
    if damp == 0:
        assert_close(result.residual_norms, cost, dtype)
    expected = {
        "r1norm": norms[-1],
        "r2norm": r2norm,
        "anorm": anorm,
        "acond": acond,
        "arnorm": arnorm,
        "xnorm": np.linalg.norm(x),  # PyLops has the norm of the change from x0
    }
    for name, value in expected.items():
        assert_close(result.details[name], float(value), dtype, factor=100)
    if var is not None:
        assert_close(result.details["var"].gather(), var, dtype, factor=10)


def test_variances_of_complex_models_are_real(comm):
    op, serial, _, yd = problem("vstack", comm, "c16")
    var = lsqr(op, yd, niter=6, atol=0, btol=0, damp=0.5, calc_var=True).details["var"]
    inverse = np.linalg.inv(serial.A.conj().T @ serial.A + 0.25 * np.eye(6))
    assert var.dtype == np.float64
    assert_close(var.gather(), np.diag(inverse).real, factor=100)


def test_stops_where_scipy_stops(comm):
    # Directions in which the data are explained badly, and one that is almost lost.
    matrix = random_matrix(8 * comm.size, 6, "f8", 3) * [1, 1, 1, 1, 1, 1e-7]
    op = VStack([matrix[8 * comm.rank : 8 * (comm.rank + 1)]], comm)
    y = random_matrix(8 * comm.size, 1, "f8", 4)[:, 0]
    yd = from_global(y, op.range, comm=comm)
    truth = random_matrix(6, 1, "f8", 5)[:, 0]
    exact = matrix @ truth
    cases = (
        (yd, y, {"atol": 1e-3, "btol": 1e-3, "conlim": 0}),
        (yd, y, {"atol": 1e-9, "btol": 1e-9, "conlim": 1e3}),
        (from_global(exact, op.range, comm=comm), exact, {"atol": 1e-7, "btol": 1e-7, "conlim": 0}),
        (from_global(exact, op.range, comm=comm), exact, {"atol": 1e-12, "btol": 1e-2, "conlim": 0}),
    )
    statuses = {1: Status.COMPATIBLE, 2: Status.LEAST_SQUARES, 3: Status.ILL_CONDITIONED}
    for distributed, serial, options in cases:
        result = lsqr(op, distributed, niter=100, **options)
        _, istop, iterations, *_ = scipy.sparse.linalg.lsqr(matrix, serial, iter_lim=100, **options)
        # SciPy measures the gradient by the current residual, PyLops and this by the first gradient.
        if result.status is not Status.LEAST_SQUARES:
            assert result.iterations == iterations
        assert result.status is statuses[istop]


def test_statuses(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    assert lsqr(op, yd, niter=1).status is Status.ITERATION_LIMIT
    assert lsqr(op, 0 * yd, niter=5).status is Status.EXACT_ZERO
    result = lsqr(op, yd, niter=200, atol=0, btol=0, conlim=0)
    assert result.status in (Status.LEAST_SQUARES_TO_ROUNDING, Status.COMPATIBLE_TO_ROUNDING, Status.LEAST_SQUARES)
    assert result.status.successful and result.iterations < 100


def test_vectors_that_vanish(comm):
    """The bidiagonalisation of a multiple of the identity ends after one step; going on changes nothing."""
    op = BlockDiag([2 * np.eye(3)], comm)
    y = from_global(np.arange(1.0, 3 * comm.size + 1), op.range, comm=comm)
    result = lsqr(op, y, niter=5, atol=0, btol=0, conlim=0)
    assert_close(result.x.gather(), np.arange(1.0, 3 * comm.size + 1) / 2)
    assert result.status.successful


def test_messages(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    sent = messages_of_one_iteration(lsqr, op, yd)
    assert sorted(message.elements for message in sent) == ([1, 2, op.domain.size] if comm.size > 1 else [])
    diagonal, _, _, yd = problem("block_diag", comm, "f8")
    sent = messages_of_one_iteration(lsqr, diagonal, yd)
    assert sorted(message.elements for message in sent) == ([1, 2] if comm.size > 1 else [])
