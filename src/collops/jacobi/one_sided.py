"""One-sided copies with signals: NVSHMEM in stream order on GPUs (`nvshmem`), a shared window on hosts (`shared`)."""

from __future__ import annotations

from collections.abc import Iterator

from collops.extend.arrays import Box, LocalArray
from collops.jacobi.problem import Part
from collops.jacobi.variant import InSharedMemory
from collops.profile import mark


class OneSided(InSharedMemory):
    """Each rank writes its outermost points into its neighbours' halos, and waits for their points.

    The signal of a sweep means that the values of the neighbour have arrived, and that the neighbour has read its halo
    of the previous sweep, which may be overwritten.
    """

    signals = 4

    def prepare(self) -> None:
        super().prepare()
        self._puts = list(self._targets())
        self._sides = [side for side, rank in enumerate(self.grid.neighbours) if rank is not None]

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        memory, done = self._memory, self.done + 1
        with mark("wait"):
            for side in self._sides:
                memory.wait_signal(side, self.done)
        with mark("sweep"):
            self.sweeps.full(source, target, norms, slot)
        with mark("put"):
            for rank, source_box, target_box, signal in self._puts:
                memory.put_signal(target[source_box], rank, (done % 2, *target_box), signal, done)

    def _targets(self) -> Iterator[tuple[int, Box, Box, int]]:
        """Yield each neighbour, the source box, the target box in its array, and the signal to set."""
        grid = self.grid
        for side, rank in enumerate(grid.neighbours):
            if rank is None:
                continue
            rows, columns = grid.layout.local_shape(rank)
            sent: Part = (
                ((0, 1), (0, grid.columns)),
                ((grid.rows - 1, grid.rows), (0, grid.columns)),
                ((0, grid.rows), (0, 1)),
                ((0, grid.rows), (grid.columns - 1, grid.columns)),
            )[side]
            halo: Part = (
                ((rows, rows + 1), (0, columns)),
                ((-1, 0), (0, columns)),
                ((0, rows), (columns, columns + 1)),
                ((0, rows), (-1, 0)),
            )[side]
            yield rank, grid.box(*sent), grid.box(*halo), side ^ 1
