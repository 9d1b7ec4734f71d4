"""Small messages about failures and calls, apart from all data: the part of MPI that the failure protocol needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

__all__ = ["CALL_TAG", "FAILURE_TAG", "ControlChannel"]

# Every MPI has tags up to 32767. Users who share their communicator during its set-up are unlikely to have these.
FAILURE_TAG, CALL_TAG = 32000, 32001


class ControlChannel:
    """Sends JSON between the ranks of an MPI communicator, without waiting for the receivers.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    comm : mpi4py.MPI.Comm
        Carries the messages.
    tag : int
        No other message on `comm` may have it.

    Attributes
    ----------
    rank, size : int
        Of `comm`.
    error : type
        The exception that MPI's calls raise.
    """

    def __init__(self, mpi: Any, comm: Any, tag: int = FAILURE_TAG) -> None:
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.error: type[Exception] = mpi.Exception
        self._mpi = mpi
        self._comm = comm
        self._tag = tag
        self._status = mpi.Status()
        self._sends: list[Any] = []  # MPI reads their memory; what a dead rank never receives stays here

    def send(self, message: Any, ranks: Collection[int] | None = None) -> None:
        """Send what JSON can carry to `ranks`, by default to all other ranks. Not collective."""
        content = np.frombuffer(json.dumps(message).encode(), np.uint8)
        self.delivered()
        targets = [rank for rank in range(self.size) if rank != self.rank] if ranks is None else ranks
        self._sends += [self._comm.Isend(content, dest=rank, tag=self._tag) for rank in targets]

    def delivered(self) -> bool:
        """Return whether MPI has finished with everything that was sent. Not collective."""
        self._sends = [request for request in self._sends if not request.Test()]
        return not self._sends

    def receive(self) -> Iterator[tuple[int, Any]]:
        """Give the messages that have arrived, each with its sender. Not collective."""
        while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=self._tag, status=self._status):
            sender = self._status.Get_source()
            content = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            self._comm.Recv(content, source=sender, tag=self._tag)
            yield sender, json.loads(content.tobytes())

    def barrier(self) -> Callable[[], bool]:
        """Enter a barrier, and return a function that tells whether all ranks have entered it. Collective."""
        return self._comm.Ibarrier().Test
