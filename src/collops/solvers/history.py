"""The numbers of every iteration and the tests of them, so that the host need not wait for each one on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import kernel
from collops.solvers.method import Method, Row
from collops.solvers.problem import check_count
from collops.solvers.result import Status

__all__ = ["DeviceHistory", "History", "device_tests", "open_history"]

_KINDS = {np.dtype(np.float32): np.int32(0), np.dtype(np.float64): np.int32(1)}
_SCALARS = 4
_LAG = 3
_ONE, _THREADS = (1,), (1024,)
_abandoned: list[DeviceHistory] = []


class History:
    """Rows of numbers, one per iteration, on the host: a row is known as soon as it is stored."""

    lag: int = 0  # how many rows may be outstanding before the host waits for one

    def __init__(self, method: Method) -> None:
        self._method = method
        self._stored: list[Row] = []
        self.count = 0  # rows recorded so far

    def record(self, state: Any) -> None:
        """Store the numbers of one more row."""
        values = self._method.report(state)
        self._stored.append(values.tolist() if hasattr(values, "tolist") else list(map(float, values)))
        self.count += 1

    def row(self, number: int) -> Any:
        """Return the numbers of a row, waiting for it."""
        return tuple.__new__(self._method.numbers, self._stored[number])  # a third of the time of numbers(*row)

    def status(self, number: int) -> Status | None:
        """Return the status of the first test that a row passes, or ``None``, waiting for it."""
        return self._method.status(self.row(number), self.row(0))

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        return np.array(self._stored, np.float64)

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run, as if they had been recorded."""
        self._stored, self.count = rows.tolist(), len(rows)

    def return_to(self, number: int, state: Any) -> None:
        """Bring the results in a state to where they were at a row that has passed a test."""

    def abandon(self) -> None:
        """Leave the rows to a device that may still write to them, after a failure."""


