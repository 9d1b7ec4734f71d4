"""Deadlines: no wait for other ranks is endless, and the error says who is missing and what each rank was doing.

A wait polls its MPI request. Past the deadline the rank that gives up tells the others so (:mod:`collops.comm.notes`);
whoever is waiting gives up too, and answers. The ranks that do not answer are the missing ones. Nothing of this costs a
message as long as all goes well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from collops.comm.notes import Notes, ranks_text, table
from collops.comm.sites import call_site
from collops.comm.turns import REFUSED, Turns
from collops.errors import CallMismatch, CommunicationError, CommunicationTimeout, InputError

__all__ = ["Watch", "at_giving_up", "default_timeout"]

MISMATCH, TIMEOUT, ENDED = "mismatch", "timeout", "ended"  # kinds of notes
_SPINS = 5000
_SPINS_OF_MANY = 20
_YIELDS = 2000
_NAP_SECONDS = 20e-6
_LOOK_SECONDS = 0.01  # between two looks at the clock and the notes
_LAST_SECONDS = 1.0  # for what a rank sent before its program ended


def default_timeout() -> float | None:
    """Seconds that a wait may take: the environment's ``COLLOPS_TIMEOUT`` (``none`` or 0: for ever), else 600."""
    text = os.environ.get("COLLOPS_TIMEOUT", "600").strip().lower()
    if text in ("none", "0", ""):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"COLLOPS_TIMEOUT={text!r}: give a number of seconds, or 'none' to wait for ever")
    return seconds


_release: list[Callable[[], None]] = []


def at_giving_up(release: Callable[[], None]) -> None:
    """Have `release` called when a wait ends in vain: it frees what would keep a device busy for ever."""
    _release.append(release)


