"""The benchmark of multigrid, small and without peers, and the matrices that all programs solve with."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from collops.backend import engine
from collops_bench.petsc_multigrid import stencil_rows
from collops_bench.registry import BENCHMARKS, Context, Options
from collops_bench.solvers import box_rows


def test_every_solution_is_right(comm):
    found = list(BENCHMARKS["multigrid"].measure(Context(comm, engine("numpy"), Options(quick=True, peer=False))))
    assert [one.parameters["entries"] for one in found] == [46**3, 7 * 16**3 - 6 * 16**2]
    for one in found:
        assert set(one.missing.values()) == {"not asked for"} and len(one.missing) == 3
        assert all(each.error <= each.tolerance for each in one.checks) and len(one.checks) == 3
        assert one.figures["collops"]["iterations"] <= 9


def test_each_rank_has_as_many_rows_as_a_rank_alone(comm):
    (one,) = BENCHMARKS["multigrid_scaling"].measure(Context(comm, engine("numpy"), Options(quick=True)))
    assert abs(one.parameters["rows"] / (16**3 * comm.size) - 1) < 0.1
    assert all(each.error <= each.tolerance for each in one.checks) and len(one.checks) == 2
    assert all(figures["iterations"] <= 9 for figures in one.figures.values())
    assert one.figures["collops"]["efficiency"] > 0


@pytest.mark.serial
def test_rows_of_the_cube():
    line = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(5, 5))
    whole = {7: box_rows((5, 5, 5), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), slice(None))}
    whole[27] = sp.csr_array(27 * sp.eye_array(125) - sp.kron(sp.kron(line, line), line))
    for points, matrix in whole.items():
        np.testing.assert_array_equal(stencil_rows(points, 5, 0, 125).toarray(), matrix.toarray())
        np.testing.assert_array_equal(stencil_rows(points, 5, 33, 71).toarray(), matrix.toarray()[33:71])
