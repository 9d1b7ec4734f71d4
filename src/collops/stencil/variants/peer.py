"""Kernels that store the halo straight into the neighbours' memory, and signals there instead of messages."""

from __future__ import annotations

from typing import Any

from collops.stencil.variants.base import Variant
from collops.stencil.variants.peer_memory import PeerMemory

__all__ = ["Peer"]


class Peer(Variant):
    """One launch a sweep and nothing else: its first blocks wait for the neighbours' values and store this rank's."""

    def _prepare(self) -> None:
        self.everyone_has_points()
        self._memory = PeerMemory(self.grid, self.comm, self.engine, self.sweeps, self.sweeps.flag_count(1))
        self._grids = self._memory.filled()
        places = [self.sweeps.flag_bytes(side) for side in range(4)]
        self._neighbours = self._memory.neighbours(places)
        self._shifts = (0, self._memory.stride * self.problem.itemsize)

    def advance(self, count: int, norms: Any) -> None:
        """Launch `count` sweeps."""
        for slot in range(count):
            now = self.done % 2
            with self.timeline.span("sweep"):
                self.sweeps.peer(
                    self._grids[now],
                    self._grids[1 - now],
                    self._shifts[1 - now],
                    self._neighbours,
                    self.done,
                    norms,
                    self.checked(slot),
                )
            self.done += 1

    @property
    def array(self) -> Any:
        """The grid that was written last."""
        return self._grids[self.done % 2]

    def free(self) -> None:
        """Give the symmetric memory back."""
        self._memory.free()
