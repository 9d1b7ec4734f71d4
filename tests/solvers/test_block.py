"""Block CG and block CGLS against dense solutions, and against solutions of one column at a time."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import profile
from collops.array import StackedArray, from_global
from collops.errors import InputError, LayoutError, NotFiniteError
from collops.operators import FFT, BlockDiag, Diagonal, VStack
from collops.solvers import Status, block_cg, block_cgls, cg, cgls

from .problems import assert_close, problem, random_matrix
from .systems import KINDS, masked, system


def columns(n: int, dtype, count: int = 4) -> np.ndarray:
    """Return right-hand sides in rows: two are equal, one is zero, one is a thousand times larger."""
    rows = random_matrix(count, n, dtype, 41)
    rows[1], rows[2] = rows[0], 0
    rows[3] *= 1000
    return rows


def gathered(block) -> np.ndarray:
    return np.concatenate(block.gather(), axis=1) if isinstance(block, StackedArray) else block.gather()


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_cg_finds_the_solutions(comm, kind, dtype):
    other, matrix, _, distributed = system(kind, comm, dtype, symmetric=True)
    op, matrix = other.H @ other, matrix.conj().T @ matrix + 2 * np.eye(len(matrix))
    data = columns(len(matrix), dtype)
    tol = 1e4 * float(np.finfo(dtype).eps)
    result = block_cg(op, [distributed(row) for row in data], damp=2.0, rtol=tol, niter=100)
    assert result.status is Status.CONVERGED
    X = gathered(result.x)
    assert X.dtype == np.dtype(dtype)
    norms = np.linalg.norm(matrix @ X.T - data.T, axis=0)
    assert (norms <= 2 * tol * np.linalg.norm(data, axis=1)).all()
    np.testing.assert_allclose(result.residual_norms[0], np.linalg.norm(data), rtol=1e-5)
    enough = 2 * tol * np.linalg.norm(data)
    again = block_cg(op, [distributed(row) for row in data], result.x, damp=2.0, rtol=0, atol=enough)
    assert again.iterations == 0 and again.status is Status.CONVERGED


@pytest.mark.parametrize(("kind", "dtype"), [("vstack", "f8"), ("hstack", "c16"), ("block_diag", "f4")])
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_cgls_finds_the_least_squares(comm, kind, dtype, damp):
    op, serial, _, _ = problem(kind, comm, dtype)
    matrix = serial.A
    rows, n = matrix.shape
    data, start = columns(rows, dtype), 10 * random_matrix(4, n, dtype, 42)
    whole = np.vstack([matrix, damp * np.eye(n)])
    expected = np.linalg.lstsq(whole, np.vstack([data.T, np.zeros((n, 4))]), rcond=None)[0].T
    norm = np.sqrt(np.sum(np.abs(data - expected @ matrix.T) ** 2) + damp**2 * np.sum(np.abs(expected) ** 2))
    tol = 1e3 * float(np.finfo(dtype).eps)
    Y = [from_global(row, op.range, comm=comm) for row in data]
    for X0 in (None, [from_global(row, op.domain, comm=comm) for row in start]):
        result = block_cgls(op, Y, X0, damp=damp, rtol=tol, niter=200)
        assert result.status is Status.CONVERGED
        assert_close(result.x.gather(), expected, dtype, factor=10)
        np.testing.assert_allclose(result.residual_norms[-1], norm, rtol=1e-3 if dtype == "f4" else 1e-7)


def test_columns_share_their_directions(comm):
    """Ten outlying eigenvalues need ten iterations of CG, but one of a block of ten columns."""
    values = np.ones(60)
    values[:10] = np.geomspace(10, 1e3, 10)
    op = Diagonal(from_global(values, comm=comm))
    Y = [collops.random(op.range, seed=seed, comm=comm) for seed in range(10)]
    together, alone = block_cg(op, Y, rtol=1e-8), cg(op, Y[0], tol=1e-14, niter=100)
    assert together.iterations <= 3 and alone.iterations >= 10
    assert_close(together.x.gather(), np.stack([y.gather() / values for y in Y]))


def test_one_column_has_the_iterates_of_cg(comm):
    op, _, _, y = problem("vstack", comm, "f8")
    normal, right = op.H @ op, op.H @ y
    for niter in (1, 4):
        M = Diagonal(np.arange(1.0, 7), op.domain, comm=comm)
        assert_close(
            block_cg(normal, [right], M=M, niter=niter, rtol=0).x.gather()[0],
            cg(normal, right, M=M, niter=niter, tol=0).x.gather(),
        )
        for options in ({}, {"M": M, "damp": 0.3}):
            assert_close(
                block_cgls(op, [y], niter=niter, rtol=0, **options).x.gather()[0],
                cgls(op, y, niter=niter, tol=0, **options).x.gather(),
            )


def test_an_ill_conditioned_matrix(comm):
    """About as many iterations as Dubrulle's method with factors of Householder, with six columns."""
    n, count = 40, 6
    u = np.linalg.qr(random_matrix(n, n, "f8", 1))[0]
    matrix, data = (u * np.geomspace(1, 1e-6, n)) @ u.T, random_matrix(n, count, "f8", 2)
    X, (Q, C) = np.zeros_like(data), np.linalg.qr(data)
    P, expected = Q, 0
    while np.max(np.linalg.norm(C, axis=0) / np.linalg.norm(data, axis=0)) > 1e-8:
        Z = matrix @ P
        alpha = np.linalg.inv(P.T @ Z)
        X, expected = X + P @ alpha @ C, expected + 1
        Q, S = np.linalg.qr(Q - Z @ alpha)
        P, C = Q + P @ S.T, S @ C
    op = BlockDiag([matrix] * (comm.rank == 0), comm)
    result = block_cg(op, [from_global(y, op.range, comm=comm) for y in data.T], rtol=1e-8)
    assert abs(result.iterations - expected) <= 0.2 * expected
    assert np.linalg.norm(matrix @ result.x.gather().T - data) <= 2e-8 * np.linalg.norm(data)


