"""The distribution of an iteration's time, as numbers and as a figure, from the marks of the variants."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from collops import Communicator, profile
from collops.extend.applications import figure
from collops.extend.engines import Engine
from collops.jacobi.variant import Variant

HOST = 2  # the lane of the host's launches, if the work is on a device
_LANES = {0: "", 1: ", side stream", HOST: ", launches"}
_COMPUTING = ("sweep", "boundary", "inner")  # in the labels of sweeps; all other marks are of messages
_HOLD_SECONDS = 0.02


class Span(NamedTuple):
    """A piece of work, and its time in seconds since the beginning of the recording."""

    label: str
    lane: int  # 0 for the caller's stream, 1 for a side stream, `HOST` for the launch of work on a device
    begin: float
    end: float


class Shares(NamedTuple):
    """The mean seconds of an iteration on one rank: `sweeps`, `exposed` and `gaps` add up to the iteration."""

    sweeps: float  # any sweep runs
    exposed: float  # messages are in flight or awaited, and no sweep runs
    gaps: float  # neither: the work waits for its launch
    hidden: float  # messages are in flight during a sweep

    @property
    def idle(self) -> float:
        """The time between sweeps."""
        return self.exposed + self.gaps


def record_spans(variant: Variant, count: int, *, ahead: bool = False) -> list[Span]:
    """Make `count` sweeps three times, and return the spans of the last. Collective.

    Marks are also NVTX ranges if the package nvtx is installed. With `ahead` a device begins when the host has launched
    everything, so that spans do not include waits of the device for the host.
    """
    engine = variant.engine
    norms = engine.xp.zeros(count)
    for _ in range(2):  # graphs of odd and of even first sweeps
        variant.record(count)
        variant.advance(count, norms)
    variant.record(count)
    engine.synchronize()
    variant.comm.barrier()
    ranges = importlib.util.find_spec("nvtx") is not None
    with _held(engine, variant.comm, ahead), profile.record(nvtx=ranges) as recording:
        variant.advance(count, norms)
    return spans_of(recording, engine)


@contextmanager
def _held(engine: Engine, comm: Communicator, ahead: bool) -> Iterator[None]:
    """Delay the work launched on a device until all ranks have launched theirs or the host waits for it."""
    if not ahead or engine.memory == "host":
        yield
        return
    launched = threading.Event()
    engine.xp.cuda.get_current_stream().launch_host_func(lambda event: event.wait(_HOLD_SECONDS), launched)
    try:
        yield
        comm.barrier()
    finally:
        launched.set()


def spans_of(recording: profile.Recording, engine: Engine) -> list[Span]:
    """Return the outermost marks of this rank, except marks inside a graph. Waits for the device."""
    recording.report()  # sets the times of the device
    caller = engine.xp.cuda.get_current_stream().ptr if engine.memory == "device" else None
    spans = []
    for span in recording.spans:
        if span.parent is not None or span.end is None or span.captured:
            continue
        lanes = {0: (span.begin, span.end)}
        if span.device_times is not None and span.device_begin is not None:
            lanes = {int(span.device_begin.stream != caller): span.device_times, HOST: (span.begin, span.end)}
        for lane, times in lanes.items():
            spans.append(Span(span.label, lane, *(1e-9 * (time - recording.begin) for time in times)))
    return spans


def shares_of(spans: Sequence[Span], count: int, seconds: float = 0.0) -> Shares:
    """Divide the time of `count` sweeps by one rank's spans.

    An iteration without marks took `seconds`; if this is longer than the recorded time, the device waited for launches
    that the recording does not show.
    """
    work = [span for span in spans if span.lane != HOST]
    computing = [any(word in span.label for word in _COMPUTING) for span in work]
    swept = _length([span for span, computes in zip(work, computing, strict=True) if computes])
    sent = _length([span for span, computes in zip(work, computing, strict=True) if not computes])
    either = _length(work)
    duration = max((span.end for span in work), default=0.0) - min((span.begin for span in work), default=0.0)
    gaps = max(duration, count * seconds) - either
    return Shares(*(max(0.0, time / count) for time in (swept, either - swept, gaps, swept + sent - either)))


def _length(spans: Sequence[Span]) -> float:
    """Return the time in which at least one of the spans runs."""
    length, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.begin):
        length += max(0.0, span.end - max(span.begin, end))
        end = max(end, span.end)
    return length


def draw_timeline(name: str, ranks: Sequence[Sequence[Span]], path: Path) -> Path:
    """Draw the spans of all ranks, a row for each stream."""
    rows = [(rank, lane) for rank, spans in enumerate(ranks) for lane in sorted({span.lane for span in spans})]
    labels = list(dict.fromkeys(span.label for spans in ranks for span in spans))
    colors = {label: f"C{number}" for number, label in enumerate(labels)}
    with figure(path, 1, (10.0, 1.4 + 0.4 * len(rows))) as (_, (axes,)):
        for label in labels:
            for y, (rank, lane) in enumerate(rows):
                spans = [span for span in ranks[rank] if span.lane == lane and span.label == label]
                bars = [(1e6 * span.begin, 1e6 * (span.end - span.begin)) for span in spans]
                axes.broken_barh(bars, (y - 0.38, 0.76), facecolors=colors[label], edgecolor="white", linewidth=0.4)
            axes.plot([], [], color=colors[label], linewidth=6, label=label)
        axes.set_yticks(range(len(rows)), [f"rank {rank}{_LANES[lane]}" for rank, lane in rows])
        axes.invert_yaxis()
        axes.set_xlabel("µs")
        axes.set_title(f"Streams of {name}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=max(1, len(labels)))
    return path
