"""Recordings: open and close one, report on it, and write it to files."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from collops.errors import InputError
from collops.profile import marks
from collops.profile.report import AnyCommunicator, Report, check, make_report
from collops.profile.trace import write_trace

_enabled: list[Recording] = []  # the recording that enable() opened; empty or one entry
_latest: list[Recording] = []  # the recording opened last, kept for report() after it was closed


class _NvtxRanges:
    """The NVTX domain "collops", in which every mark is a range; raises `InputError` if nvtx is not installed."""

    def __init__(self) -> None:
        if importlib.util.find_spec("nvtx") is None:
            raise InputError("NVTX ranges need the package nvtx: pip install nvtx")
        self.domain: Any = importlib.import_module("nvtx").get_domain("collops")
        self._attributes = functools.lru_cache(maxsize=1024)(self.domain.get_event_attributes)

    def push(self, label: str) -> None:
        """Open a range in this thread."""
        self.domain.push_range(self._attributes(label))

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self.domain.pop_range()


class Recording:
    """The spans of all marks entered while it was open; `record` and `enable` open one.

    Attributes
    ----------
    spans : list of Span
        In the order of entry. A span takes about 300 bytes, and two CUDA events where a device is used.
    begin, end : int or None
        Nanoseconds of the host's clock; `end` is None while the recording is open.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record() as recording:
    ...     with profile.mark("work"):
    ...         pass
    >>> [span.label for span in recording.spans]
    ['work']
    """

    def __init__(self, nvtx: bool = False) -> None:
        self.spans: list[marks.Span] = []
        self.ranges = _NvtxRanges() if nvtx else None
        self.begin = marks.clock()
        self.end: int | None = None
        # The host's clock plus this is the time of day, which ranks on several nodes share.
        self.epoch = time.time_ns() - time.perf_counter_ns()
        _latest[:] = [self]

    def _close(self) -> None:
        self.end = marks.clock()
        marks.active.remove(self)

    @property
    def now(self) -> int:
        """The end of the recording, or the present while it is open; nanoseconds of the host's clock."""
        return marks.clock() if self.end is None else self.end

    def report(self, comm: AnyCommunicator = None) -> Report:
        """Sum the spans in a tree of labels, the same on all ranks. Waits for the device.

        Collective if `comm` is passed, whose ranks are compared; by default the report covers this rank only.
        """
        set_device_times(self.spans)
        return make_report(self.spans, self.begin, self.now, comm)

    def to_json(self, path: str | os.PathLike[str], comm: AnyCommunicator = None) -> None:
        """Write the numbers of `report` as JSON on rank 0, replacing the file.

        Raises
        ------
        InputError
            On every rank, if the file cannot be written.
        """
        self.report(comm).to_json(path, comm)

    def to_chrome_trace(self, path: str | os.PathLike[str], comm: AnyCommunicator = None) -> None:
        """Write all spans as a trace for Perfetto or Chrome; see `to_json`.

        Every rank is a process of the trace, with a track for each host thread and each device stream.
        """
        set_device_times(self.spans)
        write_trace(path, self.spans, self.now, self.epoch, comm)


def set_device_times(spans: Sequence[marks.Span]) -> None:
    """Set `device_times` of the spans whose stamps both have an event. Waits for the device."""
    device = marks.device
    pending = [
        (span, span.device_begin.event, span.device_end.event)
        for span in spans
        if span.device_times is None and span.device_begin and span.device_end and not span.captured
    ]
    if not pending:
        return
    for _, _, end in pending:
        device.wait(end)
    anchor = device.stamp()
    if anchor is None or anchor.event is None:
        return  # a stream is being captured; the next report sets the times
    device.wait(anchor.event)
    now = marks.clock()
    # A device gives differences in milliseconds with 24 bits, so far-apart events are related in short steps.
    offsets = []
    offset, previous = 0.0, pending[0][1]
    for _, begin, end in pending:
        offset += device.elapsed(previous, begin)
        offsets.append((offset, offset + device.elapsed(begin, end)))
        previous = begin
    origin = now - (offset + device.elapsed(previous, anchor.event))
    for (span, _, _), (begin, end) in zip(pending, offsets, strict=True):
        span.device_times = round(origin + begin), round(origin + end)


def enabled() -> bool:
    """Return whether a recording is open.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record():
    ...     profile.enabled()
    True
    """
    return bool(marks.active)


def enable(*, nvtx: bool = False) -> Recording:
    """Record until `disable` is called; see `record`. If a recording is enabled already, return that one.

    Examples
    --------
    >>> from collops import profile
    >>> recording = profile.enable()
    >>> with profile.mark("work"):
    ...     pass
    >>> closed = profile.disable()
    >>> [row.label for row in recording.report().rows]
    ['work']
    """
    if not _enabled:
        _enabled.append(Recording(nvtx))
        marks.active.insert(0, _enabled[0])
    return _enabled[0]


def disable() -> Recording | None:
    """Close and return the recording that `enable` or ``COLLOPS_PROFILE`` opened, if there is one.

    Examples
    --------
    >>> from collops import profile
    >>> recording = profile.enable()
    >>> profile.disable() is recording, profile.enabled()
    (True, False)
    """
    if not _enabled:
        return None
    recording = _enabled.pop()
    recording._close()
    return recording


@contextmanager
def record(*, nvtx: bool = False) -> Iterator[Recording]:
    """Record the marks of all threads inside a ``with`` statement. Nested recordings each have all marks inside them.

    Parameters
    ----------
    nvtx : bool, optional
        Also show the marks as NVTX ranges.

    Yields
    ------
    Recording
        Readable also after the end of the context.

    Raises
    ------
    InputError
        If `nvtx` is set and the package ``nvtx`` is not installed.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record() as recording:
    ...     with profile.mark("outer"), profile.mark("inner"):
    ...         pass
    >>> [row.path for row in recording.report().rows]
    [('outer',), ('outer', 'inner')]
    """
    recording = Recording(nvtx)
    marks.active.append(recording)
    try:
        yield recording
    finally:
        recording._close()


def _latest_recording(comm: AnyCommunicator) -> Recording:
    """Return the recording that was opened last; raise `InputError` on every rank if some rank has none."""
    check(None if _latest else InputError("nothing was recorded; set COLLOPS_PROFILE=1 or use profile.record()"), comm)
    return _latest[0]


def report(comm: AnyCommunicator = None) -> Report:
    """Report on the recording opened last; see `Recording.report`.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record(), profile.mark("work"):
    ...     pass
    >>> [row.label for row in profile.report().rows]
    ['work']
    """
    return _latest_recording(comm).report(comm)


def to_json(path: str | os.PathLike[str], comm: AnyCommunicator = None) -> None:
    """Write the numbers of the recording opened last; see `Recording.to_json`.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from collops import profile
    >>> with profile.record(), profile.mark("work"):
    ...     pass
    >>> path = pathlib.Path(tempfile.mkdtemp(), "profile.json")
    >>> profile.to_json(path)
    >>> [row["path"] for row in json.loads(path.read_text())["marks"]]
    [['work']]
    """
    _latest_recording(comm).to_json(path, comm)


def to_chrome_trace(path: str | os.PathLike[str], comm: AnyCommunicator = None) -> None:
    """Write the trace of the recording opened last; see `Recording.to_chrome_trace`.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from collops import profile
    >>> with profile.record(), profile.mark("work"):
    ...     pass
    >>> path = pathlib.Path(tempfile.mkdtemp(), "trace.json")
    >>> profile.to_chrome_trace(path)
    >>> "work" in [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    True
    """
    _latest_recording(comm).to_chrome_trace(path, comm)
