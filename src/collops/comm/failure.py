"""The failure protocol: every wait ends with its result or with an error that all ranks raise.

Each communicator of several ranks has one :class:`Failures`, which implements all waits of the host. It handles a rank
that misses the deadline, a rank that raises because of its arguments while others have begun the call (a *rejection*),
a rank whose program has ended, and ranks whose calls differ (``COLLOPS_CHECK``).

**Messages.** A rank sends them to all others on a separate channel, and does not wait for the receivers:

* :class:`FailureNotice`: "I have aborted a call." Sent when a deadline passes, a needed rank has ended, or after a
  mismatch or a rejection without recovery. A rank that receives one during a wait aborts too and answers with its own
  notice, so that all raise an error with a table of each rank's call. A rank without an answer after ten seconds is
  missing.
* :class:`CallReport`: "I rejected call *n*", or "I had begun call *n* and have left it". Ranks count their collective
  calls. A rank that receives a rejection of the call in which it waits sends the second kind and raises the same error.
* :class:`ProgramEnd`: "My program ended after *n* calls." An ended rank answers notices until all ranks have ended.

**States**, in two attributes that the communicator tests before a call:

* in step: `attention` is False.
* disputed: `attention` is True, because this rank has rejected a call or has received a report. :meth:`Failures.attend`
  returns to *in step* when every rank has reported on every call that this rank rejected or left.
* closed: `failure` is the reason, and every later call raises. An abort leads here from any state, since messages may
  be in flight; except after a mismatch that all ranks answered, which leads to *in step*, since calls are checked
  before data are sent.

**Why no later call matches a rejected one.** MPI matches collective calls by their order alone. A rank that rejected
call *n*, or left it, therefore begins no other call until every rank has reported on *n*. If a rank had begun *n*, all
ranks first replace their transports (`renew`), and messages on the old ones are never received. A rank that completed
its part in *n* before it received the rejection, as the root of a broadcast may, cannot report. It receives the
rejection in a later wait and aborts, as does a rank whose transports cannot be replaced. Until then the ranks that
rejected or left *n* begin no call, so that no calls have been mismatched when the communicator closes.

**Cost.** Without a failure no message is sent: a call increments `number` and tests `attention`, and a wait polls a few
thousand times before it checks the clock and the channel.

**Late and early messages.** A message carries the number of aborts so far (`incident`); each abort resets the count of
calls. A message of an earlier incident is dropped, so that a late notice does not cause another abort. A message of a
later incident is stored until this rank reaches it.

**Compiled calls.** Programs of JAX wait in native code, on threads of XLA, which calls :meth:`Failures.looks`
periodically; a lock protects the state, since the program may wait in another call at that time. These calls have a
separate count (`compiled`), and closing a communicator closes their transports.

**Not covered.** Rejected point-to-point messages, moves of star forests and primitives of JAX are not counted: other
ranks wait for them until their deadline. A rank that answers a mismatch after others have counted it as missing is not
notified that they have closed the communicator, and waits for them until its deadline.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from collops._forks import at_fork
from collops._launcher import FORKED
from collops.comm.agreement import Json, MpiHandle, name_hosts, name_ranks, shared_error, table
from collops.errors import CallMismatch, CommunicationError, CommunicationTimeout, InputError, TransportError

__all__ = [
    "Cause",
    "Failures",
    "Located",
    "call_site",
    "call_site_of_main_thread",
    "default_timeout",
    "library_folders",
    "site_in",
]

PROGRAM_END = "the end of the program"
# Busy polling for some microseconds, unless another rank needs this core. A longer spin would delay ranks that share a
# core, whereas a yield costs nothing on a core with one rank.
_SPINS = 200
_YIELDS = 5000
_NAP_SECONDS = 20e-6
_LOOK_SECONDS = 0.01  # between checks of the clock and the channel
_LAST_SECONDS = 1.0  # for messages that a rank sent before its program ended
_GRACE_SECONDS = 10.0  # for answers of ranks that compute, or that run on a busy machine


class Cause(StrEnum):
    """Why a rank aborts a call."""

    TIMEOUT = "timeout"
    REJECTION = "rejection"
    MISMATCH = "mismatch"
    ENDED = "ended"


class FailureNotice(NamedTuple):
    """A rank has aborted in `call`; `reason` is empty unless it applies to all ranks."""

    cause: str
    call: str
    reason: str = ""


class CallReport(NamedTuple):
    """A rank raised `error` (a class name) in the collective call `number`, or, if `error` is empty, had begun it."""

    number: int
    call: str = ""
    error: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"raised {self.error} in {self.call}: {self.text}"


class ProgramEnd(NamedTuple):
    """The program of a rank has ended after so many collective calls, and so many compiled ones."""

    calls: int
    compiled: int


_MESSAGES: dict[str, Any] = {kind.__name__: kind for kind in (FailureNotice, CallReport, ProgramEnd)}
_cleanups: list[Callable[[], None]] = []


def default_timeout() -> float | None:
    """Return the environment's ``COLLOPS_TIMEOUT`` in seconds, 600 by default; ``None`` for ``none`` or 0."""
    text = os.environ.get("COLLOPS_TIMEOUT", "600").strip().lower()
    if text in ("none", "0", ""):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"COLLOPS_TIMEOUT={text!r}: give a number of seconds, or 'none' for no deadline")
    return seconds


