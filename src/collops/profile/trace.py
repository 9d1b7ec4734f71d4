"""Write recordings in the trace event format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from collops.profile.marks import Span
from collops.profile.report import AnyCommunicator, write_on_root

_FIRST_STREAM = 1000  # track number of the first device stream; host threads count from 0
_ROUNDING = 1000  # nanoseconds by which a child may outlast its parent on a device clock


_Event: TypeAlias = dict[str, Any]
"""An event of the format, which is written as JSON."""


class _Interval(NamedTuple):
    label: str
    begin: int
    end: int


def write_trace(
    path: str | os.PathLike[str], spans: Sequence[Span], now: int, epoch: int, comm: AnyCommunicator
) -> None:
    """Write the spans of all ranks, with their device times, to one file on rank 0. Collective if `comm` is not None.

    Open spans end at `now`, in nanoseconds of the host's clock; plus `epoch` this is the time of day. `InputError` is
    raised on every rank if the file cannot be written.
    """
    local = _events(spans, now, epoch)
    everyone = [local] if comm is None else comm.allgather_metadata(local)
    write_on_root(path, lambda: _json(everyone), comm)


def _json(everyone: Sequence[list[_Event]]) -> str:
    start = min((event["ts"] for events in everyone for event in events if "ts" in event), default=0)
    merged: list[_Event] = []
    for rank, events in enumerate(everyone):
        merged.append(_name("process_name", f"rank {rank}", rank, 0))
        merged.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        for event in events:
            if "ts" in event:
                event["ts"] = (event["ts"] - start) / 1000  # the format counts microseconds
            event["pid"] = rank
            merged.append(event)
    return json.dumps({"traceEvents": merged, "displayTimeUnit": "ms"}) + "\n"


def _name(what: str, name: str, rank: int, track: int) -> _Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": track, "args": {"name": name}}


def _events(spans: Iterable[Span], now: int, epoch: int) -> list[_Event]:
    threads: dict[str, list[_Interval]] = {}
    streams: dict[int, list[_Interval]] = {}
    for span in spans:
        end = now if span.end is None else span.end
        threads.setdefault(span.thread, []).append(_Interval(span.label, span.begin + epoch, end + epoch))
        if span.device_times is not None and span.device_begin is not None:
            begin, end = span.device_times
            interval = _Interval(span.label, begin + epoch, end + epoch)
            streams.setdefault(span.device_begin.stream, []).append(interval)
    tracks = [(index, f"host {name}", "host", threads[name]) for index, name in enumerate(threads)]
    tracks += [
        (_FIRST_STREAM + index, f"device stream {stream:#x}", "device", streams[stream])
        for index, stream in enumerate(streams)
    ]
    events = []
    for track, name, category, intervals in tracks:
        events.append(_name("thread_name", name, 0, track))
        events += _track(intervals, track, category)
    return events


def _track(intervals: Iterable[_Interval], track: int, category: str) -> list[_Event]:
    """Write intervals, given in the order of entry, as nested begin and end events."""
    events: list[_Event] = []
    stack: list[_Interval] = []

    def add(phase: str, label: str, when: int, **fields: Any) -> None:
        events.append({"ph": phase, "name": label, "cat": category, "tid": track, "ts": when, **fields})

    def close_until(when: int) -> None:
        while stack and stack[-1].end <= when:
            add("E", stack[-1].label, stack[-1].end)
            stack.pop()

    for number, interval in enumerate(intervals):
        label, begin, end = interval
        close_until(begin)
        if stack and end > stack[-1].end + _ROUNDING * (category == "device"):
            # Marks that do not nest (of a generator or a task) are written as asynchronous events.
            identity = f"{track}.{number}"
            add("b", label, begin, id=identity)
            add("e", label, end, id=identity)
            continue
        if stack:
            end = min(end, stack[-1].end)
        add("B", label, begin)
        stack.append(_Interval(label, begin, end))
    while stack:
        close_until(stack[-1].end)
    return events
