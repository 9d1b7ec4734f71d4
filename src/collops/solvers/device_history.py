"""The history on a CUDA device: a kernel writes each row into pinned host memory, and the host reads it later."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.solvers.history import History
from collops.solvers.kernels import kernel
from collops.solvers.method import Row

__all__ = ["DeviceHistory"]

_KINDS = {"f": 0, "d": 1}
_SCALARS = 4
_abandoned: list[DeviceHistory] = []


class DeviceHistory(History):
    """Rows in pinned host memory that the device writes to.

    The kernel keeps the number of the next row itself, on the device, so that one recorded launch of it serves for all
    iterations. An event after each row tells the host when it may read it.

    Parameters
    ----------
    width, capacity : int
        Numbers in a row, and the largest number of rows.
    lag : int
        Rows that may be outstanding before the host waits for one.
    comm : Communicator
        Whose deadline limits the waits.
    """

    default_lag = 3

    def __init__(self, width: int, capacity: int, lag: int, comm: Communicator) -> None:
        self.lag = lag
        self._count = 0
        self._comm = comm
        self._memory = cupy.cuda.alloc_pinned_memory(max(1, width * capacity) * 8)
        # The pool's block may be longer than what was asked for.
        self._rows = np.frombuffer(self._memory, np.float64, width * capacity).reshape(capacity, width)
        self._next = cupy.zeros(1, np.int64)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(lag + 2)]
        self._known = 0

    @property
    def count(self) -> int:
        """Rows recorded so far."""
        return self._count

    def store(self, values: Any) -> None:
        """Enqueue the kernel that writes the next row."""
        target = np.uint64(self._memory.ptr)
        if isinstance(values, cupy.ndarray):
            kernel("record.cu", "record_block")((1,), (32,), (values, np.int32(values.size), target, self._next))
            return
        if len(values) > _SCALARS or any(value.dtype.char not in _KINDS for value in values):
            raise UnsupportedTypeError("a method reports up to four numbers of single or double precision")
        kinds = [_KINDS[value.dtype.char] for value in values]
        unused = _SCALARS - len(values)
        arguments: list[Any] = []
        for value, kind in zip([*values, *values[:1] * unused], [*kinds, *kinds[:1] * unused], strict=True):
            arguments += [value, np.int32(kind)]
        kernel("record.cu", "record_scalars")((1,), (1,), (*arguments, np.int32(len(values)), target, self._next))

    def advance(self) -> None:
        """Mark the row on the current stream."""
        self._events[self.count % len(self._events)].record()
        self._count += 1

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        if number >= self._known:
            # Of the events that are still there, the one of this row is the first that comes after it.
            oldest = max(number, self.count - len(self._events))
            self._comm.wait(self._events[oldest % len(self._events)], "a solver's iteration")
            self._known = oldest + 1
        return self._rows[number].tolist()

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        if self.count:
            self.row(self.count - 1)
        return self._rows[: self.count].copy()

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run; nothing may have been stored yet."""
        self._count = self._known = len(rows)
        self._rows[: self._count] = rows
        self._next.fill(self._count)

    def abandon(self) -> None:
        """Keep the memory for ever: the device may still write to it."""
        _abandoned.append(self)
