"""Grids that neighbours can address: where their halos are as this rank sees them, and flags that tell of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops.backend import Engine
from collops.comm import Communicator
from collops.stencil.grid import Grid
from collops.stencil.halos import halo_plan

if TYPE_CHECKING:
    from collops.comm.symmetric import Symmetric
    from collops.stencil.kernels.cupy_sweeps import CupySweeps, Neighbours

__all__ = ["PeerMemory"]


class PeerMemory:
    """Both grids of every rank in symmetric memory, with flags. Collective.

    Parameters
    ----------
    grid : Grid
        This rank's block.
    comm : Communicator
        The ranks.
    engine : Engine
        Where the grids live.
    sweeps : CupySweeps
        Knows where a block's points are in its array.
    flags : int
        How many 64-bit words of flags each rank has.

    Attributes
    ----------
    buffers : Symmetric
        Of shape ``(2, *grid.shape)``: the grids of even and of odd sweeps.
    stride : int
        Elements from one to the other.
    """

    def __init__(self, grid: Grid, comm: Communicator, engine: Engine, sweeps: CupySweeps, flags: int) -> None:
        self._grid = grid
        self._engine = engine
        self._sweeps = sweeps
        self.stride = grid.shape[0] * grid.shape[1]
        self.buffers: Symmetric = comm.symmetric((2, *grid.shape), grid.problem.dtype, engine=engine.name)
        self._flags: Symmetric = comm.symmetric(flags, "uint64", engine=engine.name)

    def neighbours(self, places: Sequence[int]) -> Neighbours:
        """Return the neighbours' halos, and the flags at `places`.

        Parameters
        ----------
        places : sequence of int
            In bytes from the first flag of a rank: the flag that the neighbour above sets, and those that the
            neighbours below, to the left and to the right set.
        """
        from collops.stencil.kernels.cupy_sweeps import Neighbours

        grid = self._grid
        item = grid.problem.itemsize
        row = grid.pitch * item
        ranks = (grid.above, grid.below, grid.left, grid.right)
        halos, sets = [0] * 4, [0] * 4
        for side, rank in enumerate(ranks):
            if rank is None:
                continue
            rows, columns = grid.layout.local_shape(rank)
            # Seen from the neighbour, this rank is on the opposite side.
            offset = (rows * row, -row, columns * item, -item)[side]
            halos[side] = self._sweeps.point(self.buffers.peer(rank)[0]) + offset
            sets[side] = self._flags.peer(rank).data.ptr + places[side ^ 1]
        return Neighbours(halos, self._flags.local.data.ptr, sets)

    def filled(self) -> tuple[Any, Any]:
        """Give both grids of all ranks their first values, halos included, and return this rank's. Collective."""
        grids = self.buffers.local[0], self.buffers.local[1]
        plan = halo_plan(self._grid, self.buffers.comm)
        for array in grids:
            self._grid.fill(array, self._engine.xp)
            plan(array, array)
        self.buffers.barrier()
        return grids

    def free(self) -> None:
        """Give the memory back. Collective."""
        self._flags.free()
        self.buffers.free()