class DeviceHistory(History):
    """Rows in pinned host memory that the device writes to, and tests of them on the device.

    The kernel keeps the number of the next row itself, on the device, so that one recorded launch of it serves for all
    iterations. An event after each row tells the host when it may read it. With a `lag` the device also evaluates the
    method's tests, and copies the results of the first iteration that passes one: later ones do not change the copies.

    There are at most `capacity` rows; the deadline of `comm` limits the waits.
    """

    def __init__(self, method: Method, capacity: int, lag: int, comm: Communicator) -> None:
        import cupy

        super().__init__(method)
        width = len(method.numbers._fields)
        tests = device_tests(method) if lag else None
        self.lag = 0 if tests is None else lag
        text, options = tests or (_CONTINUES, [])
        self._comm = comm
        self._definitions = f"-DWIDTH={width}", f"-DOPTIONS={len(options)}", f"-DFIRST_PASSED={text}"
        self._memory = cupy.cuda.alloc_pinned_memory((2 + max(1, width * capacity)) * 8)
        # The pool's block may be longer than what was asked for.
        self._outcome = np.frombuffer(self._memory, np.int64, 2)  # the number of the first test that passed; the row
        self._outcome[:] = _CONTINUES
        self._rows = np.frombuffer(self._memory, np.float64, width * capacity, 16).reshape(capacity, width)
        self._addresses = np.uint64(self._memory.ptr + 16), np.uint64(self._memory.ptr)
        self._next = cupy.zeros(2, np.int64)  # the number of the next row; whether one has passed, see record.cu
        self._tested = cupy.array([*options, *[0.0] * width])  # options of the tests; the first row
        # Without tolerances a run ends where nothing is left to change.
        self._kept = method.results if options else ()
        self._copies: dict[str, Any] = {}
        self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(self.lag + 2)]
        self._known = 0

    def record(self, state: Any) -> None:
        """Store the numbers of one more row."""
        self.store(state)
        self.advance()

    def store(self, state: Any) -> None:
        """Enqueue the kernels that write the next row, and copy results if it passes a test. They may be captured."""
        values = self._method.report(state)
        rest = (*self._addresses, self._next, self._tested)
        if hasattr(values, "ndim"):
            kernel("record.cu", "record_block", *self._definitions)(_ONE, _ONE, (values, *rest))
        else:
            kinds = [_KINDS.get(value.dtype) for value in values]
            if len(values) > _SCALARS or None in kinds:
                raise UnsupportedTypeError("a method reports up to four numbers of single or double precision")
            arguments = [part for pair in zip(values, kinds, strict=True) for part in pair]
            arguments += arguments[:2] * (_SCALARS - len(values))
            kernel("record.cu", "record_scalars", *self._definitions)(_ONE, _ONE, (*arguments, *rest))
        for source, target in self._pairs(state):
            arguments = source, target, np.int64(source.nbytes), self._next
            kernel("record.cu", "keep", *self._definitions)(_ONE, _THREADS, arguments)

    def _pairs(self, state: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the local arrays of the results in a state, each with its copy; the first call makes the copies."""
        for name in self._kept:
            result = getattr(state, name)
            if result is not None:
                copy = self._copies.get(name)
                if copy is None:
                    copy = self._copies[name] = result.copy()
                for leaf, kept in zip(result.leaves, copy.leaves, strict=True):
                    yield leaf.local_array, kept.local_array

    def advance(self) -> None:
        """Mark one more row, stored by :meth:`store` or by a replay of it, on the current stream."""
        self._events[self.count % len(self._events)].record()
        self.count += 1

    def row(self, number: int) -> Any:
        """Return the numbers of a row, waiting for it."""
        if number >= self._known:
            # Of the events that are still there, the one of this row is the first that comes after it.
            oldest = max(number, self.count - len(self._events))
            self._comm.wait(self._events[oldest % len(self._events)], "a solver's iteration")
            self._known = oldest + 1
        return tuple.__new__(self._method.numbers, self._rows[number].tolist())

    def status(self, number: int) -> Status | None:
        """Return the status of the first test that a row passes, or ``None``, waiting for it."""
        if not self.lag:
            return super().status(number)
        self.row(number)
        test, row = self._outcome.tolist()
        return self._method.stops[test][1] if test >= 0 and row == number else None

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        if self.count:
            self.row(self.count - 1)
        return self._rows[: self.count].copy()

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run; nothing may have been stored yet."""
        self.count = self._known = len(rows)
        self._rows[: self.count] = rows
        self._next[0] = self.count

    def return_to(self, number: int, state: Any) -> None:
        """Bring the results in a state to where they were at a row that has passed a test."""
        if self.count > number + 1:
            for target, source in self._pairs(state):
                target[...] = source

    def abandon(self) -> None:
        """Keep the memory for ever: the device may still write to it."""
        _abandoned.append(self)


def open_history(
    engine: Engine, method: Method, capacity: int, lag: int | None, comm: Communicator, *, ahead: bool = True
) -> History:
    """Return a history of at most `capacity` rows of an engine.

    On devices `lag` rows may be outstanding if the run may get `ahead` of the host, and the device can evaluate the
    method's tests; the deadline of `comm` limits the waits.
    """
    lag = _LAG if lag is None else check_count("lag", lag)
    if engine.memory == "host" or not engine.mutable:
        return History(method)
    return DeviceHistory(method, capacity, lag if ahead else 0, comm)


# ---- Tests in CUDA

_CONTINUES = -1


def device_tests(method: Method) -> tuple[str, list[float]] | None:
    """Return an expression in C for the number of the first test that passes, and the options that it reads.

    The expression is -1 where the solver continues. It depends on the kind of the method, and on which options are
    set, but not on their values, so that few kernels are compiled. ``None`` if a test can run on the host only.
    """
    width = len(method.numbers._fields)
    given = {name: getattr(method, name) for name in sorted(method.tolerances)}
    given = {name: float(value) for name, value in given.items() if value}
    places = {name: _Text(f"given[{place}]") for place, name in enumerate(given)}
    traced = dataclasses.replace(method, **places)  # pyright: ignore[reportArgumentType]
    now = method.numbers(*(_Text(f"now[{place}]") for place in range(width)))
    first = method.numbers(*(_Text(f"given[{len(given) + place}]") for place in range(width)))
    text = str(_CONTINUES)
    try:
        for number, (test, status, *option) in reversed([*enumerate(method.stops)]):
            if all(getattr(method, name) for name in option):
                text = f"({_text(test(traced, now, first))}?{_CONTINUES if status is None else number}:{text})"
    except _DecidedOnHost:
        return None
    return text, list(given.values())


class _DecidedOnHost(TypeError):
    """A test decides something by a number that the host does not know."""


class _Text:
    """A number in a test, as an expression in C."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, text: str) -> None:
        self.text = text

    def __abs__(self) -> _Text:
        return _Text(f"fabs({self.text})")

    def __pow__(self, exponent: int) -> _Text:
        return _Text(f"({'*'.join([self.text] * exponent)})")

    def __bool__(self) -> bool:
        raise _DecidedOnHost


def _operation(sign: str, swapped: bool = False) -> Any:
    def of_two(a: Any, b: Any) -> _Text:
        a, b = (b, a) if swapped else (a, b)
        return _Text(f"({_text(a)}{sign}{_text(b)})")

    return of_two


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "and": "&", "or": "|"}.items():
    setattr(_Text, f"__{_name}__", _operation(_sign))
    setattr(_Text, f"__r{_name}__", _operation(_sign, swapped=True))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(_Text, f"__{_name}__", _operation(_sign))


def _text(value: Any) -> str:
    if isinstance(value, _Text):
        return value.text
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    return repr(float(value)).replace("inf", "INFINITY").replace("nan", "NAN")
