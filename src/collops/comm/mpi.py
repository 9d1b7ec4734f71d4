"""MPI, which only this module imports: the transport of host arrays, and the functions of set-up.

Arrays are sent from their memory, never pickled, by nonblocking calls, so that every wait has a deadline
(:mod:`collops.comm.failure`). Between ranks started without MPI, :mod:`collops.comm.tcp` substitutes mpi4py.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from collops._forks import end_child_without, register_at_exit
from collops._launcher import FORKED, bootstrap_address, is_forked, why_without_mpi
from collops.backend import LocalArray
from collops.comm import tcp
from collops.comm.agreement import AnyCommunicator, Json, Mpi, MpiBuffer, MpiComm, MpiHandle, name_ranks
from collops.comm.call import KINDS, Call
from collops.comm.failure import Failures, close_all, default_timeout
from collops.comm.leftovers import remove_leftovers
from collops.comm.messages import Bounds, CallsByMessages, Part
from collops.comm.reclaim import free_when_unreachable
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
from collops.errors import InputError, TransportError, UnsupportedTypeError

__all__ = [
    "GPU_LEVELS",
    "ControlChannel",
    "MpiTransport",
    "PersistentMessages",
    "addresses",
    "addresses_of",
    "gpu_awareness",
    "handles",
    "load_mpi",
    "mpi4py_module",
    "mpi_or_tcp",
    "name_of_operation",
    "running_mpi_or_tcp",
]

_TESTS = range(10)
GPU_LEVELS = ("none", "p2p", "all")
# MPI guarantees tags up to 32767. Users' messages on a shared communicator are unlikely to have these tags.
FAILURE_TAG, CALL_TAG = 32000, 32001


def load_mpi() -> tuple[Mpi, str]:
    """Return ``mpi4py.MPI``, its substitute, or ``None``; and the version of MPI or the reason.

    Collective at the first call of ranks without MPI, which connect here.
    """
    if reason := why_without_mpi():
        return None, reason
    if (address := bootstrap_address()) is not None:
        return tcp.join(), "TCP without MPI; the ranks connected at {}:{}".format(*address)
    if importlib.util.find_spec("mpi4py") is None:
        return None, "mpi4py is not installed"
    if "UCX_TLS" not in os.environ:  # UCX warns of settings of transports that it may not use
        # Waits have a deadline. UCX would close the connection to an unresponsive host earlier, and MPICH then crashes
        # when this rank sends its failure notice.
        os.environ.setdefault("UCX_TCP_KEEPIDLE", "inf")
    try:
        mpi = mpi4py_module()
    except (ImportError, RuntimeError) as error:
        return None, f"mpi4py finds no MPI library ({error})"
    return mpi, mpi.Get_library_version().splitlines()[0].strip(" \0")


def mpi4py_module() -> Mpi:
    """Return ``mpi4py.MPI`` with MPI initialised.

    mpi4py initialises MPI when it is first imported. If this is disabled (``mpi4py.rc.initialize``) and MPI is not yet
    initialised, this function initialises it, at mpi4py's level of thread support, and finalises it at the end of the
    program.

    Raises `TransportError` on ranks that were started without MPI, in children that a rank has forked, and after MPI
    was finalised.
    """
    if tcp.joined is not None:
        raise TransportError("this needs MPI, but COLLOPS_BOOTSTRAP has started these ranks without it")
    if is_forked():
        raise TransportError(f"MPI cannot be used: {FORKED}")
    if "mpi4py.MPI" not in sys.modules:
        remove_leftovers()
    from mpi4py import MPI

    mpi: Mpi = MPI
    if not mpi.Is_initialized():
        _initialise(mpi)
    elif mpi.Is_finalized():
        raise TransportError(
            "MPI has been finalised and cannot be initialised again: call MPI.Finalize() after the last call of "
            "collops, or leave it to mpi4py, which calls it at the end of the program"
        )
    _watch_end(mpi)
    return mpi


@cache
def _watch_end(mpi: Mpi) -> None:
    """Close all communicators when MPI is finalised: MPI first deletes the attributes of ``COMM_SELF``."""
    key = mpi.Comm.Create_keyval(delete_fn=lambda *_: close_all("MPI has been finalised"))
    mpi.COMM_SELF.Set_attr(key, None)


def _initialise(mpi: Mpi) -> None:
    """Initialise MPI as mpi4py does when it is imported, and finalise it after the exit functions of this library."""
    from mpi4py import rc

    if rc.threads:
        mpi.Init_thread(getattr(mpi, f"THREAD_{rc.thread_level.upper()}"))
    else:
        mpi.Init()
    register_at_exit(lambda: mpi.Is_finalized() or mpi.Finalize())


def _is_running() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


end_child_without(_is_running)


def mpi_or_tcp() -> Mpi:
    """Return ``mpi4py.MPI``, or its substitute between ranks without MPI."""
    return tcp.joined or mpi4py_module()


def running_mpi_or_tcp() -> Mpi:
    """Return the result of :func:`mpi_or_tcp` if there are several ranks, else ``None``."""
    mpi: Mpi = tcp.joined or sys.modules.get("mpi4py.MPI")
    if mpi is None or is_forked() or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
        return None
    return mpi


def gpu_awareness(mpi: Mpi) -> tuple[str, str]:
    """Return the level of an MPI library's support for device pointers, and its source.

    The level is never tested by a call: some MPI libraries support device pointers in point-to-point calls but crash on
    them in collective calls. The environment variable ``COLLOPS_GPU_AWARE_MPI`` sets it: ``none``, ``p2p``
    (point-to-point calls only) or ``all``. Otherwise the library is queried (``MPIX_Query_cuda_support``,
    ``MPIX_Query_rocm_support``). Open MPI supports device pointers only in blocking collective calls, which are not
    used here; with UCX and CUDA it supports them in point-to-point calls, whatever the query returns.

    Raises `InputError` if the variable has another value.
    """
    asked = os.environ.get("COLLOPS_GPU_AWARE_MPI", "auto")
    if asked not in ("auto", *GPU_LEVELS):
        raise InputError(f"COLLOPS_GPU_AWARE_MPI={asked!r}: choose auto, none, p2p or all")
    if tcp.joined is not None:
        return "none", "these ranks were started without MPI"
    if asked != "auto":
        return asked, "set by COLLOPS_GPU_AWARE_MPI"
    for query in ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support"):
        for library in (ctypes.CDLL(mpi.__file__), ctypes.CDLL(None)):
            function = getattr(library, query, None)
            if function is not None:
                function.restype = ctypes.c_int
                if function() == 1:
                    open_mpi = mpi.Get_library_version().startswith("Open MPI")
                    return "p2p" if open_mpi else "all", f"{query} answers yes"
                break
    ucx = os.environ.get("OMPI_MCA_pml") == "ucx"
    if ucx and "cuda" in os.environ.get("UCX_TLS", "").split(","):
        return "p2p", "Open MPI runs on UCX with CUDA, which supports device pointers in point-to-point calls"
    return "none", "the MPI library does not report support for device pointers"


def duplicate(comm: MpiComm) -> MpiComm:
    """Return a duplicate of an mpi4py communicator, with a deadline for its other ranks. Collective."""
    made, request = comm.Idup()
    Failures(ControlChannel(comm), default_timeout(), oversubscribed=True).wait(request, "setting up a communicator")
    return made


def on_node(comm: MpiComm, value: Json = None) -> tuple[int, list[Json]]:
    """Return this rank's number among the ranks of its node, and the `value` of each of them. Collective."""
    shared = comm.Split_type(mpi_or_tcp().COMM_TYPE_SHARED)
    numbering = shared.rank, shared.allgather(value)
    shared.Free()
    return numbering