@pytest.mark.parametrize("solver", [block_cg, block_cgls])
@pytest.mark.parametrize("largest", [1.5, 6.0])
def test_columns_of_sizes_far_apart(comm, solver, largest):
    """Each has a unit of its own, also if the unit of the largest is 1, as of numbers from 1 to 2."""
    values = np.linspace(1, 3, 6)
    op, large, small = Diagonal(values, comm=comm), np.full(6, largest), np.linspace(1, 2, 6)
    found = solver(op, [from_global(y, comm=comm) for y in (large, np.ldexp(small, -600))], rtol=1e-12)
    assert found.status is Status.CONVERGED
    x = found.x.gather()
    assert_close(x[0], large / values)
    assert_close(np.ldexp(x[1], 600), small / values)


def test_norms_and_tolerances_of_a_small_column_are_in_its_unit(comm):
    op, ones = Diagonal(np.linspace(1, 3, 6), comm=comm), collops.ones(6, comm=comm)

    def solved(exponent: int):
        small = from_global(np.ldexp(np.linspace(1, 2, 6), exponent), comm=comm)
        # The first column begins at its solution.
        return block_cg(op, [op @ ones, small], [ones, 0 * ones], rtol=0, atol=np.ldexp(0.5, exponent))

    ordinary, far = solved(0), solved(-470)
    assert (far.status, far.iterations) == (ordinary.status, ordinary.iterations) == (Status.CONVERGED, 2)
    assert_close(np.ldexp(far.residual_norms, 470), ordinary.residual_norms)


