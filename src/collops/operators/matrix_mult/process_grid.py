"""Which grid of processes a product of matrices should use."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import SupportsIndex

from collops.array.layout_arguments import as_ranks, as_shape
from collops.errors import InputError, LayoutError

__all__ = ["best_process_grid", "checked_process_grid"]


def best_process_grid(ranks: int, shape: tuple[int, int] | None = None, columns: int | None = None) -> tuple[int, int]:
    """Return the grid of processes on which SUMMA sends least; every rank has a place in it. Not collective.

    Parameters
    ----------
    ranks : int
        How many there are; any number.
    shape : tuple of int, optional
        Numbers of rows and columns of the matrix.
    columns : int, optional
        Number of columns of the model. Without sizes, the grid that is closest to a square, with at least as many
        columns as rows.

    Returns
    -------
    tuple of int
        Rows and columns of processes.

    Raises
    ------
    LayoutError
        If there cannot be so many ranks.

    Examples
    --------
    >>> from collops.operators import best_process_grid
    >>> best_process_grid(4, (100, 100))
    (2, 2)
    """
    ranks = as_ranks(ranks)
    columns = None if columns is None else operator.index(columns)
    if shape is not None and len(as_shape(shape)) != 2:
        raise LayoutError(f"a matrix has two axes, not the shape {shape}")
    grids = [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]

    def elongation(grid: tuple[int, int]) -> tuple[float, bool]:
        return max(grid) / min(grid), grid[0] > grid[1]

    if shape is None or columns is None:
        return min(grids, key=elongation)

    def received(grid: tuple[int, int]) -> float:
        p, q = grid
        return shape[0] * shape[1] * (q - 1) / ranks + shape[1] * columns * (p - 1) / ranks

    return min(grids, key=lambda grid: (received(grid), elongation(grid)))


def checked_process_grid(process_grid: Sequence[SupportsIndex], ranks: int) -> tuple[int, int]:
    """Return a grid that was given, as two integers.

    Raises
    ------
    InputError
        If it has not two extents, or not one place for each rank.
    """
    grid = tuple(operator.index(extent) for extent in process_grid)
    if len(grid) != 2 or min(grid) < 1 or prod(grid) != ranks:
        raise InputError(f"a process grid for {ranks} ranks has two extents whose product that is, unlike {grid}")
    return grid[0], grid[1]
