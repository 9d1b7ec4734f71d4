"""LSMR against SciPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse.linalg

from collops.array import StackedArray, from_global
from collops.operators import BlockDiag, StackedVStack, VStack
from collops.solvers import Status, lsmr

from .problems import VARIETY, assert_close, problem, random_matrix, start
from .test_cgls import messages_of_one_iteration

NAMES = ("rnorm", "arnorm", "anorm", "acond", "xnorm")


@pytest.mark.parametrize(("damp", "with_start"), [(0.0, True), (0.7, False), (0.7, True)])
@pytest.mark.parametrize(("kind", "dtype"), VARIETY[:4])
def test_iterates_are_those_of_scipy(comm, kind, damp, dtype, with_start):
    op, serial, y, yd = problem(kind, comm, dtype)
    x0, x0d = start(op, comm, dtype) if with_start else (None, None)
    result = lsmr(op, yd, x0d, niter=4, damp=damp)
    double = "c16" if np.dtype(dtype).kind == "c" else "f8"
    x, _, _, *expected = scipy.sparse.linalg.lsmr(
        serial.A.astype(double), y.astype(double), damp=damp, maxiter=4, x0=x0
    )
    assert result.x.dtype == np.dtype(dtype)
    assert_close(result.x.gather(), x, dtype, factor=10)
    for name, value in zip(NAMES, expected, strict=True):
        assert_close(result.details[name], float(value), dtype, factor=100)
    residual = y.astype(double) - serial.A.astype(double) @ x
    assert_close(result.details["r1norm"], np.linalg.norm(residual), dtype, factor=100)
    assert_close(result.residual_norms[-1], result.details["r1norm"], dtype)


def test_stops_where_scipy_stops(comm):
    # Directions in which the data are explained badly, and one that is almost lost.
    matrix = random_matrix(8 * comm.size, 6, "f8", 3) * [1, 1, 1, 1, 1, 1e-7]
    op = VStack([matrix[8 * comm.rank : 8 * (comm.rank + 1)]], comm)
    noisy = random_matrix(8 * comm.size, 1, "f8", 4)[:, 0]
    exact = matrix @ random_matrix(6, 1, "f8", 5)[:, 0]
    cases = (
        (noisy, {"atol": 1e-3, "btol": 1e-3, "conlim": 0}),
        (noisy, {"atol": 1e-9, "btol": 1e-9, "conlim": 1e3}),
        (exact, {"atol": 1e-7, "btol": 1e-7, "conlim": 0}),
        (exact, {"atol": 1e-12, "btol": 1e-2, "conlim": 0}),
    )
    statuses = {1: Status.COMPATIBLE, 2: Status.LEAST_SQUARES, 3: Status.ILL_CONDITIONED}
    for data, options in cases:
        result = lsmr(op, from_global(data, op.range, comm=comm), niter=100, **options)
        _, istop, iterations, *_ = scipy.sparse.linalg.lsmr(matrix, data, maxiter=100, **options)
        assert (result.status, result.iterations) == (statuses[istop], iterations)


def test_the_gradient_falls_in_every_iteration(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    norms = []
    lsmr(op, yd, niter=6, atol=0, btol=0, callback=lambda _, view: norms.append((op.H @ (yd - op @ view.x)).norm()))
    assert len(norms) >= 5 and all(after < before for before, after in pairwise(norms[:5]))


def test_stacked_data(comm):
    op, serial, y, yd = problem("vstack", comm, "f8")
    result = lsmr(StackedVStack([op, 2 * op]), StackedArray([yd, yd]), niter=4)
    x, *_ = scipy.sparse.linalg.lsmr(np.vstack([serial.A, 2 * serial.A]), np.concatenate([y, y]), maxiter=4)
    assert_close(result.x.gather(), x)


def test_statuses(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    assert lsmr(op, yd, niter=1).status is Status.ITERATION_LIMIT
    assert lsmr(op, 0 * yd, niter=5).status is Status.EXACT_ZERO
    result = lsmr(op, yd, niter=200, atol=0, btol=0, conlim=0)
    assert result.status.successful and result.iterations < 100


def test_vectors_that_vanish(comm):
    """The bidiagonalisation of a multiple of the identity ends after one step; more steps change nothing."""
    op = BlockDiag([2 * np.eye(3)], comm)
    data = np.arange(1.0, 3 * comm.size + 1)
    result = lsmr(op, from_global(data, op.range, comm=comm), niter=5, atol=0, btol=0, conlim=0)
    assert_close(result.x.gather(), data / 2)
    assert result.status.successful


def test_messages(comm):
    op, _, _, yd = problem("block_diag", comm, "f8")
    sent = messages_of_one_iteration(lsmr, op, yd)
    assert sorted(message.elements for message in sent) == ([1, 4] if comm.size > 1 else [])


def test_the_condition_does_not_depend_on_units(comm):
    """It is that of the matrix in any units: 1, from which the recurrences begin, is not among its elements."""
    matrix = np.linalg.qr(random_matrix(8 * comm.size, 5, "f8", 3))[0] * [1, 2, 3, 4, 5]
    for scale in (1e-3, 1.0, 1e3):
        op = VStack([scale * matrix[8 * comm.rank : 8 * (comm.rank + 1)]], comm)
        y = from_global(random_matrix(8 * comm.size, 1, "f8", 4)[:, 0], op.range, comm=comm)
        found = [lsmr(op, y, niter=n, atol=0, btol=0, conlim=0, verify=False).details["acond"] for n in range(2, 6)]
        assert min(found) > 1 and max(found) < 5.5
        # SciPy compares with 1 from above only, which is far below the elements here.
        options = {"atol": 0, "btol": 0, "conlim": 0}
        data = y.gather()
        expected = [scipy.sparse.linalg.lsmr(1e3 * matrix, data, maxiter=n, **options)[6] for n in range(2, 6)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)
