"""Tolerances in the units of the data, against SciPy and dense algebra: small data, starting points and defaults."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

import collops
from collops.array import from_global
from collops.operators import BlockDiag
from collops.solvers import Status, bicgstab, block_cg, block_cgls, cg, cgls, fista, gmres, ista, lsmr, lsqr, minres

from .problems import ROWS, assert_close, joined, random_matrix
from .systems import system

SQUARE = {
    "cg": cg,
    "cg-1": lambda *args, **options: cg(*args, reductions=1, **options),
    "cg-pipelined": lambda *args, **options: cg(*args, reductions="pipelined", **options),
    "minres": minres,
    "gmres": gmres,
    "bicgstab": bicgstab,
    "block_cg": lambda A, y, x0=None, **options: block_cg(A, [y], None if x0 is None else [x0], **options),
}
LEAST_SQUARES = {
    "cgls": cgls,
    "cgls-1": lambda *args, **options: cgls(*args, reductions=1, **options),
    "cgls-pipelined": lambda *args, **options: cgls(*args, reductions="pipelined", **options),
    "lsqr": lsqr,
    "lsmr": lsmr,
    "block_cgls": lambda A, y, x0=None, **options: block_cgls(A, [y], None if x0 is None else [x0], **options),
}


def definite(comm, dtype, smallest=1.0):
    """Return a Hermitian operator over uneven ranks, with eigenvalues from `smallest` on, and a dense matrix of it."""
    every = [
        [block @ block.conj().T + smallest * np.eye(len(block)) for block in rank] for rank in _blocks(comm, dtype)
    ]
    return BlockDiag(every[comm.rank], comm), scipy.linalg.block_diag(*joined(every))


def _blocks(comm, dtype):
    return [[random_matrix(n, n, dtype, n) for n in rows] for rows in ROWS[: comm.size]]


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("name", [*SQUARE, *LEAST_SQUARES])
def test_defaults_do_not_depend_on_units(comm, name, dtype, scale):
    op, matrix = definite(comm, dtype)
    truth = random_matrix(len(matrix), 1, dtype, 5)[:, 0]
    y = from_global(scale * (matrix @ truth), op.range, comm=comm)
    result = (SQUARE | LEAST_SQUARES)[name](op, y, niter=400)
    found = result.x.gather().reshape(-1) / scale
    assert result.status.successful and result.iterations > 2
    assert np.linalg.norm(matrix @ (found - truth)) <= 1e-3 * np.linalg.norm(matrix @ truth)


@pytest.mark.parametrize("reductions", [1, 2])
def test_cg_stops_where_scipy_stops(comm, reductions):
    op, matrix = definite(comm, "f8")
    data = 1e-7 * random_matrix(len(matrix), 1, "f8", 6)[:, 0]
    start = 1e-7 * random_matrix(len(matrix), 1, "f8", 7)[:, 0]
    y, x0 = (from_global(values, op.range, comm=comm) for values in (data, start))
    for options in ({}, {"rtol": 1e-2}, {"rtol": 0.0, "atol": 1e-9}, {"rtol": 1e-9, "atol": 1e-8}):
        for begin, at in ((None, None), (x0, start)):
            counted = []
            scipy.sparse.linalg.cg(matrix, data, at, maxiter=300, callback=counted.append, **options)
            result = cg(op, y, begin, niter=300, reductions=reductions, **options)
            assert result.status is Status.CONVERGED and result.iterations == len(counted)


@pytest.mark.parametrize("name", SQUARE)
def test_a_good_start_is_measured_by_the_data(comm, name):
    """The first residual is already small relative to the data, so that nothing is left to do."""
    op, matrix = definite(comm, "f8")
    truth = random_matrix(len(matrix), 1, "f8", 8)[:, 0]
    near = truth + 1e-9 * random_matrix(len(matrix), 1, "f8", 9)[:, 0]
    y, x0 = from_global(matrix @ truth, op.range, comm=comm), from_global(near, op.domain, comm=comm)
    assert SQUARE[name](op, y, x0, rtol=1e-6).iterations == 0
    assert SQUARE[name](op, y, x0, rtol=1e-14, niter=300).iterations > 0
    # Without data the first residual is the measure.
    result = SQUARE[name](op, 0.0 * y, x0, rtol=1e-6, niter=300)
    assert result.status.successful
    assert 0 < np.linalg.norm(matrix @ result.x.gather().reshape(-1)) <= 1e-6 * np.linalg.norm(matrix @ near)


@pytest.mark.parametrize("name", ["cgls", "cgls-1", "cgls-pipelined", "block_cgls"])
def test_a_good_start_has_a_small_gradient(comm, name):
    op, matrix = definite(comm, "f8")
    data = random_matrix(len(matrix), 1, "f8", 6)[:, 0]
    damp = 0.5
    exact = np.linalg.solve(matrix.T @ matrix + damp**2 * np.eye(len(matrix)), matrix.T @ data)
    near = exact + 1e-9 * random_matrix(len(matrix), 1, "f8", 9)[:, 0]
    y, x0 = from_global(data, op.range, comm=comm), from_global(near, op.domain, comm=comm)
    bound = {"rtol" if name == "block_cgls" else "gtol": 1e-6}
    assert LEAST_SQUARES[name](op, y, x0, damp=damp, **bound).iterations == 0
    for scale in (1.0, 1e-7):  # the gradient is far from the residual then
        result = LEAST_SQUARES[name](scale * op, y, 0.0 * x0, damp=scale * damp, niter=500, **bound)
        found = scale * result.x.gather().reshape(-1)
        gradient = matrix.T @ (data - matrix @ found) - damp**2 * found
        assert result.status is Status.CONVERGED and result.iterations > 1
        assert np.linalg.norm(gradient) <= 1.001e-6 * np.linalg.norm(matrix.T @ data)


def test_pylops_measure_replaces_the_relative_ones(comm):
    op, matrix = definite(comm, "f8")
    y = from_global(1e-4 * (matrix @ np.ones(len(matrix))), op.range, comm=comm)
    assert cg(op, y, tol=1.0).iterations == cgls(op, y, tol=1e3).iterations == 0
    for solver in (cg, cgls):
        relative, absolute = solver(op, y, niter=400), solver(op, y, niter=400, tol=0)
        assert relative.iterations < absolute.iterations
        assert_close(absolute.x.gather(), 1e-4 * np.ones(len(matrix)), factor=1e3)


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("kind", ["soft", "half", "hard"])
def test_updates_are_measured_by_the_model(comm, kind, accelerated):
    """Data of 1e-9 take the iterations of data of 1 if the threshold is scaled as well."""
    op, matrix = definite(comm, "f8")
    matrix, data = matrix / np.linalg.norm(matrix, 2), random_matrix(len(matrix), 1, "f8", 6)[:, 0]
    op = op * (1 / np.linalg.norm(scipy.linalg.block_diag(*joined(_blocks(comm, "f8"))), 2) ** 2)
    results = []
    for scale in (1.0, 2.0**-30):
        weight = 0.02 * scale ** {"soft": 1, "half": 1.5, "hard": 2}[kind]
        y = from_global(scale * data, op.range, comm=comm)
        solver = fista if accelerated else ista
        results.append(solver(op, y, niter=3000, eps=weight, alpha=0.9, threshkind=kind, xtol=1e-4))
    one, small = results
    assert one.status is small.status is Status.CONVERGED and 1 < one.iterations == small.iterations
    assert_close(small.x.gather() * 2.0**30, one.x.gather())
    update = np.linalg.norm(np.asarray(one.details["updates"][-1])) / op.domain.size**0.5
    assert update <= 1.001e-4 * np.abs(one.x.gather()).mean()


def test_minres_with_a_preconditioner_measures_the_data_likewise(comm):
    op, matrix = definite(comm, "f8")
    weights = 1e-6 * np.linspace(0.5, 2.0, len(matrix))
    M = collops.Diagonal(from_global(weights, op.domain, comm=comm))
    data = random_matrix(len(matrix), 1, "f8", 6)[:, 0]
    y, x0 = from_global(data, op.range, comm=comm), from_global(0.1 * data, op.domain, comm=comm)
    result = minres(op, y, x0, M=M, rtol=1e-5, niter=300)
    residual = data - matrix @ result.x.gather()
    reached = np.sqrt(residual @ (weights * residual))
    assert result.status is Status.CONVERGED
    assert reached <= 1e-5 * np.sqrt(data @ (weights * data))
    np.testing.assert_allclose(result.residual_norms[-1], reached, rtol=1e-6)


def test_thresholding_stops_by_default(comm):
    op, matrix = definite(comm, "f8", smallest=10.0)  # or it takes thousands of iterations
    op = op * (1 / np.linalg.norm(matrix, 2))
    y = from_global(random_matrix(len(matrix), 1, "f8", 6)[:, 0], op.range, comm=comm)
    for solver in (ista, fista):
        result = solver(op, y, niter=20000, eps=0.02, alpha=0.9)
        assert result.status is Status.CONVERGED and 1 < result.iterations < 20000
        update = np.linalg.norm(np.asarray(result.details["updates"][-1])) / op.domain.size**0.5
        assert update <= 1.001e-10 * np.abs(result.x.gather()).mean()


@pytest.mark.parametrize(("kind", "dtype"), [("stacked", "c8"), ("replicated", "f8")])
def test_stacked_and_replicated_data(comm, kind, dtype):
    op, matrix, data, distributed = system(kind, comm, dtype)
    scale = np.array(1e-8, matrix.real.dtype)
    for solver in (gmres, bicgstab):
        result = solver(op, distributed(scale * data), distributed(scale * data), niter=200)
        assert result.status is Status.CONVERGED
        assert result.residual_norms[-1] <= 1.001e-5 * scale * np.linalg.norm(data)


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        (collops.cg, "damp"),
        (collops.cgls, "damp"),
        (collops.lsqr, "damp"),
        (collops.ista, "eps"),
        (collops.fista, "alpha"),
        (collops.minres, "shift"),
        (collops.hybrid_lsqr, "noise"),
    ],
)
@pytest.mark.needs_ranks(2)
def test_ranks_with_other_numbers_are_an_error(comm, solver, name):
    y = collops.ones(8, comm=comm)
    A = collops.Diagonal(y)
    with pytest.raises(collops.errors.InputError, match="a solver's start differs between ranks"):
        solver(A, y, **{name: 0.1 * (comm.rank + 1)})
