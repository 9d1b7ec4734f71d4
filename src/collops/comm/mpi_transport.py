"""The transport of host arrays by MPI, of device arrays by GPU-aware MPI, and of host arrays by TCP.

Arrays are sent from their memory, never pickled, by nonblocking calls, so that every wait has a deadline
(:mod:`collops.comm.failure`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

import numpy as np

from collops.backend import LocalArray
from collops.comm.agreement import MpiBuffer, MpiComm, MpiHandle, name_ranks
from collops.comm.call import KINDS, Call
from collops.comm.failure import Failures
from collops.comm.messages import Bounds, CallsByMessages, Part
from collops.comm.mpi import mpi4py_module, mpi_or_tcp
from collops.comm.reductions import (
    DTYPES,
    HALF,
    LOGICAL,
    LONG_DTYPES,
    MOVED_BY_MPI,
    OPERATIONS,
    divide,
    library_loses_nan,
)
from collops.comm.transport import Message, Pending, Transport
from collops.errors import UnsupportedTypeError

__all__ = ["MpiTransport"]

TESTS = range(10)  # of a call, before a wait with a deadline: small calls are done by then


class MpiTransport(Transport):
    """MPI on host arrays, between the ranks of an mpi4py communicator.

    It makes two private duplicates of `comm`, for collectives and for exchanges, which `releases` frees. `failures`
    waits for the requests.
    """

    name = "mpi"
    _direct = True  # mpi4py accesses the memory of an array by its buffer interface

    def __init__(self, comm: MpiComm, failures: Failures) -> None:
        self._mpi = mpi = mpi_or_tcp()
        self._in_place = mpi.IN_PLACE
        self._origin = comm
        self._comm = comm.Dup()
        self._messages = comm.Dup()
        self.releases: list[Callable[[], None]] = [self._comm.Free, self._messages.Free]
        self._failures = failures
        self._size = comm.size
        self.rank: int = comm.rank
        self._moved: dict[np.dtype, tuple[MpiHandle, bool]] = {}
        self._reductions: dict[tuple[np.dtype, str], tuple[MpiHandle, MpiHandle, bool]] = {}
        self.reductions = self._reductions
        self.started: set[_Started] = set()  # keeps requests and memory alive if an error prevents the wait

    def renew(self) -> None:
        """Continue with a new duplicate for collectives, and abandon pending calls on the old one. Collective."""
        comm, request = self._origin.Idup()
        self._failures.wait(request, "replacing transports", range(self._size))
        self._comm = comm
        self.releases.append(comm.Free)

    def check_open(self) -> None:
        """Raise if the communicator is closed. Not collective."""
        self._failures.check_open()

    def run(self, call: Call) -> None:
        """Start the call, and wait for it."""
        self.complete(_START[call.kind](self, call), call)

    def start(self, call: Call) -> Pending:
        """Start the call."""
        started = _Started(self, _START[call.kind](self, call), call, self._failures.number)
        self.started.add(started)
        return started

    def complete(self, request: MpiHandle, call: Call, number: int | None = None) -> None:
        """Wait for a call; `number` is its number if later calls may have begun."""
        test = request.Test
        try:
            for _ in TESTS:
                if test():
                    break
            else:
                self._failures.wait(request, call.kind, memory=call, number=number)
        except self._mpi.Exception as error:
            self._failures.failed(error, call.kind)
        if call.op == "avg" and call.target is not None:
            divide(call.target, self._size)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start the messages."""
        requests = [self._messages.Irecv(self._buffer(array), source=peer, tag=tag) for peer, array in receives]
        requests += [self._messages.Isend(self._buffer(array), dest=peer, tag=tag) for peer, array in sends]
        return _Requests(requests, self._failures, receives, sends)

    def start_parts(self, kind: str, sends: Sequence[Part], receives: Sequence[Part], memory: object) -> _Parts:
        """Start messages that are parts of a collective call of some `kind`. After an error, `memory` is kept."""
        comm = self._comm
        arriving = [comm.Irecv(part, peer) for peer, part in receives]
        leaving = [comm.Isend(part, peer) for peer, part in sends]
        return _Parts(arriving, leaving, self._failures, kind, memory)

    def part(self, array: LocalArray, begin: int, end: int) -> MpiBuffer:
        """Return some elements of a contiguous array as MPI moves them."""
        return self._buffer(array.reshape(-1)[begin:end])

    def reduction(self, dtype: np.dtype, op: str) -> tuple[MpiHandle, MpiHandle, bool]:
        """Return MPI's datatype and operation for `dtype` and `op`, and whether MPI takes such arrays directly.

        Averages are computed as sums.
        """
        reduction = self._reductions.get((dtype, op))
        if reduction is None:
            known = (LONG_DTYPES | DTYPES).get(dtype.name)
            if known is None:
                raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be reduced by MPI")
            name, ufunc, _ = OPERATIONS[LOGICAL.get(op, op) if dtype.kind == "b" else op]
            by_numpy = dtype.name in HALF or library_loses_nan(op, dtype)
            operation = _numpy_operation(np.dtype(dtype), ufunc) if by_numpy else getattr(self._mpi, name)
            direct = self._direct and dtype.kind != "V"
            reduction = self._reductions[dtype, op] = getattr(self._mpi, known.mpi), operation, direct
        return reduction

    def _allreduce(self, call: Call) -> MpiHandle:
        datatype, operation, direct = call.resolved or self.reduction(call.source.dtype, call.op)
        source, target = call.source, call.target
        if not direct:
            return self._comm.Iallreduce(
                self._reduction_source(call, datatype), [self._memory(target), datatype], operation
            )
        send_buffer = self._in_place if source is target else [source, datatype]
        return self._comm.Iallreduce(send_buffer, [target, datatype], operation)

    def _reduce(self, call: Call) -> MpiHandle:
        datatype, operation, _ = self.reduction(call.source.dtype, call.op)
        target = None if call.target is None else [self._memory(call.target), datatype]
        return self._comm.Ireduce(self._reduction_source(call, datatype), target, operation, call.root)

    def _bcast(self, call: Call) -> MpiHandle:
        if self.rank == call.root and call.source is not call.target:
            call.target[...] = call.source
        return self._comm.Ibcast(self._buffer(call.target), call.root)

    def _allgather(self, call: Call) -> MpiHandle:
        return self._comm.Iallgather(self._buffer(call.source), self._buffer(call.target))

    def _allgatherv(self, call: Call) -> MpiHandle:
        if min(call.counts) == max(call.counts):
            return self._allgather(call)
        return self._comm.Iallgatherv(self._buffer(call.source), self._pieces(call.target, call.counts))

    def _gatherv(self, call: Call) -> MpiHandle:
        return self._comm.Igatherv(self._buffer(call.source), self._pieces(call.target, call.counts), call.root)

    def _scatterv(self, call: Call) -> MpiHandle:
        return self._comm.Iscatterv(self._pieces(call.source, call.counts), self._buffer(call.target), call.root)

    def _reduce_scatter(self, call: Call) -> MpiHandle:
        source, target = call.source, call.target
        datatype, operation, direct = self.reduction(source.dtype, call.op)
        if not direct:
            source, target = self._memory(source), self._memory(target)
        return self._comm.Ireduce_scatter_block([source, datatype], [target, datatype], operation)

    _gather, _scatter = _gatherv, _scatterv

    def _alltoall(self, call: Call) -> MpiHandle:
        return self._comm.Ialltoall(self._buffer(call.source), self._buffer(call.target))

    def _alltoallv(self, call: Call) -> MpiHandle:
        send_buffer = self._pieces(call.source, call.counts)
        return self._comm.Ialltoallv(send_buffer, self._pieces(call.target, call.receive_counts))

    def _barrier(self, call: Call) -> MpiHandle:
        return self._comm.Ibarrier()

    def _memory(self, array: LocalArray) -> MpiBuffer:
        """Return the memory of `array` for MPI. NumPy does not export buffers of bfloat16 arrays, whose kind is V."""
        return array.view(np.uint16) if array.dtype.kind == "V" else array

    def _reduction_source(self, call: Call, datatype: MpiHandle) -> MpiBuffer:
        return self._in_place if call.source is call.target else [self._memory(call.source), datatype]

    def _buffer(self, array: LocalArray) -> MpiBuffer:
        """Return an array as a buffer of MPI, with a datatype of the width of its elements."""
        dtype = array.dtype
        datatype, direct = self._moved.get(dtype) or self._movement(dtype)
        return [array if direct else self._memory(array), datatype]

    def _movement(self, dtype: np.dtype) -> tuple[MpiHandle, bool]:
        """Return MPI's datatype to send `dtype`, and whether MPI takes such arrays directly."""
        name = MOVED_BY_MPI.get(dtype.itemsize)
        if name is None:
            raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be sent")
        movement = self._moved[dtype] = getattr(self._mpi, name), self._direct and dtype.kind != "V"
        return movement

    def _pieces(self, array: LocalArray, counts: Sequence[int]) -> MpiBuffer:
        """Return consecutive pieces of an array as a buffer of MPI, or ``None`` without an array."""
        if array is None:
            return None
        memory, datatype = self._buffer(array)
        return [memory, (list(counts), list(accumulate(counts, initial=0))[:-1]), datatype]


