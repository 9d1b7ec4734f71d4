"""Deadlines: no wait for other ranks is endless, and the error says who is missing.

A wait polls its MPI request. Past the deadline the rank that gives up tells the others so, with a note on the control
communicator; whoever is waiting there gives up too, and answers. The ranks that do not answer are the missing ones.
Nothing of this costs a message as long as all goes well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from collops.errors import CommunicationError, CommunicationTimeout, InputError

__all__ = ["Watch", "default_timeout"]

_NOTE_TAG = 77
_GRACE_SECONDS = 1.0
_SPINS = 5000
_SPINS_OF_MANY = 20
_YIELDS = 2000
_NAP_SECONDS = 20e-6


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
        self._control = control
        self.timeout = timeout
        self._spins = _SPINS_OF_MANY if crowded else _SPINS

    def wait(self, request: Any, operation: str) -> None:
        """Return when an MPI `request` is done.

        Raises
        ------
        CommunicationTimeout
            When the deadline passes here, or another rank gave up at its own.
        CommunicationError
            When MPI reports an error, such as a message longer than its buffer.
        """
        try:
            self.until(request.Test, operation)
        except self._mpi.Exception as error:
            raise CommunicationError(f"{operation}: MPI reports: {error.Get_error_string()}") from error

    def until(self, done: Callable[[], bool], operation: str) -> None:
        """Return when `done` says so, or raise :class:`~collops.errors.CommunicationTimeout` as :meth:`wait` does."""
        for _ in range(self._spins):
            if done():
                return
        for _ in range(_YIELDS):  # with more ranks than cores, somebody else needs this one to get here
            time.sleep(0)
            if done():
                return
        self._until_slowly(done, operation)

    def _until_slowly(self, done: Callable[[], bool], operation: str) -> None:
        """Poll with short sleeps, watching the clock and the notes of others."""
        start = time.monotonic()
        next_look = start + 0.01
        while not done():
            time.sleep(_NAP_SECONDS)
            now = time.monotonic()
            if now < next_look:
                continue
            next_look = now + 0.01
            if self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_NOTE_TAG):
                self._give_up(operation, now - start, "another rank gave up waiting")
            if self.timeout is not None and now - start > self.timeout:
                self._give_up(operation, now - start, f"the deadline is {self.timeout:g} s (COLLOPS_TIMEOUT)")

    def _give_up(self, operation: str, waited: float, reason: str) -> None:
        control = self._control
        note = np.zeros(1, np.int8)
        others = [rank for rank in range(control.size) if rank != control.rank]
        notes = [control.Isend(note, dest=rank, tag=_NOTE_TAG) for rank in others]
        arrived = set()
        until = time.monotonic() + _GRACE_SECONDS
        inbox = np.empty(1, np.int8)
        status = self._mpi.Status()
        while time.monotonic() < until and len(arrived) < len(others):
            if control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_NOTE_TAG, status=status):
                control.Recv(inbox, source=status.Get_source(), tag=_NOTE_TAG)
                arrived.add(status.Get_source())
            else:
                time.sleep(1e-3)
        for request in notes:
            request.Test()  # what a dead rank never takes stays with MPI; it must not block this one
        missing = [rank for rank in others if rank not in arrived]
        who = f"rank(s) {', '.join(map(str, missing))} never arrived" if missing else "all ranks gave up"
        raise CommunicationTimeout(
            f"{operation}: rank {control.rank} waited {waited:.1f} s; {reason}; {who} of {control.size}"
        )
