"""The edges of a star forest as a user gives them, and what can be wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import LayoutError
from collops.graph.indices import as_count, as_indices

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Edges"]


class Edges:
    """The edges that end on a rank, checked as far as one rank can."""

    def __init__(self, comm: Communicator, nroots: Any, leaves: Any, ranks: Any, indices: Any) -> None:
        self._comm = comm
        self.nroots = as_count(nroots, "roots")
        ranks, indices = as_indices(ranks, "remote_ranks"), as_indices(indices, "remote_indices")
        leaves = np.arange(len(ranks), dtype=np.int64) if leaves is None else as_indices(leaves, "leaves")
        if not len(leaves) == len(ranks) == len(indices):
            raise LayoutError(
                f"{len(leaves)} leaves need as many roots, but there are {len(ranks)} remote_ranks "
                f"and {len(indices)} remote_indices"
            )
        if len(leaves):
            if leaves.min() < 0:
                raise LayoutError(f"leaf {leaves.min()} is negative")
            different, counts = np.unique(leaves, return_counts=True)
            if len(different) < len(leaves):
                raise LayoutError(f"leaf {different[np.argmax(counts)]} is used {counts.max()} times")
            wrong = ranks[(ranks < 0) | (ranks >= comm.size)]
            if len(wrong):
                raise LayoutError(f"a leaf has its root on rank {wrong[0]}, but there are {comm.size} ranks")
        self.arrays = leaves, ranks, indices

    def wrong_root(self, counts: np.ndarray) -> LayoutError | None:
        """Return what is wrong with the numbers of roots, given how many each rank has."""
        _, ranks, indices = self.arrays
        wrong = np.flatnonzero((indices < 0) | (indices >= counts[ranks]))
        if not len(wrong):
            return None
        first = wrong[0]
        return LayoutError(
            f"a leaf names root {indices[first]} of rank {ranks[first]}, which has {counts[ranks[first]]} roots"
        )
