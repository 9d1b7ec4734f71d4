"""Lanes on a GPU: the caller's stream, and one of high priority beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cupy

from collops.stencil.kernels.lanes import Lanes

__all__ = ["CupyLanes"]

_HIGHEST = -5  # a device that has fewer priorities takes its highest


class CupyLanes(Lanes):
    """Streams that events order; both can be captured in one CUDA graph."""

    def __init__(self) -> None:
        self._stream = cupy.cuda.Stream(non_blocking=True, priority=_HIGHEST)
        self._began = cupy.cuda.Event(disable_timing=True)
        self._ended = cupy.cuda.Event(disable_timing=True)
        self._entered = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Work on the other stream; the first time since :meth:`join` it waits for the caller's."""
        if not self._entered:
            self._entered = True
            self._began.record(cupy.cuda.get_current_stream())
            self._stream.wait_event(self._began)
        with self._stream:
            yield

    def join(self) -> None:
        """Let the caller's stream wait for the other one."""
        self._entered = False
        self._ended.record(self._stream)
        cupy.cuda.get_current_stream().wait_event(self._ended)
