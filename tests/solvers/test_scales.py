"""Solvers do not depend on units: scaled operators and data take the same iterations, to the scaled solution.

The factors are powers of two, so that nothing is rounded differently; their squares are far from the ends of the range.
"""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global
from collops.errors import NotFiniteError
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
        assert_close(result.x.gather() * factor, expected.x.gather(), dtype, factor=100)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("solver", [lsqr, lsmr])
def test_a_solution_whose_square_overflows_is_no_solution(comm, solver):
    """The norm of x, which the tests of Paige and Saunders multiply by, would be infinite and every residual small."""
    dtype, scales = ("f8", (-500, 100)) if solver is lsqr else ("f4", (-40, 27))
    matrix, data = blocks(comm, dtype, 0.0)[comm.rank], vector(comm.size * ROWS, dtype, 4)
    op = BlockDiag([matrix * np.array(2.0 ** scales[0], dtype)], comm)
    y = from_global(data * np.array(2.0 ** scales[1], dtype), op.range, comm=comm)
    with pytest.raises(NotFiniteError) as caught:
        solver(op, y, niter=100)
    assert caught.value.array == "x" and np.isfinite(caught.value.x.gather()).all()
