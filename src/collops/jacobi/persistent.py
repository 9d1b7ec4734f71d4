"""The whole loop in one kernel, whose blocks wait only for their neighbours (`persistent`)."""

from __future__ import annotations

from collops.extend.arrays import LocalArray
from collops.jacobi.peer import PeerMemory
from collops.profile import mark


class Persistent(PeerMemory):
    """Each block of the kernel keeps a band of rows, and waits for the flags of the adjacent bands.

    Every rank has the same number of bands: the number of blocks that run concurrently on every device, but at most the
    smallest number of rows.
    """

    def prepare(self) -> None:
        super().prepare()
        most = min(self.comm.allgather_metadata(self.sweeps.most_bands()))
        self._bands = bands = min(most, *self.grid.layout.sizes[0])
        # The kernel's flags: the bands above, its own bands, the bands below, to the left and to the right.
        offsets = (0, bands + 1, bands + 2, 2 * bands + 2)
        self._neighbours = self.share(self.sweeps.flag_count(bands), offsets)
        self._stride = self.grid.shape[0] * self.grid.shape[1]  # elements between the grids of even and odd sweeps

    def advance(self, count: int, norms: LocalArray) -> None:
        with mark(f"{count} sweeps"):
            self.sweeps.persistent(self.grids[0], self._stride, self._neighbours, self._bands, self.done, count, norms)
        self.done += count