_START = {kind: getattr(MpiTransport, f"_{kind}") for kind in KINDS}


class DeviceMpi(MpiTransport):
    """GPU-aware MPI on device pointers. The current stream must be idle when a call starts."""

    _direct = False

    def _memory(self, array: LocalArray) -> MpiBuffer:
        return self._mpi.buffer.fromaddress(array.data.ptr, array.nbytes)

    def part(self, array: LocalArray, begin: int, end: int) -> MpiBuffer:
        """Return the memory of some elements of a contiguous array as a buffer of MPI."""
        dtype = array.dtype
        width = dtype.itemsize
        datatype, _ = self._moved.get(dtype) or self._movement(dtype)
        return [self._mpi.buffer.fromaddress(array.data.ptr + begin * width, (end - begin) * width), datatype]


class TcpTransport(MpiTransport):
    """TCP on host arrays, between ranks without MPI. Collective calls are built from messages."""

    name = "tcp"

    def __init__(self, comm: MpiComm, failures: Failures) -> None:
        super().__init__(comm, failures)
        self._by_messages = CallsByMessages(self.rank, self._size, self)
        self.reductions = self._by_messages.functions

    def run(self, call: Call) -> None:
        """Run the call by messages, or a barrier by the library."""
        if call.kind == "barrier":
            super().run(call)
        else:
            self._by_messages.run(call)

    def ready(self) -> int:
        """Return at once: host arrays need no stream."""
        return 0

    def copy(
        self, target: LocalArray, target_bounds: Bounds, source: LocalArray, source_bounds: Bounds, stream: object
    ) -> None:
        """Copy elements of a contiguous array to another one."""
        target.reshape(-1)[slice(*target_bounds)] = source.reshape(-1)[slice(*source_bounds)]

    start = Transport.start

    def _buffer(self, array: LocalArray) -> MpiBuffer:
        return array


