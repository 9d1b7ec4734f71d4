"""Record and draw when each stream did its work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from collops.apps.pictures import figure
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


def draw_timeline(name: str, ranks: Sequence[Sequence[Span]], path: Path) -> Path:
    """Draw the spans of all ranks, a row for each stream."""
    rows = [(rank, lane) for rank, spans in enumerate(ranks) for lane in sorted({span.lane for span in spans})]
    labels = list(dict.fromkeys(span.label for spans in ranks for span in spans))
    colors = {label: f"C{number}" for number, label in enumerate(labels)}
    with figure(path, 1, (10.0, 1.4 + 0.4 * len(rows))) as (_, (axes,)):
        for label in labels:
            for place, (rank, lane) in enumerate(rows):
                spans = [span for span in ranks[rank] if span.lane == lane and span.label == label]
                bars = [(1e6 * span.begin, 1e6 * (span.end - span.begin)) for span in spans]
                axes.broken_barh(bars, (place - 0.38, 0.76), facecolors=colors[label], edgecolor="white", linewidth=0.4)
            axes.plot([], [], color=colors[label], linewidth=6, label=label)
        axes.set_yticks(range(len(rows)), [f"rank {rank}" + (", side stream" if lane else "") for rank, lane in rows])
        axes.invert_yaxis()
        axes.set_xlabel("µs")
        axes.set_title(f"Streams of {name}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=max(1, len(labels)))
    return path
