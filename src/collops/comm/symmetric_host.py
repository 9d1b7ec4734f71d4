"""Symmetric memory of hosts: an MPI-3 shared window, which the ranks of a node read and write like their own memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from collops.comm.agreement import collective_errors
from collops.comm.mpi import SharedSegments
from collops.comm.symmetric import Symmetric, Where, nbytes_of
from collops.errors import TransportError

_PAGE = 4096
_SHARED_FILES = "/dev/shm"  # where Linux keeps memory that processes share


class SharedWindow(Symmetric):
    """Memory that MPI maps into every process of the node.

    A rank's segment begins with its signals.
    """

    def __init__(self, comm: Any, shape: tuple[int, ...], dtype: np.dtype, signals: int) -> None:
        super().__init__(comm, shape, dtype, signals)
        if comm.local_size != comm.size:
            comm.check(
                TransportError(f"ranks on several nodes share no memory: symmetric memory needs all {comm.size} on one")
            )
        self._offset = -(-8 * signals // _PAGE) * _PAGE
        size = max(_PAGE, self._offset + -(-nbytes_of(shape, dtype) // _PAGE) * _PAGE)
        comm.check(_lack_of(size * comm.size))
        with collective_errors(comm):
            self._segments = SharedSegments(comm.control, size)
        views = [self._views(rank) for rank in range(comm.size)]
        self._peers = [array for array, _ in views]
        self._signals = [values for _, values in views]
        self.local = self._peers[comm.rank]
        self.local[...] = np.zeros((), dtype)
        self._signals[comm.rank][...] = 0
        self._barrier()

    def _fence(self) -> None:
        self._segments.sync()

    def _views(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        whole = self._segments.of(rank)
        values = whole[: 8 * self.signals].view(np.uint64)
        size = nbytes_of(self.shape, self.dtype)
        return whole[self._offset : self._offset + size].view(self.dtype).reshape(self.shape), values

    def _peer(self, rank: int) -> np.ndarray:
        return self._peers[rank]

    def _put(self, source: Any, rank: int, where: Where) -> None:
        self._peers[rank][where] = source

    def _get(self, rank: int, where: Where, out: Any) -> None:
        self._segments.sync()
        out[...] = self._peers[rank][where]

    def _put_signal(self, source: Any, rank: int, where: Where, signal: int, value: int) -> None:
        self._peers[rank][where] = source
        self._segments.sync()
        self._signals[rank][signal] = value

    def _wait_signal(self, signal: int, value: int) -> None:
        self.comm.wait(_Arrival(self._segments.sync, self._signals[self.comm.rank], signal, value), f"signal {signal}")

    def _barrier(self) -> None:
        self._segments.sync()
        self.comm.barrier()
        self._segments.sync()

    def _free(self) -> None:
        self._peers = self._signals = []
        self._segments.free()


def _lack_of(size: int) -> MemoryError | None:
    """Return an error if this machine has too little memory to share; containers often have little.

    MPI would allocate it all the same, and the system would end the program that writes to it.
    """
    if not os.path.isdir(_SHARED_FILES):
        return None
    free = shutil.disk_usage(_SHARED_FILES).free
    if free >= size:
        return None
    return MemoryError(f"symmetric memory of {size} bytes on all ranks: {_SHARED_FILES} has {free} free")


class _Arrival:
    """A signal that is waited for."""

    __slots__ = ("_signal", "_signals", "_sync", "_value")

    def __init__(self, sync: Callable[[], None], signals: np.ndarray, signal: int, value: int) -> None:
        self._sync = sync
        self._signals = signals
        self._signal = signal
        self._value = value

    @property
    def done(self) -> bool:
        self._sync()
        return bool(self._signals[self._signal] >= self._value)
