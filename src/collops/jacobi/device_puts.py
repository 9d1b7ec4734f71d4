"""Kernels that put their outermost points by NVSHMEM's device functions (`nvshmem_element`, `_warp`, `_block`)."""

from __future__ import annotations

from typing import ClassVar

from collops.extend.arrays import LocalArray
from collops.jacobi.variant import InSharedMemory
from collops.profile import mark


class BlockPuts(InSharedMemory):
    """One launch for each sweep, in which every block of threads at an edge puts its part with a signal.

    The corresponding block of the neighbour waits for this signal only. It means that the values have arrived, and that
    this block has read its halo of the previous sweep, which may be overwritten.
    """

    put: ClassVar[str] = "block"  # the threads that share a put: a block, a warp, or a single thread

    def prepare(self) -> None:
        super().prepare()
        # Neighbours agree on the rows of a block of threads, so that they have the same signals.
        self._rows = min(self.comm.allgather_metadata(self.sweeps.rows_of_puts()))
        count = self.sweeps.places_of_puts(self._rows)
        self._signals = self.comm.symmetric((4, count), "uint64", engine=self.engine.name)
        self._kernel = self._memory.module(*self.sweeps.source_of("jacobi_nvshmem")).get_function(f"sweep_{self.put}")

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        with mark("sweep"):
            self.sweeps.putting(self._kernel, source, target, self._rows, self._signals.local, self.done, norms, slot)

    def free(self) -> None:
        self._signals.free()
        super().free()


class WarpPuts(BlockPuts):
    """The same, but every warp puts the part of its own strip; a signal follows the puts of the block."""

    put = "warp"


class ElementPuts(BlockPuts):
    """The same, but every thread puts single elements."""

    put = "element"
