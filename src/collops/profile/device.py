"""Time stamps on the device, for marks around work that the host only enqueues.

A mark records a CUDA event on the caller's current stream when it is entered and when it is left. Nothing
waits for them until somebody asks for the numbers, so a profile does not change what overlaps what.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

__all__ = ["CudaClock", "DeviceClock", "Stamp", "Stamped", "resolve"]


class Stamp(NamedTuple):
    """One moment on a device stream.

    Attributes
    ----------
    stream : int
        Address of the stream.
    event : object or None
        What the device records there; None if the stream was being captured, where an event would become a
        node of the graph and never tell a time.
    """

    stream: int
    event: Any


class Stamped(Protocol):
    """Something with two stamps, and a place for the times that they turn out to be."""

    device_begin: Stamp | None
    device_end: Stamp | None
    device_times: tuple[int, int] | None


class DeviceClock(Protocol):
    """What the profile asks of a device; tests put a simulated one in place of CUDA."""

    def stamp(self) -> Stamp | None:
        """Record an event on the current stream; None if this thread uses no device."""
        ...

    def wait(self, event: Any) -> None:
        """Block the host until `event` has happened."""
        ...

    def elapsed(self, begin: Any, end: Any) -> float:
        """Nanoseconds from one event to another, both of which have happened."""
        ...


class CudaClock:
    """CUDA (or HIP) events through CuPy, if the program uses it: CuPy is never imported from here."""

    def __init__(self) -> None:
        self._in_use = threading.local()

    def _cuda(self) -> Any:
        """Return ``cupy.cuda`` once this thread has a device context, else None.

        A program may import CuPy and compute on the host; an event would then create a context, which takes a
        second and hundreds of megabytes of the device.
        """
        cuda = getattr(self._in_use, "cuda", None)
        if cuda is None and "cupy" in sys.modules:
            candidate = getattr(sys.modules["cupy"], "cuda", None)
            try:
                if candidate is not None and candidate.driver.ctxGetCurrent():
                    cuda = self._in_use.cuda = candidate
            except RuntimeError:  # CuPy's class for "no driver" and for "driver not initialised": no device is in use
                return None
        return cuda

    def stamp(self) -> Stamp | None:
        """Record an event on the current stream; None if this thread uses no device."""
        cuda = self._cuda()
        if cuda is None:
            return None
        stream = cuda.get_current_stream()
        try:
            capturing = stream.is_capturing()
        except RuntimeError:  # asking about the legacy default stream is itself refused while another stream captures
            capturing = True
        return Stamp(stream.ptr, None if capturing else stream.record())

    def wait(self, event: Any) -> None:
        """Block the host until `event` has happened."""
        event.synchronize()

    def elapsed(self, begin: Any, end: Any) -> float:
        """Nanoseconds from one event to another, both of which have happened."""
        return 1e6 * self._in_use.cuda.get_elapsed_time(begin, end)


def resolve(spans: Sequence[Stamped], device: DeviceClock, clock: Callable[[], int]) -> None:
    """Turn the stamps of `spans` into times of the host's clock. Waits for the device.

    Parameters
    ----------
    spans : sequence
        Their `device_times` is set where both stamps hold an event; in nanoseconds.
    device : DeviceClock
        Where the stamps come from.
    clock : callable
        The host's clock, in nanoseconds.
    """
    pending = [
        (span, span.device_begin.event, span.device_end.event)
        for span in spans
        if span.device_times is None
        and span.device_begin is not None
        and span.device_end is not None
        and span.device_begin.event is not None
        and span.device_end.event is not None
    ]
    if not pending:
        return
    for _, _, end in pending:
        device.wait(end)
    anchor = device.stamp()
    if anchor is None or anchor.event is None:
        return  # asked for in the middle of a capture: the stamps stay, and the next report has them
    device.wait(anchor.event)
    now = clock()
    # Device times are differences in milliseconds with 24 bits, so far-apart events are related in short steps.
    offsets = []
    offset, previous = 0.0, pending[0][1]
    for _, begin, end in pending:
        offset += device.elapsed(previous, begin)
        offsets.append((offset, offset + device.elapsed(begin, end)))
        previous = begin
    origin = now - (offset + device.elapsed(previous, anchor.event))
    for (span, _, _), (begin, end) in zip(pending, offsets, strict=True):
        span.device_times = round(origin + begin), round(origin + end)
