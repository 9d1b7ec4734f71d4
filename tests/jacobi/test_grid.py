"""The arithmetic of grids: which points change, which ones neighbours need, and their places in memory."""

from __future__ import annotations

import numpy as np
import pytest

from collops.jacobi import Grid, Problem

pytestmark = pytest.mark.serial

CASES = [(1, 1), (3, 1), (1, 3), (2, 2), (4, 3), (9, 1), (1, 9)]


def grids(process_grid, problem, width=1):
    ranks = process_grid[0] * process_grid[1]
    return [Grid(problem, ranks, rank, process_grid, width) for rank in range(ranks)]


@pytest.mark.parametrize("process_grid", CASES)
@pytest.mark.parametrize(("nx", "ny"), [(9, 8), (40, 23), (5, 4)])
def test_every_inner_point_changes_once(process_grid, nx, ny):
    problem = Problem(nx=nx, ny=ny)
    changed, parts = np.zeros(problem.shape, int), np.zeros(problem.shape, int)
    for grid in grids(process_grid, problem):
        rows, top, start = grid.rows, grid.top, grid.start
        changed[top : top + rows, start + grid.first : start + grid.last] += 1
        for (begin, end), (first, last) in [*grid.outer, grid.inner]:
            if begin < end and rows:
                parts[top + begin : top + end, start + first : start + last] += 1
        assert grid.low + start == 1
        assert grid.high + start == nx - 1
    expected = np.zeros(problem.shape, int)
    expected[:, 1:-1] = 1
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(parts, expected)


@pytest.mark.parametrize("process_grid", CASES)
def test_neighbours_are_mutual_and_all_blocks_have_equal_memory(process_grid):
    all_grids = grids(process_grid, Problem(nx=40, ny=23, dtype="float64"))
    assert len({(grid.shape, grid.pitch, grid.lead) for grid in all_grids}) == 1
    for grid in all_grids:
        assert all_grids[grid.above].below == grid.rank
        assert all_grids[grid.below].above == grid.rank
        if grid.left is not None:
            assert all_grids[grid.left].right == grid.rank
        assert (grid.pitch * 8) % 128 == (grid.lead * 8) % 128 == 0
        assert grid.lead >= grid.side
        assert grid.lead + grid.columns + grid.side <= grid.pitch


def test_halos_of_several_rows_have_corners():
    problem = Problem(nx=30, ny=22)
    grid = Grid(problem, 4, 0, (2, 2), width=3)
    assert grid.halo(0) == [((-3, 0), (0, 18)), ((10, 13), (0, 18)), ((0, 10), (15, 18))]
    assert Grid(problem, 4, 0, (2, 2)).halo(0) == [((-1, 0), (0, 15)), ((10, 11), (0, 15)), ((0, 10), (15, 16))]


def test_more_than_two_to_the_31_points():
    grid = Grid(Problem(nx=1 << 17, ny=(1 << 17) + 2), 3, 2)
    assert grid.top == 87382
    assert grid.layout.size == 1 << 34
