"""The pictures of ``collops jacobi``: times and the limit of the memory, and when each stream did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from collops.apps.jacobi.timeline import Span
from collops.apps.pictures import figure


def bar_chart(seconds: Mapping[str, float], limit: float | None, title: str, path: Path) -> Path:
    """Draw the time of an iteration by name, and `limit`, the time of a single sweep at the speed of the memory."""
    times = [1e6 * each for each in seconds.values()]
    with figure(path, 1, (8.0, 1.6 + 0.34 * len(times))) as (_, (axes,)):
        places = range(len(times))
        bars = axes.barh(places, times, height=0.7, color="#3f7cac")
        axes.bar_label(bars, [f"{time:.4g}" for time in times], padding=3)
        axes.set_yticks(places, list(seconds))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        if limit is not None:
            axes.axvline(1e6 * limit, color="#b5442e", linewidth=1.2)
            axes.set_xlabel(f"µs an iteration; the line is the memory's limit of one sweep, {1e6 * limit:.4g} µs")
        axes.set_title(title)
    return path


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