def at_abort(cleanup: Callable[[], None]) -> None:
    """Register `cleanup` for aborts of this rank: it frees resources that would block a device forever."""
    _cleanups.append(cleanup)


class Failures:
    """The failure protocol of one communicator; the module documentation describes it.

    Messages are sent by `channel`, a `ControlChannel` of :mod:`collops.comm.mpi`. `timeout` is the deadline of each
    wait in seconds, or ``None``. With `oversubscribed` cores, waits yield soon to other processes. `hosts` has the name
    of each rank's host, for errors; it is empty for a single host.

    Attributes
    ----------
    number : int
        Collective calls that this rank has begun or rejected since the last incident. The communicator increments it.
    attention : bool
        Whether :meth:`attend` must be called before the next collective call.
    failure : str
        Why the communicator is closed; empty while it is open.
    incident : int
        Number of aborts.
    renew : callable, optional
        Replaces the transports of collective calls. Collective. ``None`` if they cannot be replaced.
    checked : bool
        Whether ranks agree on each call before data are sent, so that a rejection is a mismatch.
    compiled : object or None
        The collective calls of compiled programs: ``count()`` returns how many this rank has begun, and ``close(why)``
        makes later ones fail.
    """

    def __init__(self, channel: Any, timeout: float | None, oversubscribed: bool, hosts: Sequence[str] = ()) -> None:
        self.channel = channel
        self.timeout = timeout
        self.number = 0
        self.attention = False
        self.failure = ""
        self.incident = 0
        self.renew: Callable[[], None] | None = None
        self.checked = False
        self.compiled: Any = None
        self._lock = threading.RLock()  # programs of JAX wait on other threads
        self._hosts = hosts
        self._spins = 0 if oversubscribed else _SPINS
        self._left_call = -1  # the call that this rank left without completing its part
        self._reports: dict[int, dict[int, CallReport]] = {}  # by call and rank
        self._notices: dict[int, FailureNotice] = {}
        self._lost: set[int] = set()
        self._ends: dict[int, tuple[int, ProgramEnd]] = {}  # with the incident, of ranks whose program has ended
        self._early: list[tuple[int, Json]] = []
        self._abandoned: list[object] = []  # aborted requests, and memory that MPI may still use
        _all.add(self)

    def wait(
        self,
        request: MpiHandle,
        operation: object,
        needs: Collection[int] | None = None,
        memory: object = None,
        number: int | None = None,
    ) -> None:
        """Wait until an MPI `request` is complete. After an error `memory`, which it may still use, is kept alive.

        `operation` names the wait in errors. `needs` are the ranks that the request depends on; by default this is a
        collective call, which depends on every rank that has not begun it; `number` is its number, by default the
        latest one. Raises the error of a rank that rejected this call; else `CommunicationTimeout` if a deadline passes
        on any rank, `CallMismatch` if a rank detects that calls differ, and `CommunicationError` if the program of a
        needed rank has ended, recovery from a rejection is impossible, or MPI reports an error.
        """
        try:
            inside = needs is None and number in (None, self.number)
            self.until(request.Test, operation, needs, inside=inside)
        except self.channel.error as error:
            self._abandoned += (request, memory)
            self.failed(error, operation)
        except BaseException:
            self._abandoned += (request, memory)
            self._left_call = self.number
            raise

    def wait_all(
        self, requests: Sequence[MpiHandle], operation: object, peers: Sequence[int], memory: object = None
    ) -> None:
        """Wait until all `requests` are complete; each depends on one of the `peers`. See :meth:`wait`."""
        try:
            for request, peer in zip(requests, peers, strict=False):  # no requests are left after an earlier wait
                self.wait(request, operation, (peer,))
        except BaseException:
            self._abandoned += (requests, memory)
            raise

    def until(
        self,
        done: Callable[[], bool],
        operation: object,
        needs: Collection[int] | None = None,
        inspect: Callable[[], None] | None = None,
        inside: bool = False,
    ) -> None:
        """Poll `done` until it returns true, or raise as :meth:`wait` does.

        `inspect` is called periodically during a long wait, and raises errors of the transport. `inside` says whether
        this is the wait of the latest collective call, so that all ranks can still raise the error of a rejection.
        """
        for _ in range(self._spins):
            if done():
                return
        for _ in range(_YIELDS):  # with more ranks than cores, another rank needs this core
            os.sched_yield()
            if done():
                return
        start = time.monotonic()
        looks, next_look = self.looks(operation, start, needs, inspect, inside), start + _LOOK_SECONDS
        while not done():
            time.sleep(_NAP_SECONDS)
            if time.monotonic() >= next_look:
                next(looks)
                next_look = time.monotonic() + _LOOK_SECONDS

    def looks(
        self,
        operation: object,
        start: float,
        needs: Collection[int] | None = None,
        inspect: Callable[[], None] | None = None,
        inside: bool = False,
        compiled: int | None = None,
    ) -> Iterator[None]:
        """Check at each step whether a wait that began at `start` can still succeed, or raise as :meth:`until` does.

        `compiled` is the number of collective calls that this rank has begun in compiled programs, for a wait in one.
        """
        incident, hopeless = self.incident, float("inf")
        while True:
            with self._lock:
                if self.incident != incident or (compiled is not None and self.failure):
                    why = self.failure or "calls did not match"
                    raise CommunicationError(f"{_located(operation)}: another wait of this rank failed: {why}")
                if inspect is not None:
                    inspect()
                now = time.monotonic()
                waited = f"waited {now - start:.1f} s"
                self._react(operation, inside, waited, compiled is not None)
                if hopeless == float("inf") and self._has_ended(needs, compiled):
                    hopeless = now + _LAST_SECONDS
                if now > hopeless:
                    self.abort(Cause.TIMEOUT, operation, f"{waited}; the program of some ranks has ended")
                if self.timeout is not None and now - start > self.timeout:
                    deadline = f"the deadline is {self.timeout:g} s (COLLOPS_TIMEOUT)"
                    self.abort(Cause.TIMEOUT, operation, f"{waited}; {deadline}")
            yield

    def failed(self, error: Any, operation: object) -> NoReturn:
        """Raise an error that MPI reports for an operation."""
        name = getattr(error, "library", "MPI")
        raise CommunicationError(f"{_located(operation)}: {name} reports: {error.Get_error_string()}") from error

    def look(self, operation: object = "a message") -> None:
        """Raise if this communicator is closed, another rank has aborted, or a call of this rank was rejected.

        Not collective.
        """
        with self._lock:
            self.check_open()
            self._react(operation, inside=False)

    def check_open(self) -> None:
        """Raise if this communicator is closed. Not collective."""
        if self.failure:
            raise CommunicationError(_closed(self.failure))

    def close(self, why: str) -> None:
        """Close the communicator without notifying the other ranks. Not collective."""
        self._restart(why)

    def reject(self, call: str, error: Exception) -> None:
        """Notify the other ranks that this rank raises `error` instead of beginning its next collective call.

        Not collective. Nothing is sent if all ranks raise the error anyway, or if the transport has failed.
        """
        transport_failed = isinstance(error, CommunicationError) and not isinstance(error, TransportError)
        if transport_failed or getattr(error, "on_all_ranks", False) or self.failure:
            return
        self.number += 1
        self._report(CallReport(self.number, _located(call), type(error).__name__, str(error)))

    def attend(self) -> None:
        """Wait until all ranks are in step, so that the next collective call can begin; raise if recovery fails.

        Collective. If a rank is already known to reject this next call, its error is raised.
        """
        self.look("the next call")
        rank, everyone = self.channel.rank, range(self.channel.size)
        for number in sorted(number for number, reports in self._reports.items() if rank in reports):
            reports = self._reports[number]
            who, first = _rejected_by(reports)
            operation = f"recovery after {who} raised {first.error} in {first.call}"
            self.until(partial(self._all_reported, reports, operation), operation, everyone)
            if self.renew is not None and len(_rejections(reports)) < len(reports):
                self.renew()
            del self._reports[number]
        if _rejections(self._reports.get(self.number + 1, {})):
            self.number += 1
            self._join(self.number, "this call", inside=True)
        self.attention = bool(self._reports)

    def abort(self, cause: Cause, operation: object, reason: str) -> NoReturn:
        """Abort: exchange notices with the other ranks, and raise the error that all of them raise.

        `operation` is the operation in which this rank waits; `reason` completes the sentence "rank 3 ...". The error
        is a `CallMismatch` if a rank detected one, a `CommunicationError` if a program has ended or a rank rejected a
        call that others completed, and a `CommunicationTimeout` otherwise.
        """
        with self._lock:
            self.check_open()  # another thread may have aborted
            self._abort(cause, operation, reason)

    def _abort(self, cause: Cause, operation: object, reason: str) -> NoReturn:
        size, location = self.channel.size, _located(operation)
        notices = self._exchange(FailureNotice(cause, location, reason if cause == Cause.REJECTION else ""))
        rejections = [rejection for reports in self._reports.values() for rejection in _rejections(reports).items()]
        lines = {rank: str(report) for rank, report in rejections}
        lines |= {rank: notice.call for rank, notice in notices.items()}
        missing = [rank for rank in range(size) if rank not in lines]
        everyone = table(lines, size, "not in a collops call, or its process has exited", self._hosts)
        causes = {notice.cause for notice in notices.values()}
        if Cause.MISMATCH in causes:
            mismatch = CallMismatch(f"the ranks' calls do not match (COLLOPS_CHECK):\n{everyone}")
            mismatch.on_all_ranks = not missing
            self._restart(_headline(mismatch) if missing else "")
            raise mismatch
        for cleanup in _cleanups:
            cleanup()
        ended = [rank for rank, notice in notices.items() if notice.cause == Cause.ENDED]
        groups = (ended, "ended"), (missing, "never arrived")
        who = " and ".join(
            f"{name_ranks(ranks)} of {size}{name_hosts(ranks, self._hosts)} {outcome}"
            for ranks, outcome in groups
            if ranks
        )
        reason = next((notice.reason for notice in notices.values() if notice.reason), reason)
        kind = CommunicationError if ended or Cause.REJECTION in causes else CommunicationTimeout
        who = who or f"all {size} ranks aborted"
        error = kind(f"{location}: rank {self.channel.rank} {reason}; {who}:\n{everyone}")
        self._restart(_headline(error))
        raise error

    def leave_behind(self, messages: Sequence[object], why: str) -> None:
        """Close the communicator: other ranks may wait for `messages`, or send them, and this rank does not."""
        self._abandoned += messages
        self._restart(why)

    def end(self) -> None:
        """Notify the other ranks that this rank's program has ended. Not collective."""
        compiled = 0 if self.compiled is None else self.compiled.count()
        self._send(ProgramEnd(self.number - (self._left_call == self.number), compiled))

    def answer(self) -> None:
        """Answer ranks that have aborted, after the end of this rank's program. Not collective."""
        with self._lock:
            self.receive()
            if self._notices:
                self._exchange(FailureNotice(Cause.ENDED, PROGRAM_END))

    def receive(self) -> None:
        """Process received messages; the module documentation describes late and early ones. Not collective."""
        arrived, self._early = [*self._early, *self.channel.receive()], []
        for rank, content in arrived:
            incident, kind, *fields = content
            message = _MESSAGES[kind](*fields)
            if isinstance(message, ProgramEnd):
                self._ends[rank] = (incident, message)
            elif incident > self.incident:
                self._early.append((rank, content))
            elif incident == self.incident and isinstance(message, FailureNotice):
                self._notices[rank] = message
            elif incident == self.incident:
                self._reports.setdefault(message.number, {})[rank] = message
                self.attention = True
        for rank in self.channel.lost:
            if rank not in self._lost:
                self._lost.add(rank)
                self._notices.setdefault(rank, FailureNotice(Cause.ENDED, "its process has exited"))

    def _react(self, operation: object, inside: bool, waited: str = "did not wait", compiled: bool = False) -> None:
        """Raise if another rank has aborted, or has rejected a call that this rank has begun.

        The program may still wait in its latest call while a `compiled` program waits in another one.
        """
        self.receive()
        if self._notices:
            self.abort(Cause.TIMEOUT, operation, f"{waited}; another rank aborted its wait")
        begun = (number for number in self._reports if number <= self.number - compiled)
        for number in sorted(begun):
            if self.channel.rank not in self._reports[number] and _rejections(self._reports[number]):
                self._join(number, operation, inside)

    def _join(self, number: int, operation: object, inside: bool) -> NoReturn:
        """Raise the error of the ranks that rejected a call; abort if this rank has already completed its part."""
        who, first = _rejected_by(self._reports[number])
        if not inside or number != self.number or self.renew is None:
            cause = Cause.MISMATCH if self.checked else Cause.REJECTION
            self.abort(cause, operation, f"cannot continue because {who} {first}")
        self._report(CallReport(number))
        raise shared_error(first.error, f"{who}: {first.text}")

    def _all_reported(self, reports: dict[int, CallReport], operation: str) -> bool:
        """Return whether every rank has reported on a call."""
        self._react(operation, inside=False)
        return len(reports) == self.channel.size

    def _has_ended(self, needs: Collection[int] | None, compiled: int | None) -> bool:
        """Return whether the program of a needed rank has ended."""
        if needs is not None:
            return not self._ends.keys().isdisjoint(needs)
        # Ranks that completed their part of this call before their program ended are no longer needed.
        if compiled is not None:
            return any(end.compiled < compiled for _, end in self._ends.values())
        return any((incident, end.calls) < (self.incident, self.number) for incident, end in self._ends.values())

    def _restart(self, failure: str) -> None:
        """Reset the count of calls, and close the communicator after a failure."""
        self.failure = failure or self.failure
        self.attention = bool(self.failure)
        if self.failure and self.compiled is not None:
            self.compiled.close(_closed(self.failure))
        self.number, self._left_call = 0, -1
        self._reports.clear()

    def _exchange(self, notice: FailureNotice) -> dict[int, FailureNotice]:
        """Send this rank's notice, and return the notices of all ranks that answer in time."""
        self._send(notice)
        end = time.monotonic() + _GRACE_SECONDS
        while len(self._notices) < self.channel.size - 1 and time.monotonic() < end:
            time.sleep(1e-3)
            self.receive()
        notices, self._notices = {**self._notices, self.channel.rank: notice}, {}
        self.incident += 1
        return dict(sorted(notices.items()))

    def _report(self, report: CallReport) -> None:
        self._reports.setdefault(report.number, {})[self.channel.rank] = report
        self.attention = True
        self._send(report)

    def _send(self, message: FailureNotice | CallReport | ProgramEnd) -> None:
        with self._lock:
            self.channel.send([self.incident, type(message).__name__, *message])


