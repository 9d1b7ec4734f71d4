"""Persistent messages of MPI between fixed buffers: the calls of mpi4py that exchanges make."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["PersistentMessages", "messages_reach_devices", "world_size"]

_duplicates: weakref.WeakKeyDictionary[Communicator, Any] = weakref.WeakKeyDictionary()


class PersistentMessages:
    """Messages that are prepared once and started any number of times.

    Collective where it is the first of a communicator, which is then duplicated for all of them.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    sends, receives : sequence of (int, array)
        The other rank, and the contiguous array on the host or on a device that it gets or fills.
    tag : int
        Distinguishes them from other messages between the same ranks.

    Attributes
    ----------
    start : callable
        Start all of them.
    done : callable
        Return whether all of them are complete, which also makes progress.
    """

    __slots__ = ("__weakref__", "done", "start")

    def __init__(
        self, comm: Communicator, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]], tag: int
    ) -> None:
        from mpi4py import MPI

        if comm not in _duplicates:
            _duplicates[comm] = comm.control.Dup()
        messages = _duplicates[comm]
        requests = [messages.Recv_init([_bytes_of(array), MPI.BYTE], rank, tag) for rank, array in receives]
        requests += [messages.Send_init([_bytes_of(array), MPI.BYTE], rank, tag) for rank, array in sends]
        self.start = partial(MPI.Prequest.Startall, requests)
        self.done = partial(MPI.Prequest.Testall, requests)
        weakref.finalize(self, _free, requests).atexit = False


def messages_reach_devices() -> bool:
    """Return whether MPI sends messages from the memory of devices."""
    from mpi4py import MPI

    from collops.comm.gpu_aware import gpu_awareness

    return gpu_awareness(MPI)[0] != "none"


def world_size() -> int:
    """Return the number of all ranks of this program."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


def _bytes_of(array: Any) -> Any:
    from mpi4py import MPI

    if not array.nbytes:
        return bytearray(0)
    address = array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr
    return MPI.buffer.fromaddress(address, array.nbytes)


def _free(requests: list[Any]) -> None:
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for request in requests:
            request.Free()
