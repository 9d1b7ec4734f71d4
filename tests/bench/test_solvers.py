"""The benchmark of solvers, small; with PETSc where it is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from collops.backend import engine
from collops_bench.registry import BENCHMARKS, Context, Options
from collops_bench.solvers import PETSC, box_rows

PETSC_INSTALLED = importlib.util.find_spec("petsc4py") is not None


def test_every_solution_is_right(comm):
    *found, refined = BENCHMARKS["solvers"].measure(Context(comm, engine("numpy"), Options(quick=True)))
    assert len({one.case for one in found}) == 7
    assert len(refined.checks) == 2 and all(each.error <= each.tolerance for each in refined.checks)
    for one in found:
        assert (PETSC in one.timings) is PETSC_INSTALLED and (PETSC in one.missing) is not PETSC_INSTALLED
        assert all(each.error <= each.tolerance for each in one.checks)
        assert len(one.checks) == (2 + len(one.timings) - 1 if PETSC_INSTALLED else 1)
        assert one.figures["collops"]["iterations"] > 10
    iterations = {one.case: one.figures["collops"]["iterations"] for one in found}
    assert iterations["CG with chebyshev, Poisson"] < iterations["CG with none, Poisson"] / 2


@pytest.mark.serial
def test_rows_of_the_box():
    """Against a function whose second differences are known, away from the boundary."""
    shape, d, c = (4, 5, 6), (1.0, 0.5, 0.25), (0.2, 0.0, -0.1)
    x, _, z = np.indices(shape).astype(float)
    matrix = box_rows(shape, d, c, slice(None))
    image = (matrix @ (x**2 + 3 * z).ravel()).reshape(shape)
    expected = -2 * d[0] + c[0] * 4 * x + c[2] * 6
    np.testing.assert_allclose(image[1:-1, 1:-1, 1:-1], expected[1:-1, 1:-1, 1:-1], atol=1e-12)
    np.testing.assert_array_equal(box_rows(shape, d, c, slice(7, 31)).toarray(), matrix.toarray()[7:31])
