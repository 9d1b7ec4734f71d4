"""The whole loop in one kernel: nothing is launched for an iteration, and rows wait for their neighbours alone."""

from __future__ import annotations

from typing import Any

from collops.stencil.variants.base import Variant
from collops.stencil.variants.peer_memory import PeerMemory

__all__ = ["Persistent"]


class Persistent(Variant):
    """Blocks that stay on the device, each with a band of rows, and wait for flags of the bands beside theirs.

    A rank has as many bands as blocks run at once on every rank's device, at most as many as the fewest rows.
    """

    def _prepare(self) -> None:
        self.everyone_has_points()
        most = min(self.comm.allgather_metadata(self.sweeps.most_bands()))
        self._bands = bands = min(most, *self.grid.layout.sizes[0])
        self._memory = PeerMemory(self.grid, self.comm, self.engine, self.sweeps, self.sweeps.flag_count(bands))
        self._grids = self._memory.filled()
        places = (0, bands + 1, bands + 2, 2 * bands + 2)  # the order of flags in the kernel
        self._neighbours = self._memory.neighbours([self.sweeps.flag_bytes(place) for place in places])

    def advance(self, count: int, norms: Any) -> None:
        """Launch the loop."""
        with self.timeline.span(f"{count} sweeps"):
            self.sweeps.persistent(
                self._grids[0], self._memory.stride, self._neighbours, self._bands, self.done, count, norms
            )
        self.done += count

    @property
    def array(self) -> Any:
        """The grid that was written last."""
        return self._grids[self.done % 2]

    def free(self) -> None:
        """Give the symmetric memory back."""
        self._memory.free()
