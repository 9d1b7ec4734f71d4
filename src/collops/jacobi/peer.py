"""Kernels that store into the memory of neighbours and set flags there, without messages (`peer`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collops.extend.arrays import LocalArray
from collops.jacobi.variant import InSharedMemory
from collops.profile import mark

if TYPE_CHECKING:
    from collops.extend.communication import Symmetric
    from collops.jacobi.cupy_sweeps import Neighbours


class PeerMemory(InSharedMemory):
    """A variant whose kernels address the grids and the flags of neighbours."""

    def share(self, flags: int, offsets: Sequence[int]) -> Neighbours:
        """Make flags in symmetric memory, and return the addresses of the neighbours' grids and flags. Collective.

        Each rank has `flags` 64-bit words of flags. `places` are the numbers of the flags that the neighbours above,
        below, to the left and to the right set.
        """
        from collops.jacobi.cupy_sweeps import Neighbours

        grid, sweeps = self.grid, self.sweeps
        self._flags = self.symmetric(flags, "uint64")
        item = self.problem.itemsize
        row = grid.pitch * item
        halos, sets = [0] * 4, [0] * 4
        for side, rank in enumerate(grid.neighbours):
            if rank is None:
                continue
            rows, columns = grid.layout.local_shape(rank)
            offset = (rows * row, -row, columns * item, -item)[side]
            halos[side] = sweeps.point(self.memory_of(rank, self._memory)[0]) + offset
            # For the neighbour, this rank is on the opposite side.
            sets[side] = self.memory_of(rank, self._flags).data.ptr + sweeps.flag_bytes(offsets[side ^ 1])
        return Neighbours(halos, self._flags.local.data.ptr, sets)

    def memory_of(self, rank: int, memory: Symmetric) -> LocalArray:
        """Return the memory of a neighbour, as addressed by the kernel."""
        return memory.peer(rank)

    def free(self) -> None:
        self._flags.free()
        super().free()


class Peer(PeerMemory):
    """One launch for each sweep: its first blocks wait for the neighbours' values and store this rank's."""

    def prepare(self) -> None:
        super().prepare()
        self._neighbours = self.share(self.sweeps.flag_count(1), range(4))
        odd = self.grid.shape[0] * self.grid.shape[1] * self.problem.itemsize
        self._shifts = (0, odd)  # bytes from a neighbour's grid of even sweeps to its grids of even and of odd sweeps

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        shift = self._shifts[1 - self.done % 2]
        with mark("sweep"):
            self.sweeps.peer(source, target, shift, self._neighbours, self.done, norms, slot)
