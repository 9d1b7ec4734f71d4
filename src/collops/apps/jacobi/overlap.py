"""Sweep the outermost points first, and the inner ones during their exchange (`mpi_overlap`, `nccl_overlap`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from collops.apps.jacobi.variant import Variant

__all__ = ["Overlap"]

_HIGHEST = -5  # priority of a stream; a device that has fewer priorities takes its highest


class Overlap(Variant):
    """On devices, the boundary and its messages have a side stream of high priority."""

    def prepare(self) -> None:
        """Make the grids and the stream."""
        super().prepare()
        self._side = _SideStream() if self.engine.name == "cupy" else _NoStream()

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        for slot in range(count):
            source, target = self.turns()
            checked = self.checked(slot)
            with self._side.work():
                with self.span("boundary", lane=1):
                    self.sweeps.boundary(source, target, norms, checked)
                with self.span("halo", lane=1):
                    exchange = self.halo.start(target, target)
            with self.span("inner"):
                self.sweeps.inner(source, target, norms, checked)
            with self._side.work(), self.span("halo", lane=1):
                exchange.finish()
            self._side.join()
            self.done += 1


class _NoStream:
    """The replacement of the side stream on hosts, where work runs in program order."""

    def work(self) -> AbstractContextManager[None]:
        """Return a context whose work runs on this stream, after earlier work of the caller's stream."""
        return nullcontext()

    def join(self) -> None:
        """Make the caller's stream wait for this one."""


class _SideStream(_NoStream):
    """A stream of high priority, ordered with the caller's by events; a CUDA graph can capture both."""

    def __init__(self) -> None:
        import cupy

        self._current = cupy.cuda.get_current_stream
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=_HIGHEST)
        self._ready, self._done = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._entered = False

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work on this stream; the first time since :meth:`join` it waits for the caller's."""
        if not self._entered:
            self._entered = True
            self._ready.record(self._current())
            self._stream.wait_event(self._ready)
        with self._stream:
            yield

    def join(self) -> None:
        """Make the caller's stream wait for this one."""
        self._entered = False
        self._done.record(self._stream)
        self._current().wait_event(self._done)