class _Started(Pending):
    """A collective call that this rank has begun, with its `number`."""

    __slots__ = ("_call", "_number", "_request", "_transport")

    def __init__(self, transport: MpiTransport, request: MpiHandle, call: Call, number: int) -> None:
        self._transport = transport
        self._request = request
        self._call = call
        self._number = number

    def wait(self) -> None:
        self._transport.check_open()
        if self in self._transport.started:
            self._transport.complete(self._request, self._call, self._number)
            self._transport.started.remove(self)


class _Parts:
    """Messages of a collective call of some `kind`; `memory` must outlive a wait that fails."""

    __slots__ = ("_arriving", "_failures", "_kind", "_leaving", "_memory")

    def __init__(
        self, arriving: list[MpiHandle], leaving: list[MpiHandle], failures: Failures, kind: str, memory: object
    ) -> None:
        self._arriving = arriving
        self._leaving = leaving
        self._failures = failures
        self._kind = kind
        self._memory = memory

    def received(self, number: int) -> None:
        """Wait for the receive of this `number`."""
        self._failures.wait(self._arriving[number], self._kind, memory=self)

    def sent(self) -> None:
        """Wait for all sends."""
        for request in self._leaving:
            self._failures.wait(request, self._kind, memory=self)


class _Requests(Pending):
    """Messages, whose arrays must outlive a wait that fails."""

    __slots__ = ("_failures", "_receives", "_requests", "_sends")

    def __init__(
        self, requests: list[MpiHandle], failures: Failures, receives: Sequence[Message], sends: Sequence[Message]
    ) -> None:
        self._requests = requests
        self._failures = failures
        self._receives = receives
        self._sends = sends

    def __str__(self) -> str:
        ends = [("from", self._receives), ("to", self._sends)]
        return "messages " + " and ".join(
            f"{direction} {name_ranks(sorted({rank for rank, _ in messages}))}"
            for direction, messages in ends
            if messages
        )

    def wait(self) -> None:
        self._failures.check_open()
        requests, self._requests = self._requests, []
        # Neighbours whose messages are complete may end while others are late.
        peers = [rank for rank, _ in (*self._receives, *self._sends)]
        self._failures.wait_all(requests, self, peers, (self._receives, self._sends))


@cache  # for all communicators: mpi4py has room for 32 of these
def _numpy_operation(dtype: np.dtype, ufunc: str) -> MpiHandle:
    function, half = getattr(np, ufunc), dtype.name in HALF

    def combine(incoming: MpiBuffer, result: MpiBuffer, _datatype: MpiHandle) -> None:
        left, right = np.frombuffer(incoming, dtype), np.frombuffer(result, dtype)
        if half:
            right[...] = function(left.astype(np.float32), right.astype(np.float32)).astype(dtype)
        else:
            function(left, right, out=right)

    # In the order of ranks, so that all ranks get the same NaN: the choice between two NaNs depends on the order.
    return mpi4py_module().Op.Create(combine, commute=False)
