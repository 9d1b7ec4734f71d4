"""A simulated device for tests of transports without a GPU: CuPy's arrays in host memory, and NCCL played by MPI."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collops import backend
from collops.comm import call
from tests.comm.checks import dtype_of

NCCL_TYPES = {0: "i1", 1: "u1", 2: "i4", 3: "u4", 4: "i8", 5: "u8", 6: "f2", 7: "f4", 8: "f8", 9: "bfloat16"}
NCCL_OPERATIONS = {0: np.add, 1: np.multiply, 2: np.fmax, 3: np.fmin, 4: np.add}  # NCCL's extremes ignore NaN
_AVERAGE = 4


class Array(np.ndarray):
    """NumPy's array with what transports use of CuPy's."""

    @property
    def data(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def get(self, out: np.ndarray | None = None, stream: Any = None, blocking: bool = True) -> np.ndarray:
        if out is None:
            return np.array(self)
        out[...] = np.asarray(self)
        return out

    def set(self, values: np.ndarray, stream: Any) -> None:
        self[...] = values


class _Event:
    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Stream(_Event):
    ptr = 0

    def record(self, stream: Any = None) -> _Event:
        return _Event()

    def wait_event(self, event: _Event) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _placed(function: Any) -> Any:
    """Return a function of NumPy whose result is on the device."""
    return lambda *args, **kwargs: function(*args, **kwargs).view(Array)


def module() -> types.ModuleType:
    """Return a module that plays CuPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray, cupy.uint8, cupy.int32, cupy.float32 = Array, np.uint8, np.int32, np.float32
    for name in (
        *("empty", "empty_like", "zeros", "zeros_like", "ones", "full"),
        *("arange", "array", "asarray", "ascontiguousarray", "where"),
    ):
        setattr(cupy, name, _placed(getattr(np, name)))
    for name in (
        *("add", "multiply", "minimum", "maximum", "logical_and", "logical_or", "logical_xor"),
        "may_share_memory",
    ):
        setattr(cupy, name, getattr(np, name))
    current = _Stream()
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda: current,
        alloc_pinned_memory=bytearray,
        Stream=_Stream,
        Event=_Event,
        runtime=types.SimpleNamespace(
            memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size),
            memcpyDefault=4,
            getDevice=lambda: 0,
        ),
    )
    return cupy


class Nccl:
    """Plays a binding of NCCL over an mpi4py communicator: messages of a group are sent when it ends."""

    name, error = "played", ZeroDivisionError

    def __init__(self, control: Any) -> None:
        self._comm = control
        self._depth = 0
        self._messages: list[tuple[bool, np.ndarray, int]] = []
        self.launches = 0

    def connect(self, size: int, rank: int, unique_id: bytes) -> int:
        return 1

    def abort(self, comm: Any) -> None:
        pass

    def async_error(self, comm: Any) -> int:
        return 0

    def all_reduce(self, source: int, target: int, count: int, kind: int, op: int, comm: Any, stream: int) -> None:
        _view(target, count, kind)[...] = self._reduced(source, count, kind, op)

    def reduce(
        self, source: int, target: int, count: int, kind: int, op: int, root: int, comm: Any, stream: int
    ) -> None:
        result = self._reduced(source, count, kind, op)
        if self._comm.rank == root:
            _view(target, count, kind)[...] = result

    def reduce_scatter(self, source: int, target: int, count: int, kind: int, op: int, comm: Any, stream: int) -> None:
        result = self._reduced(source, count * self._comm.size, kind, op)
        _view(target, count, kind)[...] = result.reshape(self._comm.size, count)[self._comm.rank]

    def broadcast(self, source: int, target: int, count: int, kind: int, root: int, comm: Any, stream: int) -> None:
        _view(target, count, kind)[...] = self._comm.bcast(_view(source, count, kind), root)

    def all_gather(self, source: int, target: int, count: int, kind: int, comm: Any, stream: int) -> None:
        parts = self._comm.allgather(_view(source, count, kind))
        _view(target, count * len(parts), kind)[...] = np.concatenate(parts)

    def send(self, address: int, count: int, kind: int, peer: int, comm: Any, stream: int) -> None:
        self._message(True, _view(address, count, kind), peer)

    def receive(self, address: int, count: int, kind: int, peer: int, comm: Any, stream: int) -> None:
        self._message(False, _view(address, count, kind), peer)

    def group_start(self) -> None:
        self._depth += 1

    def group_end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            messages, self._messages = self._messages, []
            requests = [
                self._comm.Isend(array, peer) if leaves else self._comm.Irecv(array, peer)
                for leaves, array, peer in messages
            ]
            for request in requests:
                request.Wait()
            self.launches += 1

    def _message(self, leaves: bool, array: np.ndarray, peer: int) -> None:
        self.group_start()
        self._messages.append((leaves, array, peer))
        self.group_end()

    def _reduced(self, source: int, count: int, kind: int, op: int) -> np.ndarray:
        parts = self._comm.allgather(_view(source, count, kind).copy())
        total = NCCL_OPERATIONS[op].reduce(np.stack(parts), dtype=parts[0].dtype)
        return total / len(parts) if op == _AVERAGE else total


def _view(address: int, count: int, kind: int) -> np.ndarray:
    """Return `count` elements of one of NCCL's types at an address."""
    dtype = dtype_of(NCCL_TYPES[kind])
    if not count:
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


@contextlib.contextmanager
def simulated() -> Iterator[types.ModuleType]:
    """Have imports of CuPy, and the engines of arrays, find the simulated device."""
    cupy = module()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(backend._by_type, Array, backend.Engine("cupy", cupy, "device"))
        patch.setitem(call.engines, Array, backend._by_type[Array])
        yield cupy
