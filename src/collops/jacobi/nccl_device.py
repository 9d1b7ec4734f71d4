"""Kernels that find the neighbours' memory by NCCL's device functions, in its windows (`nccl_device`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.jacobi.peer import Peer

if TYPE_CHECKING:
    from collops.extend.arrays import LocalArray
    from collops.extend.communication import Symmetric
    from collops.jacobi.cupy_sweeps import Neighbours


class NcclDevice(Peer):
    """`Peer` without NVSHMEM: the kernel gets the addresses of the neighbours' halos and flags from NCCL.

    Flags synchronise neighbours, and their waits have a deadline, unlike NCCL's barriers.
    """

    registered = True

    def share(self, flags: int, offsets: Sequence[int]) -> Neighbours:
        """Make the flags, and return the addresses of the neighbours' grids and flags. Collective."""
        neighbours = super().share(flags, offsets)
        grids: Any = self._memory
        words: Any = self._flags
        neighbours.kernel = grids.module(*self.sweeps.source_of("jacobi_nccl")).get_function("sweep_nccl")
        windows = (address for memory in (grids, words) for address in (memory.window, memory.local.data.ptr))
        ranks = (-1 if rank is None else rank for rank in self.grid.neighbours)
        neighbours.extra = (*map(np.uint64, windows), *map(np.int32, ranks))
        return neighbours

    def memory_of(self, rank: int, memory: Symmetric) -> LocalArray:
        """Return this rank's memory: the kernel computes a neighbour's addresses from its addresses."""
        return memory.local
