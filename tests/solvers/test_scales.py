"""Solvers do not depend on units: scaled operators and data take the same iterations, to the scaled solution.

The factors are powers of two, so that nothing is rounded differently; their squares are far from the ends of the range.
"""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global, zeros
from collops.operators import BlockDiag, Columns
from collops.solvers import bicgstab, block_cg, block_cgls, cg, cgls, gmres, hybrid_lsqr, lsmr, lsqr, minres
from tests.operators.problems import assert_close, vector

ROWS = 5
SCALES = {
    "f8": [(-40, 0), (40, 0), (0, -60), (0, 60), (-80, 30)],
    "f4": [(-15, 0), (8, 0), (0, -30), (0, 30), (-28, 22)],
}


def blocks(comm, dtype: str, shift: float) -> np.ndarray:
    """Return symmetric blocks, one for each rank; indefinite ones if the shift is large."""
    random = vector(comm.size * ROWS * ROWS, dtype, 3).reshape(comm.size, ROWS, ROWS)
    return random @ random.swapaxes(1, 2) + (1 - shift) * np.eye(ROWS, dtype=dtype)


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (cg, {"tol": 0}),
        (cg, {"tol": 0, "reductions": 1}),
        (cg, {"tol": 0, "reductions": "pipelined"}),
        (cgls, {"tol": 0}),
        (cgls, {"tol": 0, "reductions": 1}),
        (lsqr, {}),
        (lsmr, {}),
        (hybrid_lsqr, {}),
        (minres, {}),
        (minres, {"shift": True}),
        (bicgstab, {}),
        (gmres, {}),
        (block_cg, {}),
        (block_cgls, {}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value.values())),
)
def test_units_change_neither_iterations_nor_solution(comm, solver, options, dtype):
    options = dict(options)
    matrices = blocks(comm, dtype, 6.0 if options.pop("shift", False) else 0.0)
    data = vector(comm.size * ROWS, dtype, 4)

    def solved(matrix_scale: int, data_scale: int):
        op = BlockDiag([matrices[comm.rank] * np.array(2.0**matrix_scale, dtype)], comm)
        y = from_global(data * np.array(2.0**data_scale, dtype), op.range, comm=comm)
        if solver in (block_cg, block_cgls):
            y = Columns.join([y, from_global(data[::-1] * np.array(2.0**data_scale, dtype), op.range, comm=comm)])
        return solver(op, y, niter=100, **options)

    expected = solved(0, 0)
    assert expected.iterations > 2
    for matrix_scale, data_scale in SCALES[dtype]:
        result = solved(matrix_scale, data_scale)
        assert (result.status, result.iterations) == (expected.status, expected.iterations)
        factor = np.array(2.0 ** (matrix_scale - data_scale), dtype)
        # The damping that hybrid LSQR chooses is a flat minimum, which is known less well.
        close = 1e4 if solver is hybrid_lsqr else 100
        assert_close(result.x.gather() * factor, expected.x.gather(), dtype, factor=close)


FAR = {"f4": (-74, -100, 73, 100), "f2": (-12, 10), "c8": (-74, 100), "f8": (-1000, -560, 560, 900)}
"""Exponents of data whose squares are 0 or infinite in their precision."""


