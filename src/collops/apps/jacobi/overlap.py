"""Sweep the outermost points first, and the inner ones during their exchange (`mpi_overlap`, `nccl_overlap`)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from collops.apps.jacobi.variant import Variant
from collops.profile import mark

__all__ = ["Overlap"]

_HIGHEST = -5  # priority of a stream; a device that has fewer priorities takes its highest


class Overlap(Variant):
    """On devices, the boundary and its messages have a side stream of high priority, ordered by events."""

    def prepare(self) -> None:
        """Make the grids and the stream."""
        super().prepare()
        self._side: Any = None
        if self.engine.name == "cupy":
            import cupy

            self._side = cupy.cuda.Stream(non_blocking=True, priority=_HIGHEST)
            self._ready, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
            self._current = cupy.cuda.get_current_stream

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        stream = nullcontext() if self._side is None else self._side
        for slot in range(count):
            source, target = self.turns()
            checked = self.checked(slot)
            self._fork()
            with stream:
                with mark("boundary"):
                    self.sweeps.boundary(source, target, norms, checked)
                with mark("halo"):
                    exchange = self.halo.start(target, target)
            with mark("inner"):
                self.sweeps.inner(source, target, norms, checked)
            with stream, mark("halo"):
                exchange.finish()
            self._join()
            self.done += 1

    def _fork(self) -> None:
        """Make the side stream wait for the caller's stream."""
        if self._side is not None:
            self._ready.record(self._current())
            self._side.wait_event(self._ready)

    def _join(self) -> None:
        """Make the caller's stream wait for the side stream."""
        if self._side is not None:
            self._done.record(self._side)
            self._current().wait_event(self._done)
