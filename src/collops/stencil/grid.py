"""A rank's part of the grid: which points it has, what lies around them, and how they lie in memory.

Arithmetic alone; nothing here communicates or knows an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from collops.array import Layout
from collops.array.regions import Region
from collops.errors import InputError
from collops.stencil.problem import Problem

__all__ = ["Grid", "Part"]

Part: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Rows from and up to, and columns from and up to, counted from a block's first point."""

_LINE = 128  # bytes; rows begin at cache lines


class Grid:
    """The points of one rank, with a halo.

    In memory a rank's block has `width` halo rows above and below, and rows that are `pitch` elements apart. Where the
    grid is split along columns, `lead` elements stand before the first point of a row, whose last `beside` are its
    halo. All ranks have the same pitch and room for the same number of rows, so that one rank can reckon where
    another's points are.

    Parameters
    ----------
    problem : Problem
        Whose grid.
    ranks, rank : int
        Of how many, and which.
    process_grid : (int, int), optional
        Blocks along rows and columns; by default one column of blocks, whose rows are whole.
    width : int
        Rows (and columns) of the halo: how many sweeps it lasts.

    Attributes
    ----------
    layout : Layout
        Who holds what of the computed rows and all columns.
    rows, columns : int
        Of this rank's block.
    top, start : int
        Its first row and column in the layout.
    first, last : int
        Of its columns, those that change are from `first` up to `last`.
    low, high : int
        Of all columns, those that change, counted from this rank's first one.
    above, below, left, right : int or None
        Neighbours; ``None`` beyond the boundary. Rows go on periodically, so that a rank may be its own neighbour.
    shape : tuple of int
        Of the array that holds the block.

    Raises
    ------
    InputError
        If the process grid has not as many places as there are ranks.

    Examples
    --------
    >>> from collops.stencil import Grid, Problem
    >>> grid = Grid(Problem(nx=8, ny=8), ranks=2, rank=1)
    >>> grid.shape
    (5, 32)
    """

    def __init__(
        self,
        problem: Problem,
        ranks: int,
        rank: int,
        process_grid: Sequence[int] | None = None,
        width: int = 1,
    ) -> None:
        down, across = tuple(process_grid) if process_grid is not None else (ranks, 1)
        if down < 1 or across < 1 or down * across != ranks:
            raise InputError(f"a process grid of {down} x {across} does not fit {ranks} ranks")
        self.problem = problem
        self.process_grid = (down, across)
        self.rank = rank
        self.width = width
        self.layout = layout = Layout.grid(problem.shape, (down, across))
        block = layout.block(rank)
        self.rows, self.columns = block.shape
        self.top, self.start = block.offset
        self.low, self.high = 1 - self.start, problem.nx - 1 - self.start
        self.first = min(max(self.low, 0), self.columns)
        self.last = max(min(self.high, self.columns), self.first)
        row, column = divmod(rank, across)
        self.above = (row - 1) % down * across + column
        self.below = (row + 1) % down * across + column
        self.left = rank - 1 if column > 0 else None
        self.right = rank + 1 if column < across - 1 else None

        line = _LINE // problem.itemsize
        self.beside = width if across > 1 else 0
        self.lead = -(-self.beside // line) * line
        self.pitch = -(-(self.lead + max(layout.sizes[1]) + self.beside) // line) * line
        self.shape = (max(layout.sizes[0]) + 2 * width, self.pitch)

    @property
    def outer_columns(self) -> tuple[int, ...]:
        """The columns that neighbours to the left and right need, of those that change."""
        outer = set()
        if self.first < self.last:
            outer |= {0} if self.left is not None and self.first == 0 else set()
            outer |= {self.columns - 1} if self.right is not None and self.last == self.columns else set()
        return tuple(sorted(outer))

    @property
    def outer(self) -> list[Part]:
        """The parts that neighbours need: the outermost rows, then those columns without their ends."""
        columns = (self.first, self.last)
        rows = [(0, 1), (self.rows - 1, self.rows)] if self.rows > 1 else [(0, self.rows)]
        return [(row, columns) for row in rows] + [((1, self.rows - 1), (c, c + 1)) for c in self.outer_columns]

    @property
    def inner(self) -> Part:
        """What is left without :attr:`outer`."""
        outer = self.outer_columns
        first, last = self.first + (self.first in outer), self.last - (self.last - 1 in outer)
        return (1, self.rows - 1), (first, max(first, last))

    @property
    def block(self) -> tuple[slice, slice]:
        """Where this rank's points are in its array."""
        return self.box((0, self.rows), (0, self.columns))

    def box(self, rows: tuple[int, int], columns: tuple[int, int]) -> tuple[slice, slice]:
        """Return rows and columns, counted from this rank's first point and negative in the halo, as slices."""
        return (
            slice(self.width + rows[0], self.width + rows[1]),
            slice(self.lead + columns[0], self.lead + columns[1]),
        )

    def halo(self, rank: int) -> list[Region]:
        """Return the parts of the global grid that surround the block of `rank`.

        A halo of one row needs no corners, because a sweep looks straight ahead only; wider ones do.
        """
        (rows, columns), (top, start), _ = self.layout.block(rank)
        if not rows or not columns:
            return []
        reach = self.beside if self.width > 1 else 0
        sides = (max(0, start - reach), min(self.problem.nx, start + columns + reach))
        regions: list[Region] = [
            ((top - self.width, top), sides),
            ((top + rows, top + rows + self.width), sides),
        ]
        for begin, end in ((start - self.beside, start), (start + columns, start + columns + self.beside)):
            begin, end = max(0, begin), min(self.problem.nx, end)
            if begin < end:
                regions.append(((top, top + rows), (begin, end)))
        return regions

    def fill(self, array: Any, xp: Any) -> None:
        """Give this rank's points in `array` their first values, zeros and the boundary, and zeros to the halo."""
        array[...] = 0
        for column in (0, self.problem.nx - 1):
            place = column - self.start
            if self.rows and 0 <= place < self.columns:
                values = self.problem.boundary(self.top, self.top + self.rows)
                array[self.box((0, self.rows), (place, place + 1))] = xp.asarray(values)[:, None]
