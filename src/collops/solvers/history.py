"""The numbers of every iteration, stored so that the host can read them without stalling the device."""

from __future__ import annotations

from collections import deque

import numpy as np

from collops.backend import Engine, LocalArray
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import kernel
from collops.solvers.method import Method, Row
from collops.solvers.problem import check_kept
from collops.solvers.state import Numbers, State, local_arrays

_KINDS = {np.dtype(np.float32): np.int32(0), np.dtype(np.float64): np.int32(1)}
_SCALARS = 4
_LAG = 3
_GROUP = 3  # at most the lag: the host checks one group while the device runs the next
_MAX_COPIED = 1 << 21
"""Maximum number of elements of a result to copy in each iteration; waiting for every iteration is faster otherwise."""
_THREADS = 256
_BYTES_OF_A_BLOCK = 16 * _THREADS
_MAX_BLOCKS = 512
_abandoned: list[DeviceHistory] = []


class History:
    """Rows of numbers, one per iteration, on the host: a row is available once stored."""

    lag: int = 0  # maximum number of outstanding rows before the host waits for one
    group: int = 1  # number of further rows that may be launched at once

    def __init__(self, method: Method) -> None:
        self._method = method
        self._stored: list[Row] = []
        self.count = 0  # rows recorded so far

    def record(self, state: State) -> None:
        """Store the numbers of one more row."""
        values = self._method.report(state)
        self._stored.append(values.tolist() if hasattr(values, "tolist") else list(map(float, values)))
        self.count += 1

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        return self._stored[number]

    def numbers(self, number: int) -> Numbers:
        """Return a row as the method's named tuple, waiting for it."""
        return tuple.__new__(self._method.numbers, self.row(number))  # a third of the time of numbers(*row)

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        return np.array(self._stored, np.float64)

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run, as if they had been recorded."""
        self._stored, self.count = rows.tolist(), len(rows)

    def return_to(self, number: int, state: State) -> None:
        """Restore the results in a state to their values at a row that passed a test."""

    def abandon(self) -> None:
        """Keep the rows allocated after a failure: a device may still write to them."""


class DeviceHistory(History):
    """Rows in pinned host memory that the device writes to.

    The kernel stores the number of the next row on the device, so that one recorded launch serves all iterations. An
    event after each launch tells the host when it may read its rows. If the history `keeps` results, the device copies
    the results of the last ``lag + group`` iterations, since later iterations overwrite them before the host has
    evaluated the tests.

    There are at most `capacity` rows; the deadline of `comm` limits the waits.
    """

    def __init__(self, method: Method, capacity: int, lag: int, comm: Communicator, *, keeps: bool, group: int) -> None:
        import cupy

        super().__init__(method)
        width = len(method.numbers._fields)
        self.lag, self.group, self.keeps = lag, group, keeps
        self._comm = comm
        self._copies: list[_Copies] = []
        self._memory = cupy.cuda.alloc_pinned_memory(max(1, width * capacity) * 8)
        # The pool's block may be longer than requested.
        self._rows = np.frombuffer(self._memory, np.float64, width * capacity).reshape(capacity, width)
        self._target = np.uint64(self._memory.ptr)
        self._next = cupy.zeros(1, np.int64)
        # The events of the last launches, oldest first, each with its number of rows.
        self._events = deque((0, cupy.cuda.Event(disable_timing=True)) for _ in range(lag + 2))
        self._known = 0

    def record(self, state: State) -> None:
        """Store the numbers of one more row."""
        self.store(state)
        self.advance()

    def store(self, state: State) -> None:
        """Enqueue the kernels that write the next row and keep the results, which may be captured."""
        values = self._method.report(state)
        if not hasattr(values, "ndim") and isinstance(values[0], float):  # of a method with decisions on the host
            import cupy

            values = cupy.array(values)
        if hasattr(values, "ndim"):
            kernel("record.cu", "record_block")((1,), (32,), (values, np.int32(values.size), self._target, self._next))
        else:
            kinds = [_KINDS.get(value.dtype) for value in values]
            if len(values) > _SCALARS or None in kinds:
                raise UnsupportedTypeError("a method reports up to four numbers of single or double precision")
            arguments = [part for pair in zip(values, kinds, strict=True) for part in pair]
            arguments += arguments[:2] * (_SCALARS - len(values))
            kernel("record.cu", "record_scalars")(
                (1,), (1,), (*arguments, np.int32(len(values)), self._target, self._next)
            )
        if self.keeps:
            self._keep(state)

    def _keep(self, state: State) -> None:
        arrays = self._results(state)
        if not self._copies:
            self._copies = [_Copies(array, self.lag + self.group) for array in arrays]
        for copies, array in zip(self._copies, arrays, strict=True):
            copies.keep(array, self._next)

    def _results(self, state: State) -> list[LocalArray]:
        values = (getattr(state, name, None) for name in self._method.results)
        return [array for value in values if value is not None for array in local_arrays(value)]

    def advance(self, rows: int = 1) -> None:
        """Mark more rows, stored by :meth:`store` or by a replay of it, on the current stream."""
        _, event = self._events.popleft()
        event.record()
        self.count += rows
        self._events.append((self.count, event))

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        if number >= self._known:
            # The first remaining event at or after this row covers it.
            known, event = next((rows, event) for rows, event in self._events if rows > number)
            self._comm.wait(event, "a solver's iteration")
            self._known = known
        return self._rows[number].tolist()

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        if self.count:
            self.row(self.count - 1)
        return self._rows[: self.count].copy()

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run; the device must have written all that were stored."""
        self.count = self._known = len(rows)
        self._events = deque((0, event) for _, event in self._events)
        self._rows[: self.count] = rows
        self._next.fill(self.count)

    def return_to(self, number: int, state: State) -> None:
        """Restore the results in a state to their values at one of the last rows."""
        if self.keeps and number < self.count - 1:
            for copies, array in zip(self._copies, self._results(state), strict=True):
                copies.restore(number, array)

    def abandon(self) -> None:
        """Never free the memory: the device may still write to it."""
        _abandoned.append(self)


