"""Time stamps on a device, for marks around work that the host only enqueues.

A mark records a CUDA event on the current stream at its begin and at its end. Only a report waits for them, so that
recording does not change the overlap of work.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import NamedTuple

from collops.backend import CudaEvent


class Stamp(NamedTuple):
    """One moment on a device stream."""

    stream: int  # address of the stream
    # the event recorded there; None during a capture, where it would become a node of the graph and have no time
    event: CudaEvent


class CudaClock:
    """CUDA (or HIP) events through CuPy, if the program has imported it."""

    def __init__(self) -> None:
        self._in_use = threading.local()

    def _cuda(self) -> ModuleType | None:
        """Return ``cupy.cuda`` if this thread has a device context, else None.

        A program may import CuPy and compute on the host; an event would then create a context, which takes a
        second and hundreds of megabytes of the device.
        """
        cuda = getattr(self._in_use, "cuda", None)
        if cuda is None and "cupy" in sys.modules:
            candidate = getattr(sys.modules["cupy"], "cuda", None)
            try:
                if candidate is not None and candidate.driver.ctxGetCurrent():
                    cuda = self._in_use.cuda = candidate
            except RuntimeError:  # CuPy's class for "no driver" and "driver not initialised": no device is in use
                return None
        return cuda

    def stamp(self) -> Stamp | None:
        """Record an event on the current stream; return None if this thread uses no device."""
        cuda = self._cuda()
        if cuda is None:
            return None
        stream = cuda.get_current_stream()
        try:
            capturing = stream.is_capturing()
        except RuntimeError:  # the legacy default stream cannot be queried while another stream captures
            capturing = True
        return Stamp(stream.ptr, None if capturing else stream.record())

    def wait(self, event: CudaEvent) -> None:
        """Block the host until `event` has happened."""
        event.synchronize()

    def elapsed(self, begin: CudaEvent, end: CudaEvent) -> float:
        """Return the nanoseconds between two events that have happened."""
        return 1e6 * self._in_use.cuda.get_elapsed_time(begin, end)
