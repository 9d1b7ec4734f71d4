"""The problem, each rank's block of its grid, and the messages that fill the halo of a block.

Laplace's equation on a rectangle, solved by Jacobi's method, as in NVIDIA's multi-GPU samples: a grid of ny rows and nx
columns. The left and the right column are fixed at sin(2 pi y / (ny - 1)). The first and the last row are copies of the
rows before the last and after the first: the grid is periodic in y, with ny - 2 computed rows. An iteration replaces
all points except the fixed columns by the mean of their four neighbours.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TypeAlias

import numpy as np

from collops import Communicator, ExchangePlan, Layout
from collops.errors import InputError
from collops.extend.arrays import Box, LocalArray, transfers
from collops.extend.exchanges import LibraryExchangePlan

Part: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Row range (first, last + 1) and column range, counted from a block's first point."""

_LINE = 128  # bytes; rows begin at cache lines


@dataclass(frozen=True)
class Problem:
    """The grid and the stopping rule; raises `InputError` for invalid values."""

    nx: int = 16384  # columns of the grid, including the boundary
    ny: int = 16384  # rows, including the boundary
    iterations: int = 1000  # maximum number of iterations
    check: int = 1  # the norm of the update is computed in every `check`-th iteration, from the first
    tolerance: float = 1e-8  # the norm at which to stop
    dtype: str = "float32"  # or "float64"

    def __post_init__(self) -> None:
        for name, least in (("nx", 3), ("ny", 3), ("iterations", 1), ("check", 1)):
            if operator.index(getattr(self, name)) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise InputError(f"tolerance must be zero or a positive number, not {self.tolerance}")
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype must be float32 or float64, not {self.dtype!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """The computed rows, and all columns."""
        return self.ny - 2, self.nx

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def boundary(self, begin: int, end: int) -> np.ndarray:
        """Return the fixed values at both ends of the computed rows from `begin` up to `end`."""
        y = np.arange(begin + 1, end + 1)
        return np.sin(2.0 * math.pi * y / (self.ny - 1)).astype(self.dtype)


class Grid:
    """The points of one rank and their positions in memory; independent of communicator and engine.

    A rank's array has `width` halo rows above and below its block, and its rows have the stride `pitch`, in elements.
    If the grid is split along columns, `lead` elements precede the first point of a row; the last `side` of them are
    its halo. All ranks have the same pitch and the same number of rows in memory, so that each rank can compute the
    addresses of other ranks' points.

    The default process grid has one column of blocks of whole rows. A halo of `width` rows and columns suffices for
    `width` sweeps. Raises `InputError` unless the number of blocks is the number of ranks.
    """

    def __init__(
        self, problem: Problem, ranks: int, rank: int, process_grid: Sequence[int] | None = None, width: int = 1
    ) -> None:
        down, across = tuple(process_grid) if process_grid is not None else (ranks, 1)
        if down < 1 or across < 1 or down * across != ranks:
            raise InputError(f"a process grid must have as many blocks as ranks, {ranks}, not {down} x {across}")
        self.problem = problem
        self.process_grid = (down, across)
        self.rank = rank
        self.width = width
        # The blocks of all ranks, over the computed rows and all columns.
        self.layout = layout = Layout.grid(problem.shape, (down, across))
        block = layout.block(rank)
        self.rows, self.columns = block.shape
        self.top, self.start = block.offset
        # The columns that change, relative to the block's first column: from `low` up to `high` in the global grid,
        # from `first` up to `last` in the block. The others are the fixed boundary.
        self.low, self.high = 1 - self.start, problem.nx - 1 - self.start
        self.first = min(max(self.low, 0), self.columns)
        self.last = max(min(self.high, self.columns), self.first)
        self.full: Part = (0, self.rows), (self.first, self.last)
        # Rows are periodic, so that a rank may be its own neighbour; columns end at the fixed boundary.
        row, column = divmod(rank, across)
        self.above = (row - 1) % down * across + column
        self.below = (row + 1) % down * across + column
        self.left = rank - 1 if column > 0 else None
        self.right = rank + 1 if column < across - 1 else None

        line = _LINE // problem.itemsize
        self.side = width if across > 1 else 0
        self.lead = -(-self.side // line) * line
        self.pitch = -(-(self.lead + max(layout.sizes[1]) + self.side) // line) * line
        self.shape = (max(layout.sizes[0]) + 2 * width, self.pitch)

    @property
    def neighbours(self) -> tuple[int, int, int | None, int | None]:
        """The ranks above, below, left and right: side ``s`` of this rank is side ``s ^ 1`` of its neighbour."""
        return self.above, self.below, self.left, self.right

    @cached_property
    def outer_columns(self) -> tuple[int, ...]:
        """The columns that the neighbours to the left and right need, if they change."""
        outer = set()
        if self.first < self.last:
            outer |= {0} if self.left is not None and self.first == 0 else set()
            outer |= {self.columns - 1} if self.right is not None and self.last == self.columns else set()
        return tuple(sorted(outer))

    @cached_property
    def outer(self) -> list[Part]:
        """The parts that neighbours need: the outermost rows, then the outer columns without their ends."""
        columns = (self.first, self.last)
        rows = [(0, 1), (self.rows - 1, self.rows)] if self.rows > 1 else [(0, self.rows)]
        return [(row, columns) for row in rows] + [((1, self.rows - 1), (c, c + 1)) for c in self.outer_columns]

    @cached_property
    def inner(self) -> Part:
        """The part of the block that is not in :attr:`outer`."""
        outer = self.outer_columns
        first, last = self.first + (self.first in outer), self.last - (self.last - 1 in outer)
        return (1, self.rows - 1), (first, max(first, last))

    @property
    def block(self) -> Box:
        """The slices of this rank's points in its array."""
        return self.box((0, self.rows), (0, self.columns))

    def box(self, rows: tuple[int, int], columns: tuple[int, int]) -> Box:
        """Return rows and columns, counted from the block's first point and negative in the halo, as slices."""
        return (
            slice(self.width + rows[0], self.width + rows[1]),
            slice(self.lead + columns[0], self.lead + columns[1]),
        )

    def halo(self, rank: int) -> list[Part]:
        """Return the parts of the global grid that surround the block of `rank`.

        A halo of one row omits corners, because a sweep reads only the four nearest points; wider halos include them.
        """
        (rows, columns), (top, start), _ = self.layout.block(rank)
        if not rows or not columns:
            return []
        reach = self.side if self.width > 1 else 0
        sides = (max(0, start - reach), min(self.problem.nx, start + columns + reach))
        regions: list[Part] = [((top - self.width, top), sides), ((top + rows, top + rows + self.width), sides)]
        for begin, end in ((start - self.side, start), (start + columns, start + columns + self.side)):
            begin, end = max(0, begin), min(self.problem.nx, end)
            if begin < end:
                regions.append(((top, top + rows), (begin, end)))
        return regions

    def fill(self, array: LocalArray, xp: ModuleType) -> None:
        """Set this rank's points in `array` to the initial values (zeros and the boundary), and the halo to zeros."""
        array[...] = 0
        for column in (0, self.problem.nx - 1):
            index = column - self.start
            if self.rows and 0 <= index < self.columns:
                values = self.problem.boundary(self.top, self.top + self.rows)
                array[self.box((0, self.rows), (index, index + 1))] = xp.asarray(values)[:, None]


def halo_plan(grid: Grid, comm: Communicator) -> ExchangePlan:
    """Return the exchange that fills the halo of a block's array from the blocks of all ranks. Collective.

    Blocks may be empty or smaller than the halo: a rank receives each point from its owner. With the NCCL transport,
    NCCL sends all messages, also short messages, so that its models can be compared with the others.
    """

    def shifted(box: Box, row: int = 0, column: int = 0) -> Box:
        """Return the slices in the array of a box relative to `row` and `column` of the block."""
        rows, columns = box
        return grid.box((row + rows.start, row + rows.stop), (column + columns.start, column + columns.stop))

    moves = transfers(grid.layout, grid.rank, grid.halo, periodic=True)
    starts = [(rows[0] - grid.top, columns[0] - grid.start) for rows, columns in grid.halo(grid.rank)]
    sends = [(peer, shifted(box)) for peer, _, box in moves.sends]
    receives = [(owner, shifted(box, *starts[number])) for owner, number, box in moves.receives]
    return LibraryExchangePlan(comm, sends, receives, kind="halo")
