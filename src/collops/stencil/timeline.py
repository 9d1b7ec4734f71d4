"""What happened when on each stream of a rank, as spans of time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from collops.backend import Engine

__all__ = ["DeviceTimeline", "HostTimeline", "Span", "Timeline", "timeline_of"]


@dataclass(frozen=True)
class Span:
    """A piece of work.

    Parameters
    ----------
    label : str
        What it was.
    lane : int
        0 for the caller's stream, 1 for the one beside it.
    begin, end : float
        Seconds since :meth:`Timeline.start`.

    Examples
    --------
    >>> from collops.stencil import Span
    >>> span = Span("sweep", "host", 0.0, 1.5)
    >>> span.end - span.begin
    1.5
    """

    label: str
    lane: int
    begin: float
    end: float


class Timeline:
    """Notes nothing: what variants have unless somebody wants to see.

    Examples
    --------
    >>> from collops.stencil import Timeline
    >>> Timeline().spans()
    []
    """

    def start(self) -> None:
        """Forget what was noted; times count from now."""

    def span(self, label: str, lane: int = 0) -> AbstractContextManager[Any]:
        """Return a context that notes when its work begins and ends."""
        return _NOTHING

    def spans(self) -> list[Span]:
        """Return what was noted, waiting for its end."""
        return []


class HostTimeline(Timeline):
    """Reads the host's clock."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget what was noted; times count from now."""
        self._zero = time.perf_counter()
        self._spans: list[Span] = []

    @contextmanager
    def span(self, label: str, lane: int = 0) -> Iterator[None]:
        """Note when the body runs."""
        begin = time.perf_counter()
        yield
        self._spans.append(Span(label, lane, begin - self._zero, time.perf_counter() - self._zero))

    def spans(self) -> list[Span]:
        """Return what was noted."""
        return list(self._spans)


class DeviceTimeline(Timeline):
    """Records CUDA events on the current stream around each piece of work."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.start()

    def start(self) -> None:
        """Forget what was noted; times count from here on the current stream."""
        self._zero = self._event()
        self._noted: list[tuple[str, int, Any, Any]] = []

    @contextmanager
    def span(self, label: str, lane: int = 0) -> Iterator[None]:
        """Note when the device does what the body enqueues."""
        begin = self._event()
        yield
        self._noted.append((label, lane, begin, self._event()))

    def spans(self) -> list[Span]:
        """Return what was noted, waiting for its end."""
        self._cupy.cuda.Device().synchronize()

        def since(event: Any) -> float:
            return 1e-3 * self._cupy.cuda.get_elapsed_time(self._zero, event)

        return [Span(label, lane, since(begin), since(end)) for label, lane, begin, end in self._noted]

    def _event(self) -> Any:
        event = self._cupy.cuda.Event()
        event.record()
        return event


def timeline_of(engine: Engine) -> Timeline:
    """Return a timeline for work on arrays of `engine`.

    Examples
    --------
    >>> from collops.backend import engine
    >>> from collops.stencil import timeline_of
    >>> type(timeline_of(engine("numpy"))).__name__
    'HostTimeline'
    """
    return DeviceTimeline() if engine.name == "cupy" else HostTimeline()


_NOTHING = nullcontext()
