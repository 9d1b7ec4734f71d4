"""When each stream did its work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from collops.backend import Engine

__all__ = ["Timeline"]


class Span(NamedTuple):
    """A piece of work, and when it ran, in seconds since `Timeline.start`."""

    label: str
    lane: int  # 0 for the caller's stream, 1 for a side stream
    begin: float
    end: float


class Timeline:
    """When each piece of a rank's work ran, by the host's clock, or by CUDA events on the current stream."""

    def __init__(self, engine: Engine) -> None:
        self._cuda = engine.xp.cuda if engine.name == "cupy" else None
        self.start()

    def start(self) -> None:
        """Forget the spans so far; times count from now."""
        self._zero = self._now()
        self._pieces: list[tuple[str, int, Any, Any]] = []

    @contextmanager
    def span(self, label: str, lane: int = 0) -> Iterator[None]:
        """Record when the body runs, or when the device does the work that the body enqueues."""
        begin = self._now()
        yield
        self._pieces.append((label, lane, begin, self._now()))

    def spans(self) -> list[Span]:
        """Return the spans so far, waiting for the end of their work."""
        if self._cuda is not None:
            self._cuda.Device().synchronize()
        return [Span(label, lane, self._since(begin), self._since(end)) for label, lane, begin, end in self._pieces]

    def _now(self) -> Any:
        """Return the host's time, or an event on the current stream."""
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event()
        event.record()
        return event

    def _since(self, moment: Any) -> float:
        return moment - self._zero if self._cuda is None else 1e-3 * self._cuda.get_elapsed_time(self._zero, moment)
