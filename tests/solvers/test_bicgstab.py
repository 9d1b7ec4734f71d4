"""BiCGStab against SciPy and dense solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

from collops.array import from_global
from collops.operators import BlockDiag, CSRMatrix, Diagonal
from collops.solvers import Status, bicgstab

from .problems import assert_close
from .systems import KINDS, convection_diffusion, masked, system, whole
from .test_cgls import messages_of_one_iteration


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_iterates_are_those_of_scipy(comm, kind, dtype):
    op, matrix, data, distributed = system(kind, comm, dtype)
    start = np.linspace(-1, 1, len(data)).astype(dtype)
    y = distributed((data + matrix @ start).astype(dtype))
    result = bicgstab(op, y, distributed(start), niter=3, rtol=0)
    x, _ = scipy.sparse.linalg.bicgstab(matrix, data, rtol=0, atol=0, maxiter=3)
    assert result.iterations == 3 and result.x.dtype == np.dtype(dtype)
    assert_close(whole(result.x) - start, x, dtype, factor=100)
    assert_close(result.residual_norms[-1], np.linalg.norm(data - matrix @ x), dtype, factor=100)


def test_a_preconditioner(comm):
    """Iterations vary a little with the rounding of sums, and so with the number of ranks."""
    matrix = convection_diffusion(11)
    scale = 1 / (matrix.diagonal() + np.linspace(0, 9, 121))
    data = np.sin(np.arange(121.0))
    op = CSRMatrix.from_global(matrix, comm=comm)
    y, M = from_global(data, op.range, comm=comm), Diagonal(from_global(scale, op.domain, comm=comm))
    counts = []
    for rtol in (1e-3, 1e-8):
        scipy.sparse.linalg.bicgstab(
            matrix @ scipy.sparse.diags_array(scale), data, rtol=rtol, callback=lambda _: counts.append(1)
        )
        result = bicgstab(op, y, M=M, niter=200, rtol=rtol)
        assert abs(result.iterations - len(counts)) <= 2 and result.status is Status.CONVERGED
        true = np.linalg.norm(data - matrix @ result.x.gather())
        assert true <= 1.01 * rtol * np.linalg.norm(data)
        assert abs(result.residual_norms[-1] - true) <= 1e-6 * true
        counts.clear()
    assert result.iterations > 10


def test_messages(comm):
    op, _, data, distributed = system("split", comm, "f8")
    sent = messages_of_one_iteration(bicgstab, op, distributed(data), rtol=0)
    assert sorted(message.elements for message in sent) == ([2, 5] if comm.size > 1 else [])


def test_masks_solve_one_problem_per_group(comm):
    op, y, solution = masked(comm)
    assert_close(bicgstab(op, y, rtol=1e-13).x.local_array, solution, factor=10)


@pytest.mark.parametrize(
    ("block", "data"),
    [
        ([[0.0, 1.0], [-1.0, 0.0]], [1.0, 0.0]),  # an image orthogonal to the first residual
        ([[1.0, 1.0], [-1.0, 1.0]], [1.0, 1.0]),  # none: the same matrix, shifted, is solved
        ([[0.0, 1.0], [1.0, 0.0]], [1.0, 0.0]),
    ],
)
def test_where_the_recurrence_breaks_down(comm, block, data):
    """It ends at once, with the last solution that the recurrence reached."""
    op = BlockDiag([np.array(block)], comm)
    y = from_global(np.tile(data, comm.size), op.range, comm=comm)
    result = bicgstab(op, y, niter=50)
    if block[0][0]:
        assert result.status is Status.CONVERGED
        assert_close((op @ result.x).gather(), y.gather())
    else:
        assert result.status is Status.BREAKDOWN and not result.status.successful
        assert result.iterations == 1 and np.isfinite(result.x.gather()).all()


def test_data_that_are_zero(comm):
    op, _, data, distributed = system("split", comm, "f8")
    result = bicgstab(op, distributed(0 * data))
    assert result.status.successful and result.iterations == 0 and not result.x.gather().any()