_all: weakref.WeakSet[Failures] = weakref.WeakSet()


def close_all(why: str) -> None:
    """Close all communicators of several ranks. Not collective."""
    for failures in _all:
        failures.close(why)


def _leave_all() -> None:
    for failures in _all:
        failures._lock = threading.RLock()  # another thread of the parent may have held it
    close_all(FORKED)


at_fork(_leave_all)


def _rejections(reports: Mapping[int, CallReport]) -> dict[int, CallReport]:
    return {rank: report for rank, report in reports.items() if report.error}


def _rejected_by(reports: Mapping[int, CallReport]) -> tuple[str, CallReport]:
    """Return the ranks that rejected a call, as text, and the report of the first of them."""
    rejections = _rejections(reports)
    return name_ranks(sorted(rejections)), rejections[min(rejections)]


def _closed(failure: str) -> str:
    return f"this communicator can no longer be used: {failure}"


def _headline(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


_PACKAGE = Path(__file__).parents[1]
_USERS = tuple(f"{_PACKAGE / name}/" for name in ("apps", "cli"))  # programs that come with the library
_NAMED_PARTS = 2  # of a path: folders above may differ from node to node
library_folders = [f"{_PACKAGE}/"]
"""The folders of this library, and of other libraries between it and its users."""


class Located(str):
    """The text of an operation that includes the source line of the program."""


def call_site(with_function: bool = True) -> str:
    """Return the innermost line outside this library as ``FILE:LINE``, and the function that it called in parentheses.

    Empty after the program's last line. Not collective. Expensive: for errors and checks only.
    """
    return site_in(_frames(sys._getframe(1)), with_function)


def call_site_of_main_thread() -> str:
    """Return the :func:`call_site` of the main thread, from another thread."""
    return site_in(_frames(sys._current_frames().get(threading.main_thread().ident or 0)), True)


def site_in(frames: Iterable[tuple[str, str, int]], with_function: bool) -> str:
    """Return the :func:`call_site` in the files, functions and lines of a stack, the innermost first."""
    function = ""
    for name, called, line in frames:
        if not _is_library(name):
            location = name if name.startswith("<") else "/".join(Path(name).parts[-_NAMED_PARTS:])
            return f"{location}:{line}" + (f" ({function})" if with_function else "")
        function = called
    return ""


def _frames(frame: FrameType | None) -> Iterator[tuple[str, str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_qualname, frame.f_lineno
        frame = frame.f_back


def _located(operation: object) -> str:
    site = "" if isinstance(operation, Located) else call_site()
    return f"{operation} at {site}" if site else str(operation)


def _is_library(filename: str) -> bool:
    if filename == contextlib.__file__:  # between a with statement and the function that it enters or leaves
        return True
    return filename.startswith(tuple(library_folders)) and not filename.startswith(_USERS)
