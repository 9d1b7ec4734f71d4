"""Draw when each stream did its work, from the marks of `collops.profile` that the variants set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collops.apps.pictures import figure
from collops.backend import Engine
from collops.profile import Recording

__all__ = ["Span", "draw_timeline", "spans_of"]


class Span(NamedTuple):
    """A piece of work, and when it ran, in seconds since the begin of the recording."""

    label: str
    lane: int  # 0 for the caller's stream, 1 for a side stream
    begin: float
    end: float


def spans_of(recording: Recording, engine: Engine) -> list[Span]:
    """Return the outermost marks of this rank, less those recorded as part of a graph. Waits for the device."""
    recording.report()  # sets the times of the device
    caller = engine.xp.cuda.get_current_stream().ptr if engine.memory == "device" else None
    spans = []
    for span in recording.spans:
        if span.parent is None and span.end is not None and not span.captured:
            times = span.device_times or (span.begin, span.end)
            lane = int(caller is not None and span.device_begin is not None and span.device_begin.stream != caller)
            spans.append(Span(span.label, lane, *(1e-9 * (time - recording.begin) for time in times)))
    return spans


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
