"""What exchanges use of MPI: windows of memory that the ranks of a node share, and persistent messages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from collops._launcher import is_forked
from collops.backend import LocalArray
from collops.comm.agreement import AnyCommunicator, Mpi, MpiBuffer, MpiComm, MpiHandle
from collops.comm.mpi import mpi4py_module, mpi_or_tcp
from collops.comm.mpi_transport import TESTS
from collops.comm.reclaim import free_when_unreachable

__all__ = ["PersistentMessages", "addresses_of"]


def private_duplicate(comm: AnyCommunicator) -> MpiComm:
    """Return the duplicate of a communicator's control plane for its windows and persistent messages.

    Collective at the first call with `comm`. It is freed with `comm`.
    """
    if private_duplicate not in comm.cache:
        comm.cache[private_duplicate] = made = comm.control.Dup()
        comm.releases.append(made.Free)
    return comm.cache[private_duplicate]


class SharedSegments:
    """Memory that MPI maps into the processes of one node: a segment of `size` bytes for each rank. Collective.

    Values written before :meth:`sync` on one rank are visible after :meth:`sync` on another rank that has seen a signal
    set in between. The window is freed after this object and the arrays of its memory have become unreachable on all
    ranks (:mod:`collops.comm.reclaim`). Raises `MemoryError`, on this rank only, if MPI cannot allocate the memory.
    """

    def __init__(self, comm: AnyCommunicator, size: int) -> None:
        mpi = mpi4py_module()
        try:
            self._window = window = mpi.Win.Allocate_shared(size, 1, comm=private_duplicate(comm))
        except mpi.Exception as error:
            text = error.Get_error_string()
            raise MemoryError(f"MPI cannot allocate a shared window of {size} bytes: {text}") from error
        window.Lock_all(mpi.MODE_NOCHECK)
        self.sync = window.Sync

    def free_when_unreachable(self, comm: AnyCommunicator) -> str:
        """Register the window to be freed when it is unreachable on all ranks; return its key. Collective."""
        return free_when_unreachable(self, comm.ranks, [partial(_free_window, self._window)], comm=comm)

    def segment(self, rank: int) -> np.ndarray:
        """Return the segment of a rank, as an array of bytes."""
        memory, _ = self._window.Shared_query(rank)
        return np.asarray(_Segment(self, memory.address, memory.nbytes))

    def start_fetch_add(self, values: np.ndarray, out: np.ndarray, rank: int, offset: int) -> MpiHandle:
        """Start adding `values` to the segment of `rank`, atomically for each element; return the request.

        After its completion, `out` holds the previous elements.
        """
        return self._window.Rget_accumulate(values, out, rank, offset, op=mpi4py_module().SUM)

    def compare_and_swap(
        self, expected: np.ndarray, values: np.ndarray, out: np.ndarray, rank: int, offset: int
    ) -> None:
        """Replace the elements in the segment of `rank` that equal `expected`; return the previous elements in `out`.

        Atomic for each element. All arrays are contiguous and of one shape.
        """
        flat = (array.reshape(-1, 1) for array in (values, expected, out))
        for number, elements in enumerate(zip(*flat, strict=True)):
            self._window.Compare_and_swap(*elements, rank, offset + number * values.itemsize)
        self._window.Flush(rank)


class _Segment:
    """Memory at an address, whose arrays keep its window alive."""

    def __init__(self, segments: SharedSegments, address: int, size: int) -> None:
        self._segments = segments
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}


def _free_window(window: MpiHandle) -> None:
    window.Unlock_all()
    window.Free()


class PersistentMessages:
    """Messages between fixed buffers, prepared once and started any number of times.

    Collective for the first instance of a communicator, which duplicates it for all of them. Buffers are contiguous
    arrays on the host or on a device; `tag` distinguishes the messages from others between the same ranks. `start()`
    starts all messages, and `done()` makes progress and returns whether all are complete.
    """

    __slots__ = ("__weakref__", "_failures", "_peers", "_requests", "done", "start")

    def __init__(
        self,
        comm: AnyCommunicator,
        sends: Sequence[tuple[int, LocalArray]],
        receives: Sequence[tuple[int, LocalArray]],
        tag: int,
    ) -> None:
        mpi = mpi_or_tcp()
        messages = private_duplicate(comm)
        requests = [messages.Recv_init([_bytes_of(mpi, array), mpi.BYTE], rank, tag) for rank, array in receives]
        requests += [messages.Send_init([_bytes_of(mpi, array), mpi.BYTE], rank, tag) for rank, array in sends]
        self._failures = comm.failures
        self._requests = requests
        self._peers = [rank for rank, _ in (*receives, *sends)]
        self.start = partial(mpi.Prequest.Startall, requests)
        self.done = partial(mpi.Prequest.Testall, requests)
        weakref.finalize(self, _free, mpi, requests).atexit = False

    def wait(self, arrays: tuple[LocalArray, LocalArray]) -> None:
        """Wait until all are complete. They use the memory of `arrays`."""
        for _ in TESTS:
            if self.done():
                return
        self._failures.wait_all(self._requests, "star forest", self._peers, arrays)


def addresses_of(dtype: np.dtype) -> Callable[[np.ndarray], int]:
    """Return a function that returns the address of a host array of this dtype."""
    return (lambda array: array.ctypes.data) if dtype.kind == "V" else mpi_or_tcp().Get_address


def _bytes_of(mpi: Mpi, array: LocalArray) -> MpiBuffer:
    if not array.nbytes:
        return bytearray(0)
    address = addresses_of(array.dtype)(array) if hasattr(array, "ctypes") else array.data.ptr
    return mpi.buffer.fromaddress(address, array.nbytes)


def _free(mpi: Mpi, requests: list[MpiHandle]) -> None:
    if not is_forked() and not mpi.Is_finalized():
        for request in requests:
            request.Free()
