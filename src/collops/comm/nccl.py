"""The transport of device arrays over NCCL: every call is enqueued on the caller's stream, and the host never waits.

Types and reductions are resolved once per dtype. What NCCL lacks is built from what it has: 16-bit integers and
logical operations are reduced in a wider integer, complex numbers as pairs of reals, unequal gathers as grouped
sends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from typing import Any, NoReturn

from collops.comm.failure import at_giving_up
from collops.comm.nccl_binding import Nccl4py, NcclOfCupy
from collops.comm.transport import Message, Pending, Transport
from collops.errors import CommunicationError, UnsupportedTypeError

__all__ = ["NcclTransport"]

_BYTE = 1  # ncclUint8
_TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_IN_PROGRESS = 7  # ncclInProgress
_ENQUEUED = Pending()


class NcclTransport(Transport):
    """NCCL between ranks that drive one GPU each.

    Parameters
    ----------
    binding : Nccl4py or NcclOfCupy
        The calls.
    size, rank : int
        Of the communicator to join.
    unique_id : bytes
        From ``binding.unique_id()`` of one rank, known to all.
    """

    name = "nccl"
    by_address = True

    def __init__(self, binding: Nccl4py | NcclOfCupy, size: int, rank: int, unique_id: bytes) -> None:
        import cupy

        self._cupy = cupy
        self._stream = cupy.cuda.get_current_stream
        self.binding = binding
        self._size = size
        self._rank = rank
        self._comm = binding.connect(size, rank, unique_id)
        self._all_reduce = binding.all_reduce
        self._error = binding.error
        self._resolved: dict[tuple[Any, str], tuple[int, int, int]] = {}
        self._token = cupy.zeros(1, cupy.uint8)
        self._grouped = False
        # Exchanges beside other work: their stream, and the events that order it after the current one and back. All
        # are made now, since a stream that is being captured may not make any.
        self._side = cupy.cuda.Stream(non_blocking=True)
        self._ready = cupy.cuda.Event(disable_timing=True)
        self._done = _Join(cupy.cuda.Event(disable_timing=True), self._stream)
        _connected.add(self)

    @property
    def handle(self) -> Any:
        """The binding's communicator, for programs that call NCCL themselves."""
        return self._comm

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        known = self._resolved.get((source.dtype, op)) or self._resolve(source.dtype, op)
        datatype, operation, width = known
        if width == 0:
            self._widened(self.allreduce, source, target, op)
            return
        try:
            self._all_reduce(
                source.data.ptr,
                target.data.ptr,
                source.size * width,
                datatype,
                operation,
                self._comm,
                self._stream().ptr,
            )
        except self._error as error:
            self._failed(error)

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        datatype, operation, width = self._resolve(source.dtype, op)
        if width == 0:

            def narrow_reduce(given: Any, result: Any, plain: str) -> None:
                self.reduce(given, result if self._rank == root else None, plain, root)

            self._widened(narrow_reduce, source, target, op)
            return
        try:
            self.binding.reduce(
                source.data.ptr,
                0 if target is None else target.data.ptr,
                source.size * width,
                datatype,
                operation,
                root,
                self._comm,
                self._stream().ptr,
            )
        except self._error as error:
            self._failed(error)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        try:
            self.binding.broadcast(
                source.data.ptr, target.data.ptr, target.nbytes, _BYTE, root, self._comm, self._stream().ptr
            )
        except self._error as error:
            self._failed(error)

    def allgather(self, source: Any, target: Any) -> None:
        try:
            self.binding.all_gather(
                source.data.ptr, target.data.ptr, source.nbytes, _BYTE, self._comm, self._stream().ptr
            )
        except self._error as error:
            self._failed(error)

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        self.start_addresses(self._to_all(source), _pieces(target, counts), False)

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        leaving = [message for message in self._to_all(source) if message[0] == root]
        self.start_addresses(leaving, _pieces(target, counts) if self._rank == root else [], False)

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        arriving = [(root, target.data.ptr, target.nbytes)] if target.size else []
        self.start_addresses(_pieces(source, counts) if self._rank == root else [], arriving, False)

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        datatype, operation, width = self._resolve(source.dtype, op)
        if width == 0:
            self._widened(self.reduce_scatter, source, target, op)
            return
        try:
            self.binding.reduce_scatter(
                source.data.ptr,
                target.data.ptr,
                target.size * width,
                datatype,
                operation,
                self._comm,
                self._stream().ptr,
            )
        except self._error as error:
            self._failed(error)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        self.start_addresses(_pieces(source, send_counts), _pieces(target, receive_counts), False)

    def _to_all(self, source: Any) -> list[tuple[int, int, int]]:
        """Return a message of `source` to every rank, this one included; none if it is empty."""
        return [(rank, source.data.ptr, source.nbytes) for rank in range(self._size) if source.size]

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Enqueue all messages as one launch. NCCL has no tags: between two ranks order pairs the messages."""
        return self.start_addresses(
            [(peer, array.data.ptr, array.nbytes) for peer, array in sends if array.size],
            [(peer, array.data.ptr, array.nbytes) for peer, array in receives if array.size],
            False,
        )

    def start_addresses(
        self, sends: Sequence[tuple[int, int, int]], receives: Sequence[tuple[int, int, int]], on_side_stream: bool
    ) -> Pending:
        """Enqueue messages, each an address and a number of bytes, on the current stream or on one beside it."""
        if not sends and not receives:
            return _ENQUEUED
        stream = self._stream()
        if on_side_stream:
            self._ready.record(stream)
            stream = self._side
            stream.wait_event(self._ready)
        binding, comm, pointer = self.binding, self._comm, stream.ptr
        try:
            binding.group_start()
            try:
                for peer, address, nbytes in receives:
                    binding.receive(address, nbytes, _BYTE, peer, comm, pointer)
                for peer, address, nbytes in sends:
                    binding.send(address, nbytes, _BYTE, peer, comm, pointer)
            finally:
                binding.group_end()
        except self._error as error:
            self._failed(error)
        if not on_side_stream:
            return _ENQUEUED
        self._done.event.record(stream)
        return self._done

    def barrier(self) -> None:
        self.allreduce(self._token, self._token, "max")

    @contextmanager
    def group(self) -> Iterator[None]:
        """Launch the calls made inside as one."""
        self.binding.group_start()
        self._grouped = True
        try:
            yield
        finally:
            self._grouped = False
            self.binding.group_end()

    def inspect(self) -> None:
        try:
            code = self.binding.async_error(self._comm)
        except self._error as error:
            self._failed(error)
        if code not in (0, _IN_PROGRESS):
            self._failed(f"error {code}")

    def abort(self) -> None:
        """Stop what is under way: a device must not wait for a rank that is gone. There are no more calls then."""
        abort, comm = self.binding.abort, self._comm
        self.binding = _ShutDown()  # pyright: ignore[reportAttributeAccessIssue]
        self._all_reduce = self.binding.all_reduce
        with suppress(self._error):  # what led here is the error to be told
            abort(comm)

    def _failed(self, error: object) -> NoReturn:
        """Raise what NCCL reports of a call, or of earlier ones that failed on the device or in the network."""
        raise CommunicationError(f"NCCL reports on rank {self._rank} of {self._size}: {error}") from (
            error if isinstance(error, Exception) else None
        )

    def _resolve(self, dtype: Any, op: str) -> tuple[int, int, int]:
        """NCCL's type and operation, and how many of that type make one element; width 0: reduce in a wider type."""
        if (dtype, op) in self._resolved:
            return self._resolved[dtype, op]
        name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
        if dtype.kind == "b" or op in ("land", "lor", "lxor") or name in ("int16", "uint16"):
            found = (0, 0, 0)
        elif name in _TYPES:
            found = (_TYPES[name], _OPERATIONS[op], 2 if dtype.kind == "c" else 1)
        else:
            raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be reduced by NCCL")
        self._resolved[dtype, op] = found
        return found

    def _widened(self, reduce: Callable[[Any, Any, str], None], source: Any, target: Any, op: str) -> None:
        """Reduce in 32-bit integers what NCCL has no type or operation for.

        Raises
        ------
        UnsupportedTypeError
            Within a group, which is launched after the result would be taken from those.
        """
        if self._grouped:
            raise UnsupportedTypeError(f"NCCL cannot reduce {source.dtype} by {op!r} within a group: do so beside it")
        xp = self._cupy
        truth = source.dtype.kind == "b" or op in ("land", "lor", "lxor")
        wide = (source != 0).astype(xp.int32) if truth else source.astype(xp.int32)
        plain = op
        if truth:
            plain = {"sum": "max", "lor": "max", "prod": "min", "land": "min", "lxor": "sum"}.get(op, op)
        result = xp.empty(source.shape if target is None else target.shape, xp.int32)
        reduce(wide, result, plain)
        if target is not None:
            if op == "lxor":
                result &= 1
            target[...] = result.astype(target.dtype)


class _ShutDown:
    """Stands for a binding whose communicator was aborted."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any) -> NoReturn:
            raise CommunicationError("NCCL was shut down after ranks had waited in vain: nothing can be sent any more")

        return refuse


_connected: weakref.WeakSet[NcclTransport] = weakref.WeakSet()


def _abort_all() -> None:
    for transport in list(_connected):
        _connected.discard(transport)
        transport.abort()


at_giving_up(_abort_all)


class _Join(Pending):
    """Orders the current stream after the exchanges beside it: after all of them, whose stream is in order."""

    __slots__ = ("_stream", "event")

    def __init__(self, event: Any, stream: Callable[[], Any]) -> None:
        self.event = event
        self._stream = stream

    def wait(self) -> None:
        self._stream().wait_event(self.event)


def _pieces(array: Any, counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return rank, address and bytes of the consecutive pieces of a contiguous array that are not empty."""
    address, width = array.data.ptr, array.itemsize
    ends = accumulate(counts, initial=0)
    return [
        (rank, address + start * width, (stop - start) * width)
        for rank, (start, stop) in enumerate(pairwise(ends))
        if stop > start
    ]