def split(comm: MpiComm, color: int | None, key: int) -> MpiComm:
    """Return the mpi4py communicator of the ranks that pass the same `color`, or ``None`` without one. Collective."""
    part = comm.Split(mpi_or_tcp().UNDEFINED if color is None else color, key)
    return None if color is None else part


def values_kept_with(comm: MpiComm) -> dict[str, Any]:
    """Return a dictionary with the lifetime of an mpi4py communicator, whose handle MPI may reuse afterwards.

    Raises `UnsupportedTypeError` if `comm` is not an intracommunicator of mpi4py.
    """
    mpi = mpi_or_tcp()
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise UnsupportedTypeError(f"from_mpi4py takes an intracommunicator of mpi4py, not {comm!r}")
    values: Any = comm.Get_attr(_key())
    if values is None:
        values = {}
        comm.Set_attr(_key(), values)
    return values


@cache
def _key() -> int:
    return mpi_or_tcp().Comm.Create_keyval()


def ranks_in_world(comm: MpiComm) -> list[int]:
    """Return the ranks in ``MPI.COMM_WORLD`` of the ranks of an mpi4py communicator."""
    if isinstance(comm, tcp.Group):
        return comm.members
    mpi = mpi4py_module()
    return list(mpi.Group.Translate_ranks(comm.group, None, mpi.COMM_WORLD.group))


