"""One-sided copies with signals, ordered on streams: by NVSHMEM on GPUs, in a shared window of MPI on hosts."""

from __future__ import annotations

from typing import Any

from collops.stencil.grid import Part
from collops.stencil.halos import halo_plan
from collops.stencil.variants.base import Variant

__all__ = ["OneSided"]


class OneSided(Variant):
    """Each rank puts its outermost rows into its neighbours' halos, and waits for theirs.

    A signal says that a neighbour's values of a sweep are there, and also that it has read its halo of the sweep
    before, which may therefore be written again.
    """

    def _prepare(self) -> None:
        self.everyone_has_points()
        shape = (2, *self.grid.shape)
        self._memory = self.comm.symmetric(shape, self.problem.dtype, engine=self.engine.name, signals=4)
        plan = halo_plan(self.grid, self.comm)
        for array in (self._memory.local[0], self._memory.local[1]):
            self.grid.fill(array, self.engine.xp)
            plan(array, array)
        self._memory.barrier()
        self._puts = list(self._targets())
        self._waited = [side for side, rank in enumerate(self._ranks()) if rank is not None]

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        memory = self._memory
        for slot in range(count):
            source, target = self.done % 2, 1 - self.done % 2
            with self.timeline.span("wait"):
                for side in self._waited:
                    memory.wait_signal(side, self.done)
            with self.timeline.span("sweep"):
                self.sweeps.whole(memory.local[source], memory.local[target], norms, self.checked(slot))
            self.done += 1
            with self.timeline.span("put"):
                for rank, mine, theirs, signal in self._puts:
                    memory.put_signal(memory.local[target][mine], rank, (target, *theirs), signal, self.done)

    @property
    def array(self) -> Any:
        """The grid that was written last."""
        return self._memory.local[self.done % 2]

    def free(self) -> None:
        """Give the symmetric memory back."""
        self._memory.free()

    def _ranks(self) -> tuple[int | None, ...]:
        grid = self.grid
        return grid.above, grid.below, grid.left, grid.right

    def _targets(self) -> Any:
        """Yield who gets what: the rank, the box here, the box there, and the signal to set."""
        grid = self.grid
        for side, rank in enumerate(self._ranks()):
            if rank is None:
                continue
            rows, columns = grid.layout.local_shape(rank)
            mine: Part = (
                ((0, 1), (0, grid.columns)),
                ((grid.rows - 1, grid.rows), (0, grid.columns)),
                ((0, grid.rows), (0, 1)),
                ((0, grid.rows), (grid.columns - 1, grid.columns)),
            )[side]
            theirs: Part = (
                ((rows, rows + 1), (0, columns)),
                ((-1, 0), (0, columns)),
                ((0, rows), (columns, columns + 1)),
                ((0, rows), (-1, 0)),
            )[side]
            yield rank, grid.box(*mine), grid.box(*theirs), side ^ 1