class _Copies:
    """The values of an array on a device after each of the last `places` iterations."""

    def __init__(self, array: LocalArray, slots: int) -> None:
        import cupy

        self._slots = cupy.empty((slots, *array.shape), array.dtype)
        blocks = -(-array.nbytes // _BYTES_OF_A_BLOCK)
        self._grid = (max(1, min(blocks, _MAX_BLOCKS)),)
        self._numbers = np.int64(array.nbytes), np.int64(slots)

    def keep(self, array: LocalArray, following: LocalArray) -> None:
        """Enqueue the copy of `array`; `following` is the number of the next row, on the device."""
        array = array if array.flags.c_contiguous else array.copy()
        kernel("record.cu", "keep")(self._grid, (_THREADS,), (array, self._slots, *self._numbers, following))

    def restore(self, number: int, array: LocalArray) -> None:
        """Restore the array to its values after a row."""
        array[...] = self._slots[number % len(self._slots)]


def on_device(engine: Engine) -> bool:
    """Return whether the steps of an engine run asynchronously to the host."""
    return engine.memory != "host" and engine.mutable


def open_history(
    engine: Engine, method: Method, capacity: int, lag: int | None, comm: Communicator, *, size: int, ahead: bool
) -> History:
    """Return a history of at most `capacity` rows of an engine's method, with results of `size` elements on a rank.

    On devices `lag` rows may be outstanding; the default is the fastest, and 0 if a test of the method would then pass
    too late for its result. The deadline of `comm` limits the waits. If the host may run `ahead`, because nothing
    outside the history depends on late iterations, short iterations may be launched in groups.
    """
    if not on_device(engine):
        return History(method)
    check_kept("niter", capacity - 1, find_engine("numpy"), len(method.numbers._fields))
    can_end = any(getattr(method, name) for name in method.tolerances - {"niter"})
    if can_end and not (ahead and method.results):
        lag = 0
    elif lag is None:
        lag = 0 if can_end and size > _MAX_COPIED else _LAG
    group = _GROUP if ahead and lag >= _GROUP and size <= _MAX_COPIED else 1
    return DeviceHistory(method, capacity, lag, comm, keeps=can_end and lag > 0, group=group)
