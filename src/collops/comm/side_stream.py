"""A second device stream, for work that overlaps with the work that the caller launches."""

from __future__ import annotations

from itertools import cycle
from types import ModuleType

from collops.backend import CudaStream
from collops.comm.transport import Pending

__all__ = ["HIGHEST_PRIORITY", "SideStream"]

HIGHEST_PRIORITY = -5
"""Priority of a stream; a device with fewer priorities uses its highest."""

_MARKS = 16


class _Mark(Pending):
    """A point in the work of a side stream."""

    __slots__ = ("_current", "event")

    def __init__(self, cuda: ModuleType) -> None:
        self._current = cuda.get_current_stream
        self.event = cuda.Event(disable_timing=True)

    def wait(self) -> None:
        self._current().wait_event(self.event)


class SideStream(Pending):
    """A stream that events order after the caller's current stream and back; a CUDA graph can capture both.

    A lower `priority` number runs first.
    """

    def __init__(self, priority: int | None = None) -> None:
        import cupy

        self._current = cupy.cuda.get_current_stream
        self.stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        self._ready = cupy.cuda.Event(disable_timing=True)
        # A reused event is a later point of the same stream: waiting for it takes longer than necessary, but never
        # less.
        self._marks = cycle([_Mark(cupy.cuda) for _ in range(_MARKS)])
        self._last = next(self._marks)

    def begin(self, current: CudaStream = None) -> CudaStream:
        """Order the side stream after `current`, the current stream by default, and return it."""
        self._ready.record(self._current() if current is None else current)
        self.stream.wait_event(self._ready)
        return self.stream

    def end(self) -> Pending:
        """Return an object whose wait orders the current stream after the work so far, but not after later work."""
        self._last = mark = next(self._marks)
        mark.event.record(self.stream)
        return mark

    def wait(self) -> None:
        """Order the current stream after the work before the last :meth:`end`."""
        self._last.wait()
