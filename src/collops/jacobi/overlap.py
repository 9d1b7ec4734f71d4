"""Sweep the outermost points first, and the inner ones during their exchange (`mpi_overlap`, `nccl_overlap`)."""

from __future__ import annotations

from contextlib import nullcontext

from collops.extend.arrays import LocalArray
from collops.extend.communication import HIGHEST_PRIORITY, SideStream
from collops.jacobi.variant import Variant
from collops.profile import mark


class Overlap(Variant):
    """On devices, the boundary and its messages have a side stream of high priority, ordered by events."""

    def prepare(self) -> None:
        super().prepare()
        self._side = SideStream(HIGHEST_PRIORITY) if self.engine.streams else None
        self._aside = nullcontext() if self._side is None else self._side.stream

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        if self._side is not None:
            self._side.begin()
        with self._aside:
            with mark("boundary"):
                self.sweeps.boundary(source, target, norms, slot)
            with mark("halo"):
                exchange = self.halo.start(target, target)
        with mark("inner"):
            self.sweeps.inner(source, target, norms, slot)
        with self._aside, mark("halo"):
            exchange.finish()
        if self._side is not None:
            self._side.end().wait()