def test_columns_that_nearly_depend_on_each_other(comm):
    """The block has a full basis of nine unknowns after three iterations; one pass would take about fifteen."""
    matrix, data = random_matrix(30, 9, "f8", 3), random_matrix(6, 30, "f8", 4)
    data[3], data[4], data[5] = data[0] + 1e-9 * data[3], 1.5 * data[1], data[1] - data[0]
    op = VStack([matrix] * (comm.rank == 0), comm)
    result = block_cgls(op, [from_global(row, op.range, comm=comm) for row in data], rtol=1e-13)
    assert result.iterations <= 4
    assert_close(result.x.gather(), np.linalg.lstsq(matrix, data.T, rcond=None)[0].T)


def test_an_operator_that_takes_real_parts(comm):
    """It is linear over the real numbers only, so that columns are combined with real coefficients."""
    op = FFT(12, real=True, comm=comm).H
    assert not op.clinear
    Y = [collops.random(op.range, seed=seed, comm=comm) for seed in (1, 2, 3)]
    X0 = [collops.random(op.domain, seed=seed, comm=comm, dtype="c16") for seed in (4, 5, 6)]
    found = block_cgls(op, Y, X0, damp=0.3, rtol=1e-12).x.gather()
    for x, y, x0 in zip(found, Y, X0, strict=True):
        assert_close(x, cgls(op, y, x0, damp=0.3, tol=1e-24, niter=50).x.gather(), factor=10)


def test_messages(comm):
    """Two in an iteration besides those of the operator, however many columns there are; one more at the end."""
    op, _, _, y = problem("vstack", comm, "f8")
    normal, right = op.H @ op, op.H @ y
    sent = {}
    for niter in (1, 2):
        with profile.count_messages() as counts:
            block_cg(normal, [right, 2 * right + 1, right**2], niter=niter, rtol=0)
        sent[niter] = [m.elements for m in counts.records if m.operation == "allreduce"]
    at_the_end = [3 * 6, 9] * (comm.size > 1)  # the operator, and the residuals
    assert sent[2] == [*sent[1][: len(sent[1]) - len(at_the_end)], *[3 * 6, 27, 9] * (comm.size > 1), *at_the_end]
    op, _, _, y = problem("block_diag", comm, "f8")
    for niter in (1, 2):
        with profile.count_messages() as counts:
            block_cgls(op, [y, 2 * y + 1], niter=niter, rtol=0, M=Diagonal(collops.ones(op.domain, comm=comm)))
        sent[niter] = [m.elements for m in counts.records if m.operation == "allreduce"]
    first, iteration, at_the_end = [4, 8], [12, 8], [4, 4]  # the residuals, and the gradients
    for niter in (1, 2):
        assert sent[niter] == (first + niter * iteration + at_the_end) * (comm.size > 1)


def test_masks_solve_one_problem_per_group(comm):
    op, y, solution = masked(comm)
    found = block_cg(op.H @ op, [op.H @ y, y], rtol=1e-14).x
    assert_close(found.local_array[0], solution, factor=10)


def test_no_solution(comm):
    op = Diagonal(from_global(np.linspace(-1, 1, 12), comm=comm))
    Y = [collops.random(op.range, seed=seed, comm=comm) for seed in (1, 2)]
    assert block_cg(op, Y).status is Status.INDEFINITE
    with pytest.raises(NotFiniteError, match="iteration 1"):
        block_cg(Diagonal(collops.full(12, np.inf, comm=comm)), Y)


def test_arguments(comm):
    op, _, _, y = problem("vstack", comm, "f8")
    with pytest.raises(LayoutError, match="block_cgls takes any"):
        block_cg(op, [y])
    with pytest.raises(LayoutError, match="column of Y"):
        block_cgls(op, [collops.ones(op.range.size + 1, comm=comm)])
    with pytest.raises(LayoutError, match="first axis"):
        block_cgls(op, y)
    with pytest.raises(LayoutError, match="x0 must have the layout"):
        block_cgls(op, [y], [collops.zeros(op.domain, comm=comm)] * 2)
    with pytest.raises(InputError, match="not int64"):
        block_cgls(op, [y.astype(int)])
    with pytest.raises(InputError, match="rtol"):
        block_cgls(op, [y], rtol=-1)
