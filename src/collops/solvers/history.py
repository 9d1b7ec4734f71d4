"""The numbers of every iteration, kept where the host can read them without making the device wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import kernel
from collops.solvers.method import Row
from collops.solvers.problem import check_count

_KINDS = {np.dtype(np.float32): np.int32(0), np.dtype(np.float64): np.int32(1)}
_SCALARS = 4
_abandoned: list[DeviceHistory] = []


class History:
    """Rows of numbers, one per iteration, on the host: a row is known as soon as it is stored."""

    lag: int = 0  # how many rows may be outstanding before the host waits for one

    def __init__(self) -> None:
        self._stored: list[Row] = []
        self.count = 0  # rows recorded so far

    def record(self, values: Any) -> None:
        """Store the numbers of one more row."""
        self._stored.append(values.tolist() if hasattr(values, "tolist") else list(map(float, values)))
        self.count += 1

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        return self._stored[number]

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        return np.array(self._stored, np.float64)

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run, as if they had been recorded."""
        self._stored, self.count = rows.tolist(), len(rows)

    def abandon(self) -> None:
        """Leave the rows to a device that may still write to them, after a failure."""


class DeviceHistory(History):
    """Rows in pinned host memory that the device writes to.

    The kernel keeps the number of the next row itself, on the device, so that one recorded launch of it serves for all
    iterations. An event after each row tells the host when it may read it.

    There are at most `capacity` rows of `width` numbers; the deadline of `comm` limits the waits.
    """

    default_lag = 3

    def __init__(self, width: int, capacity: int, lag: int, comm: Communicator) -> None:
        import cupy

        self.lag = lag
        self.count = 0
        self._comm = comm
        self._memory = cupy.cuda.alloc_pinned_memory(max(1, width * capacity) * 8)
        # The pool's block may be longer than what was asked for.
        self._rows = np.frombuffer(self._memory, np.float64, width * capacity).reshape(capacity, width)
        self._next = cupy.zeros(1, np.int64)
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(lag + 2)]
        self._known = 0

    def record(self, values: Any) -> None:
        """Store the numbers of one more row."""
        self.store(values)
        self.advance()

    def store(self, values: Any) -> None:
        """Enqueue the kernel that writes the next row, which may be captured."""
        if not hasattr(values, "ndim") and isinstance(values[0], float):  # of a method whose host decides
            import cupy

            values = cupy.array(values)
        target = np.uint64(self._memory.ptr)
        if hasattr(values, "ndim"):
            kernel("record.cu", "record_block")((1,), (32,), (values, np.int32(values.size), target, self._next))
            return
        kinds = [_KINDS.get(value.dtype) for value in values]
        if len(values) > _SCALARS or None in kinds:
            raise UnsupportedTypeError("a method reports up to four numbers of single or double precision")
        arguments = [part for pair in zip(values, kinds, strict=True) for part in pair]
        arguments += arguments[:2] * (_SCALARS - len(values))
        kernel("record.cu", "record_scalars")((1,), (1,), (*arguments, np.int32(len(values)), target, self._next))

    def advance(self) -> None:
        """Mark one more row, stored by :meth:`store` or by a replay of it, on the current stream."""
        self._events[self.count % len(self._events)].record()
        self.count += 1

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
        self.count = self._known = len(rows)
        self._rows[: self.count] = rows
        self._next.fill(self.count)

    def abandon(self) -> None:
        """Keep the memory for ever: the device may still write to it."""
        _abandoned.append(self)


def open_history(engine: Engine, width: int, capacity: int, lag: int | None, comm: Communicator) -> History:
    """Return a history of at most `capacity` rows of `width` numbers of an engine.

    On devices `lag` rows may be outstanding, by default as many as the device's history chooses, and the deadline of
    `comm` limits the waits.
    """
    if lag is not None:
        check_count("lag", lag)
    if engine.memory == "host" or not engine.mutable:
        return History()
    return DeviceHistory(width, capacity, DeviceHistory.default_lag if lag is None else lag, comm)
