"""The messages that fill a halo, as a plan that serves both grids of a rank alike."""

from __future__ import annotations

from collops.array.regions import transfers
from collops.comm import Box, Communicator, ExchangePlan
from collops.stencil.grid import Grid

__all__ = ["halo_plan"]


def halo_plan(grid: Grid, comm: Communicator) -> ExchangePlan:
    """Return the exchange of `grid`, of a block's array with itself. Collective.

    Blocks may be smaller than the halo is wide, or empty: what a rank needs comes from whoever has it.
    """
    moves = transfers(grid.layout, grid.rank, grid.halo, periodic=True)
    wanted = grid.halo(grid.rank)
    sends = [(peer, _within(grid, box, 0, 0)) for peer, _, box in moves.sends]
    receives = []
    for owner, number, box in moves.receives:
        (top, _), (start, _) = wanted[number]
        receives.append((owner, _within(grid, box, top - grid.top, start - grid.start)))
    return ExchangePlan(comm, sends, receives, kind="halo")


def _within(grid: Grid, box: Box, row: int, column: int) -> Box:
    """Return where a box is in the array, whose first element is at `row` and `column` of the block."""
    rows, columns = box
    return grid.box((row + rows.start, row + rows.stop), (column + columns.start, column + columns.stop))
