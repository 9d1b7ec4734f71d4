"""Sweep the outermost points first, and the inner ones during their exchange (`mpi_overlap`, `nccl_overlap`)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from collops.apps.jacobi.variant import Variant
from collops.comm.side_stream import HIGHEST_PRIORITY, SideStream
from collops.profile import mark

__all__ = ["Overlap"]


class Overlap(Variant):
    """On devices, the boundary and its messages have a side stream of high priority, ordered by events."""

    def prepare(self) -> None:
        """Make the grids and the stream."""
        super().prepare()
        self._side = SideStream(HIGHEST_PRIORITY) if self.engine.name == "cupy" else None

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        side = self._side
        stream = nullcontext() if side is None else side.stream
        for slot in range(count):
            source, target = self.turns()
            checked = self.checked(slot)
            if side is not None:
                side.begin()
            with stream:
                with mark("boundary"):
                    self.sweeps.boundary(source, target, norms, checked)
                with mark("halo"):
                    exchange = self.halo.start(target, target)
            with mark("inner"):
                self.sweeps.inner(source, target, norms, checked)
            with stream, mark("halo"):
                exchange.finish()
            if side is not None:
                side.end().wait()
            self.done += 1