@pytest.mark.parametrize("dtype", FAR)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (cg, {}),
        (cg, {"reductions": 1}),
        (cg, {"reductions": "pipelined"}),
        (cg, {"atol": 0.5, "rtol": 0}),
        (cg, {"tol": 0.5}),
        (cgls, {}),
        (cgls, {"damp": 0.5, "reductions": "pipelined"}),
        (lsqr, {"damp": 0.5}),
        (lsmr, {}),
        (hybrid_lsqr, {"noise": 0.125}),
        (minres, {"atol": 0.25, "rtol": 0}),
        (bicgstab, {}),
        (gmres, {}),
        (block_cg, {}),
        (block_cgls, {}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value.values())),
)
def test_squares_of_the_data_neither_underflow_nor_overflow(comm, solver, options, begins, dtype):
    """Absolute tolerances have the units of the data, `tol` those of their square."""
    matrix = np.diag(np.linspace(1, 3, ROWS)).astype(dtype)
    matrix[0, 1] = matrix[1, 0] = 0.5
    op = BlockDiag([matrix], comm)
    data, start = (np.linspace(1 + shift, 2, comm.size * ROWS).astype(dtype) for shift in (0, 1))
    seen = []

    def solved(exponent: int):
        def scaled(values):
            array = from_global(np.ldexp(values.real, exponent).astype(dtype), op.range, comm=comm)
            return [array] if solver in (block_cg, block_cgls) else array

        powers = {"atol": 1, "noise": 1, "tol": 2}
        own = {
            key: value * 2.0 ** (powers.get(key, 0) * exponent) if key in powers else value
            for key, value in options.items()
        }
        seen.clear()
        return solver(
            op,
            scaled(data),
            scaled(start) if begins else None,
            niter=40,
            **own,
            callback=lambda _, view: seen.append((view.x.gather().reshape(-1), view.residual_norm)),
        )

    expected = solved(0)
    first = seen[0]
    assert expected.iterations > 0
    # Squares of other tolerances are not numbers.
    exponents = [exponent for exponent in FAR[dtype] if "tol" not in options or abs(exponent) < 500]
    for exponent in exponents:
        result = solved(exponent)
        if dtype != "f2":  # whose elements lose digits below 6e-5
            assert (result.status, result.iterations) == (expected.status, expected.iterations)
        precision = {"dtype": "f2", "factor": 1000} if dtype == "f2" else {"dtype": "f4", "factor": 10}
        for found, wanted in ((result.x.gather().reshape(-1), expected.x.gather().reshape(-1)), (seen[0][0], first[0])):
            assert_close(np.ldexp(found.real.astype("f8"), -exponent), wanted.real, **precision)
        np.testing.assert_allclose(np.ldexp(result.residual_norms[0], -exponent), expected.residual_norms[0], rtol=1e-2)
        np.testing.assert_allclose(np.ldexp(seen[0][1], -exponent), first[1], rtol=1e-1, atol=1e-2)


@pytest.mark.parametrize("solver", [cg, cgls, lsqr, gmres])
def test_a_starting_point_gives_the_unit_of_data_that_are_zero(comm, solver):
    op = BlockDiag([np.diag(np.linspace(1, 3, ROWS))], comm)
    start = np.linspace(2, 3, comm.size * ROWS)
    expected = None
    for exponent in (0, -700, 700):
        x0 = from_global(np.ldexp(start, exponent), op.domain, comm=comm)
        result = solver(op, zeros(op.range, comm=comm), x0, niter=30)
        found = result.status, result.iterations, float(np.ldexp(result.residual_norms[0], -exponent))
        expected = expected or found
        assert found == expected and found[2] > 1
        np.testing.assert_allclose(np.ldexp(result.x.gather(), -exponent), 0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_ordinary_data_keep_every_bit(comm, dtype):
    """A factor of 2 changes the exponents alone, and no array is scaled within the ordinary range."""
    matrices, data = blocks(comm, dtype, 0.0), vector(comm.size * ROWS, dtype, 4)
    op = BlockDiag([matrices[comm.rank]], comm)
    one, other = (cg(op, from_global(scale * data, op.range, comm=comm), niter=9).x for scale in (1, 2))
    np.testing.assert_array_equal(2 * one.gather(), other.gather())


@pytest.mark.parametrize("solver", [lsqr, lsmr])
def test_a_solution_whose_square_overflows(comm, solver):
    """The norm of x, which the tests of Paige and Saunders multiply by, would be infinite and every residual small."""
    dtype, scales = ("f8", (-500, 100)) if solver is lsqr else ("f4", (-40, 27))
    matrices, data = blocks(comm, dtype, 0.0), vector(comm.size * ROWS, dtype, 4)
    op = BlockDiag([matrices[comm.rank] * np.array(2.0 ** scales[0], dtype)], comm)
    y = from_global(data * np.array(2.0 ** scales[1], dtype), op.range, comm=comm)
    result = solver(op, y, niter=100)
    expected = np.linalg.solve(matrices, data.reshape(comm.size, ROWS, 1)).ravel()
    assert result.status.successful
    np.testing.assert_allclose(result.x.gather() * 2.0 ** (scales[0] - scales[1]), expected, rtol=1e-2)