def addresses(functions: Sequence[str]) -> list[int]:
    """Return the addresses of functions of the MPI library that mpi4py has loaded, for native code."""
    loaded = ctypes.CDLL(mpi4py_module().__file__)  # resolves symbols of the libraries linked to this module
    return [ctypes.cast(loaded[f"MPI_{name}"], ctypes.c_void_p).value or 0 for name in functions]


def handles(names: Sequence[str]) -> list[int]:
    """Return the handles of MPI's datatypes and operations with these names."""
    return [getattr(mpi4py_module(), name).handle for name in names]


def name_of_operation(op: object) -> str | None:
    """Return the name of an operation of mpi4py, such as ``"sum"`` for ``MPI.SUM``; ``None`` for other objects."""
    mpi = mpi4py_module()
    return next((name for name, known in OPERATIONS.items() if op == getattr(mpi, known.mpi)), None)


class ControlChannel:
    """Sends JSON between the ranks of an mpi4py communicator, without waiting for the receivers.

    Other messages on `comm` must not have the `tag`. `error` is the class of MPI's exceptions.
    """

    def __init__(self, comm: MpiComm, tag: int = FAILURE_TAG) -> None:
        self._mpi = mpi = mpi_or_tcp()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.error: type[Exception] = mpi.Exception
        self._comm = comm
        self._tag = tag
        self._status = mpi.Status()
        self._sends: list[MpiHandle] = []  # keeps the memory of sends, also to dead ranks, alive

    @property
    def lost(self) -> Collection[int]:
        """Ranks whose process has exited, if known. MPI itself aborts the program in this case."""
        return getattr(self._comm, "lost", ())

    def send(self, message: Json, ranks: Collection[int] | None = None) -> None:
        """Send a message representable in JSON to `ranks`, by default to all other ranks. Not collective."""
        content = np.frombuffer(json.dumps(message).encode(), np.uint8)
        self.delivered()
        targets = [rank for rank in range(self.size) if rank != self.rank] if ranks is None else ranks
        self._sends += [self._comm.Isend(content, dest=rank, tag=self._tag) for rank in targets]

    def delivered(self) -> bool:
        """Return whether all sends are complete. Not collective."""
        self._sends = [request for request in self._sends if not request.Test()]
        return not self._sends

    def receive(self) -> Iterator[tuple[int, Json]]:
        """Yield received messages, each with its sender. Not collective."""
        if isinstance(self._comm, tcp.Group):
            yield from ((rank, json.loads(content)) for rank, content in self._comm.arrivals(self._tag))
            return
        while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=self._tag, status=self._status):
            sender = self._status.Get_source()
            content = np.empty(self._status.Get_count(self._mpi.BYTE), np.uint8)
            self._comm.Recv(content, source=sender, tag=self._tag)
            yield sender, json.loads(content.tobytes())

    def barrier(self) -> Callable[[], bool]:
        """Enter a barrier, and return a function that tests whether all ranks have entered it. Collective."""
        return self._comm.Ibarrier().Test


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
            for _ in _TESTS:  # small calls are done by then
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
        for _ in _TESTS:
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