class Watch:
    """Waits for MPI requests on behalf of one communicator.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    control : mpi4py.MPI.Comm
        Carries the notes of ranks that gave up; no other traffic may use it.
    timeout : float or None
        Seconds; ``None`` waits for ever.
    crowded : bool
        Whether this rank has less than a core for itself, so that while it waits it soon lets others run.
    """

    def __init__(self, mpi: Any, control: Any, timeout: float | None, crowded: bool) -> None:
        self._mpi = mpi
        self.notes = Notes(mpi, control)
        self.timeout = timeout
        self.turns = Turns(self.notes, self)
        self._spins = _SPINS_OF_MANY if crowded else _SPINS
        self._abandoned: list[Any] = []  # requests that were given up: MPI may still use their memory
        self.failure = ""
        """Why ranks no longer agree on what comes next, so that nothing can be sent any more; empty while they do."""

    def wait(self, request: Any, operation: object, needs: Collection[int] | None = None) -> None:
        """Return when an MPI `request` is done.

        Parameters
        ----------
        request : mpi4py.MPI.Request
            What to wait for.
        operation : object
            Its text is what errors call the wait.
        needs : collection of int, optional
            The ranks without which this cannot end. By default this is a collective call, which cannot end without any
            that has not begun it.

        Raises
        ------
        CommunicationTimeout
            When the deadline passes here, or another rank gave up at its own.
        CommunicationError
            When the program of a rank that is needed has ended.
        CallMismatch
            When another rank found that the ranks' calls do not belong together.
        CommunicationError
            When MPI reports an error, such as a message longer than its buffer.
        """
        try:
            self.until(request.Test, operation, needs, inside=needs is None)
        except self._mpi.Exception as error:
            self._abandoned.append(request)
            self.failed(error, operation)
        except BaseException:
            self._abandoned.append(request)
            self.turns.leave()
            raise

    def failed(self, error: Any, operation: object) -> NoReturn:
        """Raise what MPI reports of an operation."""
        raise CommunicationError(f"{operation} at {call_site()}: MPI reports: {error.Get_error_string()}") from error

    def wait_all(self, requests: Sequence[Any], operation: object, peers: Sequence[int]) -> None:
        """Return when all `requests` are done, each of which needs one of the `peers`; see :meth:`wait`."""
        try:
            for request, peer in zip(requests, peers, strict=True):
                self.wait(request, operation, (peer,))
        except BaseException:
            self._abandoned += requests
            raise

    def until(
        self,
        done: Callable[[], bool],
        operation: object,
        needs: Collection[int] | None = None,
        inspect: Callable[[], None] | None = None,
        inside: bool = False,
    ) -> None:
        """Return when `done` says so, or raise as :meth:`wait` does.

        Parameters
        ----------
        done : callable
            Asked again and again.
        operation, needs
            See :meth:`wait`.
        inspect : callable, optional
            Asked now and then while this waits long; raises what has gone wrong.
        inside : bool
            Whether this is within the collective call of this turn, so that all ranks can still raise what some refuse.
        """
        for _ in range(self._spins):
            if done():
                return
        for _ in range(_YIELDS):  # with more ranks than cores, somebody else needs this one to get here
            time.sleep(0)
            if done():
                return
        self._until_slowly(done, operation, needs, inspect, inside)

    def look(self, operation: object) -> None:
        """Raise if another rank has given up."""
        if self.notes.waiting():
            self.give_up(TIMEOUT, operation, "another rank gave up waiting")

    def _until_slowly(
        self,
        done: Callable[[], bool],
        operation: object,
        needs: Collection[int] | None,
        inspect: Callable[[], None] | None,
        inside: bool,
    ) -> None:
        """Poll with short sleeps, watching the clock and the notes of others."""
        start = time.monotonic()
        next_look = start + _LOOK_SECONDS
        hopeless = float("inf")
        while not done():
            time.sleep(_NAP_SECONDS)
            now = time.monotonic()
            if now < next_look:
                continue
            next_look = now + _LOOK_SECONDS
            if inspect is not None:
                inspect()
            waited = f"waited {now - start:.1f} s; "
            if self.notes.waiting():
                self.give_up(TIMEOUT, operation, f"{waited}another rank gave up waiting")
            self.turns.hear(operation, inside)
            if hopeless == float("inf") and self._ended(needs):
                hopeless = now + _LAST_SECONDS
            if now > hopeless:
                self.give_up(TIMEOUT, operation, f"{waited}their program has ended on some ranks")
            if self.timeout is not None and now - start > self.timeout:
                self.give_up(TIMEOUT, operation, f"{waited}the deadline is {self.timeout:g} s (COLLOPS_TIMEOUT)")

    def _ended(self, needs: Collection[int] | None) -> bool:
        """Return whether the program of a rank that is needed has ended."""
        ended = self.notes.hear_ends()
        if needs is None:  # those that had begun this call did their part before their program went on
            here = (self.notes.incident, self.turns.number)
            return any(reached < here for reached in ended.values())
        return not ended.keys().isdisjoint(needs)

    def give_up(
        self, kind: str, operation: object, reason: str, told: Mapping[int, str] = MappingProxyType({})
    ) -> NoReturn:
        """Tell the others, and raise what all of them raise.

        Parameters
        ----------
        kind : str
            Of the incident.
        operation : object
            Its text is what errors call that which this rank waits in.
        reason : str
            Why this rank does not go on.
        told : mapping
            What is known of other ranks, should they not answer.

        Raises
        ------
        CallMismatch
            If a rank found that calls do not belong together.
        CommunicationError
            If the program of some rank has ended, or has refused a call that others made.
        CommunicationTimeout
            Otherwise.
        """
        notes, site = self.notes, call_site()
        why = reason if kind == REFUSED else ""
        known = notes.swap({"kind": kind, "call": str(operation), "place": str(site), "why": why})
        lines = {rank: " at ".join(filter(None, (note["call"], note["place"]))) for rank, note in known.items()}
        lines = {**told, **lines}
        missing = [rank for rank in range(notes.size) if rank not in lines]
        kinds = {note["kind"] for note in known.values()}
        found = MISMATCH in kinds
        everyone = table(lines, notes.size, "in no call of collops, or gone")
        if found:
            error: CommunicationError = CallMismatch(
                f"the ranks' calls do not belong together (COLLOPS_CHECK):\n{everyone}"
            )
            error.on_all_ranks = not missing
            self._settle(error if missing else None)
            raise error
        for release in _release:
            release()
        ended = [rank for rank, note in known.items() if note["kind"] == ENDED]
        who = "all ranks gave up"
        if ended or missing:
            gone = [f"rank(s) {ranks_text(ended)} ended"] if ended else []
            who = " and ".join([*gone, f"rank(s) {ranks_text(missing)} never arrived"] if missing else gone)
        reason = next((note["why"] for note in known.values() if note["why"]), reason)
        text = f"{operation} at {site}: rank {notes.rank} {reason}; {who} of {notes.size}:\n{everyone}"
        error = (CommunicationError if ended or REFUSED in kinds else CommunicationTimeout)(text)
        self._settle(error)
        raise error

    def leave_behind(self, messages: Sequence[Any], why: str) -> None:
        """Send nothing any more, since messages that others may send or wait for are not waited for."""
        self._abandoned += messages
        self.failure = why
        self.turns.forget()

    def _settle(self, failure: Exception | None) -> None:
        """Go on after an incident, or not."""
        if failure is not None:
            self.failure = f"{type(failure).__name__}: {str(failure).splitlines()[0]}"
        self.turns.forget()
