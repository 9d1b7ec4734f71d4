"""Recordings: what marks report to, and how to open and close one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from collops.errors import InputError
from collops.profile import marks
from collops.profile.communicator import Comm
from collops.profile.device import resolve
from collops.profile.ranges import Ranges
from collops.profile.report import Report, make_report
from collops.profile.trace import write_trace

__all__ = [
    "Recording",
    "disable",
    "enable",
    "enabled",
    "latest",
    "record",
    "report",
    "to_chrome_trace",
    "to_json",
]

_enabled: list[Recording] = []  # the one that enable() opened; empty or one entry
_latest: list[Recording] = []  # the one opened last, kept for report() after it was closed


class Recording:
    """The spans of all marks that were entered while it was open.

    Parameters
    ----------
    nvtx : bool, optional
        Also show the marks as NVTX ranges.

    Attributes
    ----------
    spans : list of Span
        In the order of entry; one takes about 300 bytes, and two CUDA events where a device is used.
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
        self.ranges = Ranges() if nvtx else None
        self.spans: list[marks.Span] = []
        self.begin = marks.clock()
        self.end: int | None = None
        # What to add to the host's clock to get the time of day, which is what ranks on several nodes share.
        self.epoch = time.time_ns() - time.perf_counter_ns()

    @property
    def now(self) -> int:
        """The time at which the recording ended, or the present one; nanoseconds of the host's clock."""
        return marks.clock() if self.end is None else self.end

    def resolve(self) -> None:
        """Find out when device work that was marked took place; waits for it."""
        resolve(self.spans, marks.device, marks.clock)

    def report(self, comm: Comm | None = None) -> Report:
        """Add the spans up into a tree. Collective if a communicator is given.

        Parameters
        ----------
        comm : Communicator, optional
            The ranks to compare; this rank alone by default.

        Returns
        -------
        Report
            The same on all ranks.
        """
        self.resolve()
        return make_report(self.spans, self.begin, self.now, comm)

    def to_json(self, path: str | os.PathLike[str], comm: Comm | None = None) -> None:
        """Write the report's numbers as JSON. Collective if a communicator is given; rank 0 writes.

        Parameters
        ----------
        path : path-like
            The file, which is replaced.
        comm : Communicator, optional
            The ranks to compare; this rank alone by default.

        Raises
        ------
        InputError
            If the file cannot be written; on every rank.
        """
        self.report(comm).to_json(path, comm)

    def to_chrome_trace(self, path: str | os.PathLike[str], comm: Comm | None = None) -> None:
        """Write all spans as a trace for Perfetto or Chrome. Collective if a communicator is given; rank 0 writes.

        Every rank is a process of the trace, and has a track for each host thread and each device stream.

        Parameters
        ----------
        path : path-like
            The file, which is replaced.
        comm : Communicator, optional
            The ranks to show; this rank alone by default.

        Raises
        ------
        InputError
            If the file cannot be written; on every rank.
        """
        self.resolve()
        write_trace(path, self.spans, self.now, self.epoch, comm)


def enabled() -> bool:
    """Whether marks record at present.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record():
    ...     profile.enabled()
    True
    """
    return bool(marks.active)


def enable(*, nvtx: bool = False) -> Recording:
    """Start recording until `disable`; does nothing but return the recording if one was enabled already.

    Parameters
    ----------
    nvtx : bool, optional
        Also show the marks as NVTX ranges.

    Returns
    -------
    Recording
        The open recording.

    Raises
    ------
    InputError
        If NVTX ranges are asked for and the package ``nvtx`` is not installed.

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
        recording = Recording(nvtx)
        _enabled.append(recording)
        _latest[:] = [recording]
        marks.active.insert(0, recording)
    return _enabled[0]


def disable() -> Recording | None:
    """Stop what `enable` (or ``COLLOPS_PROFILE``) started.

    Returns
    -------
    Recording or None
        The recording, closed; None if there was none.

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
    recording.end = marks.clock()
    marks.active.remove(recording)
    return recording


@contextmanager
def record(*, nvtx: bool = False) -> Iterator[Recording]:
    """Record the marks inside a with statement, in every thread. Recordings may be nested; each has all its marks.

    Parameters
    ----------
    nvtx : bool, optional
        Also show the marks as NVTX ranges.

    Yields
    ------
    Recording
        Stays readable afterwards.

    Raises
    ------
    InputError
        If NVTX ranges are asked for and the package ``nvtx`` is not installed.

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
    _latest[:] = [recording]
    marks.active.append(recording)
    try:
        yield recording
    finally:
        recording.end = marks.clock()
        marks.active.remove(recording)


def latest(comm: Comm | None = None) -> Recording:
    """Return the recording that was opened last, open or closed. Collective if a communicator is given.

    Raises
    ------
    InputError
        If nothing was ever recorded, on this or on another rank.
    """
    error = None
    if not _latest:
        error = InputError("nothing was recorded; set COLLOPS_PROFILE=1 or use collops.profile.record()")
    if comm is not None:
        comm.check(error)
    elif error is not None:
        raise error
    return _latest[0]


def report(comm: Comm | None = None) -> Report:
    """Report on the recording that was opened last; see `Recording.report`. Collective if a communicator is given.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.record(), profile.mark("work"):
    ...     pass
    >>> [row.label for row in profile.report().rows]
    ['work']
    """
    return latest(comm).report(comm)


def to_json(path: str | os.PathLike[str], comm: Comm | None = None) -> None:
    """Write the latest recording's numbers; see `Recording.to_json`. Collective if a communicator is given.

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
    latest(comm).to_json(path, comm)


def to_chrome_trace(path: str | os.PathLike[str], comm: Comm | None = None) -> None:
    """Write the latest recording's trace; see `Recording.to_chrome_trace`. Collective if a communicator is given.

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
    latest(comm).to_chrome_trace(path, comm)
