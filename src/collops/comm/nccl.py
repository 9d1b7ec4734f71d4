"""NCCL (and RCCL on AMD), used only by this module: bindings, the transport, and NCCL for programs of XLA.

The transport enqueues every call on the caller's stream, and the host never waits. It uses NVIDIA's nccl4py if
installed, else CuPy's binding, by their low-level functions with raw addresses, which have a third of the host overhead
of the high-level ones. Calls that NCCL lacks are built from others: 16-bit integers, logical operations, and extrema of
floating numbers, in which NCCL loses NaN, are reduced as integers, complex numbers as pairs of reals, unequal gathers
as grouped sends. For short sums, all-to-alls and exchanges between GPUs of one host, peer-to-peer kernels are faster
than NCCL: :mod:`collops.comm.peer_stores`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from collops.backend import CudaStream, LocalArray
from collops.comm.agreement import MpiComm, gathered_values
from collops.comm.call import KINDS, Call
from collops.comm.failure import at_abort
from collops.comm.own_device import own_stream
from collops.comm.reductions import as_integers, library_loses_nan, nccl_reduction
from collops.comm.side_stream import SideStream
from collops.comm.transport import KnownExchange, Message, Pending, Transport
from collops.errors import CommunicationError, TransportError

if TYPE_CHECKING:
    from collops.comm.device_launch import Launch
    from collops.comm.failure import Failures
    from collops.comm.mpi_transport import MpiTransport

__all__ = ["NO_P2P", "NcclLibrary", "available_binding", "load_binding", "p2p_is_off"]

NcclHandle: TypeAlias = Any
"""A communicator or a window of the binding."""

_BYTE, _SUM = 1, 0  # ncclUint8, ncclSum
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
NO_P2P = "NCCL_P2P_DISABLE"  # which NCCL reads when the ranks connect
_WINDOWS, _DEVICE_FUNCTIONS = (2, 27), (2, 28)  # minimum versions
_IN_PROGRESS = 7  # ncclInProgress
_UNIQUE_ID_BYTES = 128
_ENQUEUED = Pending()


class Nccl4py:
    """NVIDIA's binding, low-level module."""

    name = "nccl4py"

    def __init__(self) -> None:
        from nccl.bindings import nccl as bindings  # pyright: ignore[reportAttributeAccessIssue]

        self._bindings = bindings
        self.all_reduce = bindings.all_reduce
        self.reduce = bindings.reduce
        self.broadcast = bindings.broadcast
        self.all_gather = bindings.all_gather
        self.reduce_scatter = bindings.reduce_scatter
        self.send = bindings.send
        self.receive = bindings.recv
        self.group_start = bindings.group_start
        self.group_end = bindings.group_end
        self.abort = bindings.comm_abort
        self.destroy = bindings.comm_destroy
        self.error: type[Exception] = bindings.NCCLError
        self.async_error = bindings.comm_get_async_error
        self.allocate = bindings.mem_alloc
        self.deallocate = bindings.mem_free
        self.register = bindings.comm_window_register
        self.deregister = bindings.comm_window_deregister

    def version(self) -> str:
        """Return the version of the NCCL library in use."""
        return _readable(self._bindings.get_version())

    def unique_id(self) -> bytes:
        """Create the unique ID with which the ranks of a new communicator connect."""
        return bytes(self._bindings.get_unique_id())

    def connect(self, size: int, rank: int, unique_id: bytes) -> NcclHandle:
        """Join a communicator. Collective."""
        return self._bindings.comm_init_rank_scalable(size, rank, 1, bytearray(unique_id), 0)


class NcclOfCupy:
    """CuPy's binding, from CuPy 14 on, with the calls in nccl4py's form."""

    name = "cupy"

    def __init__(self) -> None:
        from cupy.cuda import nccl

        self._nccl = nccl
        self.all_reduce = _method("allReduce")
        self.reduce = _method("reduce")
        self.broadcast = _method("broadcast")
        self.all_gather = _method("allGather")
        self.reduce_scatter = _method("reduceScatter")
        self.send = _method("send")
        self.receive = _method("recv")
        self.group_start = nccl.groupStart
        self.group_end = nccl.groupEnd
        self.error: type[Exception] = nccl.NcclError

    def version(self) -> str:
        """Return the version of the NCCL (or RCCL) library in use."""
        return _readable(self._nccl.get_version())

    def unique_id(self) -> bytes:
        """Create the unique ID with which the ranks of a new communicator connect."""
        return self._nccl.get_unique_id()

    def connect(self, size: int, rank: int, unique_id: bytes) -> NcclHandle:
        """Join a communicator. Collective."""
        return self._nccl.NcclCommunicator(size, unique_id, rank)

    def abort(self, comm: NcclHandle) -> None:
        comm.abort()

    def destroy(self, comm: NcclHandle) -> None:
        comm.destroy()

    def async_error(self, comm: NcclHandle) -> int:
        """Return 0; raise asynchronous errors of the device or the network."""
        comm.check_async_error()
        return 0


def _method(name: str) -> Callable[..., None]:
    """Return a method of CuPy's communicators as a function with the communicator as argument before the stream."""

    def call(*arguments: object) -> None:
        *leading, comm, stream = arguments
        getattr(comm, name)(*leading, stream)

    return call


def available_binding() -> str | None:
    """Return the name of the binding that :func:`load_binding` would load, without loading it."""
    if importlib.util.find_spec("nccl") is not None:
        return Nccl4py.name
    if importlib.util.find_spec("cupy_backends") is not None:
        return NcclOfCupy.name
    return None


def load_binding() -> Nccl4py | NcclOfCupy:
    """Load the binding of this machine; raise `TransportError` if none is installed or its library does not load."""
    name = available_binding()
    if name is None:
        raise TransportError("NCCL needs the package nccl4py or CuPy; install collops[cuda13]")
    try:
        binding = Nccl4py() if name == Nccl4py.name else NcclOfCupy()
        binding.version()
    except (ImportError, OSError, RuntimeError) as error:
        raise TransportError(f"the NCCL binding of {name} does not load: {error}") from error
    return binding


def p2p_is_off() -> bool:
    """Return whether ``NCCL_P2P_DISABLE`` forbids this process to access other GPUs by NCCL."""
    return os.environ.get(NO_P2P, "0") != "0"


def missing_for_windows(required: tuple[int, int] = _WINDOWS) -> str | None:
    """Return what this machine lacks for windows of NCCL, as the end of a sentence, or ``None``. Not collective.

    `first` is the version of NCCL that is needed.
    """
    if available_binding() != Nccl4py.name:
        return "needs nccl4py: install collops[cuda13]"
    if p2p_is_off():
        return f"needs access to the memory of other GPUs, which {NO_P2P} turns off"
    version = nccl_version()
    if tuple(map(int, version.split("."))) < required:
        return f"needs NCCL {required[0]}.{required[1]} or newer, not {version}"
    return None


def missing_for_device_functions() -> str | None:
    """Return the result of :func:`missing_for_windows` for kernels that call NCCL, without a search for headers."""
    return missing_for_windows(_DEVICE_FUNCTIONS)


def nccl_version() -> str:
    """Return the version of the NCCL library in use; raise `TransportError` if there is none."""
    return load_binding().version()


def _readable(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


class NcclTransport(Transport):
    """NCCL between ranks with one GPU each; `unique_id` is from ``binding.unique_id()`` of one rank.

    If `short` is set, on all ranks alike, it runs short calls.
    """

    name = "nccl"
    on_stream = True
    by_address = True

    def __init__(self, binding: Nccl4py | NcclOfCupy, size: int, rank: int, unique_id: bytes) -> None:
        import cupy

        self._cupy = cupy
        self._stream = own_stream()
        self.binding = binding
        self._size = size
        self._rank = rank
        self._comm = binding.connect(size, rank, unique_id)
        self._error = binding.error
        self._windows: Any = binding
        self._reductions: dict[tuple[np.dtype, str], tuple[int, int, int]] = {}
        self.reductions = self._reductions
        self._token = cupy.zeros(1, cupy.uint8)
        self._grouped = False
        self._in_use: list[object] = []  # arrays that NCCL reads when a group is launched
        self._conversions: list[tuple[CudaStream, Callable[[], None]]] = []
        # Created now, since streams cannot be created during graph capture.
        self._side = SideStream()
        _connected.add(self)

    @classmethod
    def connect(
        cls, control: MpiComm, host: MpiTransport, failures: Failures, nodes: Sequence[int], level: str
    ) -> NcclTransport:
        from collops.comm.peer_stores import connected

        gathered_values(control.allgather, lambda: load_binding().name)
        binding = load_binding()
        unique_id = control.allgather(binding.unique_id().hex() if control.rank == 0 else "")[0]
        device = cls(binding, control.size, control.rank, bytes.fromhex(unique_id))
        host.releases.append(device.release)
        device.short, where = connected(control, nodes)
        if device.short is not None:
            host.releases.append(partial(device.short.release, control))
        device.reasons = (f"short calls on devices: {where}",)
        return device

    def sends_short(self, nbytes: int) -> bool:
        return self.short is not None and nbytes <= self.short.message_limit

    @property
    def handle(self) -> NcclHandle:
        """The binding's communicator, for programs that call NCCL themselves."""
        return self._comm

    def run(self, call: Call) -> None:
        """Enqueue the call on the current stream."""
        if self._grouped:
            self._in_use.append(call)
        try:
            if call.op is not None:
                call.resolved = call.resolved or self._reduction(call.source.dtype, call.op)
                if call.resolved is None:
                    self._run_in_integers(call)
                    return
            _ENQUEUE[call.kind](self, call, self._stream().ptr)
        except self._error as error:
            self._failed(error)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Enqueue all messages as one launch. NCCL has no tags: messages between two ranks match by their order.

        These are messages of users, who may send in two calls what another rank receives in one: peer-to-peer kernels
        are not used.
        """
        if self._grouped:
            self._in_use.append(sends)
        leaving, arriving = (
            [(peer, array.data.ptr, array.nbytes) for peer, array in part if array.size] for part in (sends, receives)
        )
        try:
            self._enqueue(leaving, arriving, self._stream().ptr)
        except self._error as error:
            self._failed(error)
        return _ENQUEUED

    def start_addresses(
        self,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
        on_side_stream: bool,
        known: KnownExchange | None,
    ) -> Pending:
        """Enqueue messages (rank, address, number of bytes) on the current stream, or on a side stream.

        Two ranks start their messages in matching calls: the n-th call with messages between them is the same on both.
        """
        if not sends and not receives:
            return _ENQUEUED
        stream = self._side.begin(self._stream()) if on_side_stream else self._stream()
        try:
            if known is not None and self.short is not None and not self._grouped:
                sends, receives = self.short.exchange(sends, receives, stream, known)
            if sends or receives:
                self._enqueue(sends, receives, stream.ptr)
        except self._error as error:
            self._failed(error)
        return self._side.end() if on_side_stream else _ENQUEUED

    def start_on_side_stream(self, launch: Launch, addresses: Sequence[int]) -> Pending:
        """Launch a kernel on the side stream, ordered after the work so far on the current stream."""
        launch.launch_at(addresses, self._side.begin(self._stream()).ptr)
        return self._side.end()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Launch the calls made inside as one."""
        self.binding.group_start()
        self._grouped = True
        try:
            yield
        finally:
            self._grouped = False
            conversions, self._conversions = self._conversions, []
            self.binding.group_end()
            self._in_use.clear()
        for stream, convert in conversions:
            with stream:
                convert()

    # Windows need nccl4py, which missing_for_windows checks.

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory that can be a window; raise `MemoryError` if the allocation fails."""
        try:
            return self._windows.allocate(nbytes)
        except self._error as error:
            raise MemoryError(f"NCCL cannot allocate {nbytes} bytes: {error}") from error

    def new_window(self, address: int, nbytes: int) -> NcclHandle:
        """Register memory from :meth:`allocate` as a window of all ranks. Collective.

        Kernels take the ``handle`` of the result as ``ncclWindow_t``. Raises `TransportError`, and frees the memory, if
        NCCL cannot create a window.
        """
        window = self._windows.register(self._comm, address, nbytes, _SYMMETRIC)
        if not window.handle:
            self._windows.deallocate(address)
            raise TransportError("NCCL cannot create windows: the GPUs cannot address each other's memory")
        return window

    def free_window(self, window: NcclHandle, address: int) -> None:
        """Free a window and its memory, which must no longer be used on any rank."""
        self._windows.deregister(self._comm, window)
        self._windows.deallocate(address)

    def inspect(self) -> None:
        """Raise asynchronous errors of the device or the network."""
        try:
            code = self.binding.async_error(self._comm)
        except self._error as error:
            self._failed(error)
        if code not in (0, _IN_PROGRESS):
            self._failed(f"error {code}")

    def abort(self) -> None:
        """Abort pending calls, so that a device does not wait for a rank that has exited. No call can follow."""
        if self.short is not None:
            self.short.abort()
            self.short = None
        abort, comm = self.binding.abort, self._comm
        self.binding = self._windows = _ShutDown()  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(self._error):  # the original error is raised instead
            abort(comm)

    def release(self) -> None:
        """Destroy the communicator, which must no longer be used on any rank. Collective."""
        if self in _connected and not isinstance(self.binding, _ShutDown):
            self.binding.destroy(self._comm)
        _connected.discard(self)

    def _allreduce(self, call: Call, stream: int) -> None:
        datatype, operation, width = call.resolved
        source, short = call.source, self.short
        if (
            short is not None
            and operation == _SUM
            and not self._grouped
            and short.add_up(source, call.target, datatype, stream)
        ):
            return
        address = source.data.ptr
        target = address if call.target is source else call.target.data.ptr
        self.binding.all_reduce(address, target, source.size * width, datatype, operation, self._comm, stream)

    def _reduce(self, call: Call, stream: int) -> None:
        datatype, operation, width = call.resolved
        source, target = call.source.data.ptr, 0 if call.target is None else call.target.data.ptr
        count = call.source.size * width
        self.binding.reduce(source, target, count, datatype, operation, call.root, self._comm, stream)

    def _reduce_scatter(self, call: Call, stream: int) -> None:
        datatype, operation, width = call.resolved
        source, target = call.source.data.ptr, call.target.data.ptr
        self.binding.reduce_scatter(source, target, call.target.size * width, datatype, operation, self._comm, stream)

    def _bcast(self, call: Call, stream: int) -> None:
        source, target = call.source, call.target
        address = source.data.ptr
        result = address if target is source else target.data.ptr
        self.binding.broadcast(address, result, source.nbytes, _BYTE, call.root, self._comm, stream)

    def _allgather(self, call: Call, stream: int) -> None:
        source, target = call.source.data.ptr, call.target.data.ptr
        self.binding.all_gather(source, target, call.source.nbytes, _BYTE, self._comm, stream)

    def _allgatherv(self, call: Call, stream: int) -> None:
        if min(call.counts) == max(call.counts):
            self._allgather(call, stream)
            return
        self._enqueue(self._to_all(call.source), _pieces(call.target, call.counts), stream)

    def _gatherv(self, call: Call, stream: int) -> None:
        leaving = [message for message in self._to_all(call.source) if message[0] == call.root]
        self._enqueue(leaving, [] if call.target is None else _pieces(call.target, call.counts), stream)

    def _scatterv(self, call: Call, stream: int) -> None:
        target = call.target
        arriving = [(call.root, target.data.ptr, target.nbytes)] if target.size else []
        self._enqueue([] if call.source is None else _pieces(call.source, call.counts), arriving, stream)

    _gather, _scatter = _gatherv, _scatterv

    def _alltoallv(self, call: Call, stream: int) -> None:
        self._enqueue(_pieces(call.source, call.counts), _pieces(call.target, call.receive_counts), stream)

    def _alltoall(self, call: Call, stream: int) -> None:
        width = call.source.nbytes // self._size
        if not width:
            return
        if self.short is not None and not self._grouped and self.short.alltoall(call.source, call.target, stream):
            return
        source, target, binding, comm = call.source.data.ptr, call.target.data.ptr, self.binding, self._comm
        binding.group_start()
        try:
            for peer in range(self._size):
                binding.receive(target + peer * width, width, _BYTE, peer, comm, stream)
                binding.send(source + peer * width, width, _BYTE, peer, comm, stream)
        finally:
            binding.group_end()

    def _barrier(self, call: Call, stream: int) -> None:
        self.run(Call("allreduce", self._token, self._token, "max"))

    def _to_all(self, source: LocalArray) -> list[tuple[int, int, int]]:
        """Return a message of `source` to every rank, this one included; none if it is empty."""
        return [(rank, source.data.ptr, source.nbytes) for rank in range(self._size) if source.size]

    def _enqueue(
        self, sends: Sequence[tuple[int, int, int]], receives: Sequence[tuple[int, int, int]], stream: int
    ) -> None:
        """Enqueue messages (rank, address, number of bytes) as one launch."""
        if not sends and not receives:
            return
        binding, comm = self.binding, self._comm
        binding.group_start()
        try:
            for peer, address, nbytes in receives:
                binding.receive(address, nbytes, _BYTE, peer, comm, stream)
            for peer, address, nbytes in sends:
                binding.send(address, nbytes, _BYTE, peer, comm, stream)
        finally:
            binding.group_end()

    def _reduction(self, dtype: np.dtype, op: str) -> tuple[int, int, int] | None:
        """Return :func:`~collops.comm.reductions.nccl_reduction`, cached for each dtype and operation.

        ``None`` also if NCCL would lose NaN.
        """
        reduction = self._reductions.get((dtype, op))
        if reduction is None and not library_loses_nan(op, dtype):
            reduction = nccl_reduction(op, dtype)
            if reduction is not None:
                self._reductions[dtype, op] = reduction
        return reduction

    def _run_in_integers(self, call: Call) -> None:
        """Reduce elements as integers if NCCL lacks their type or the operation, or loses NaN.

        In a group, the result is converted after the launch of the group.
        """
        source, target = call.source, call.target
        if self._size == 1:  # nothing to reduce, as in other transports
            if target is not source:
                target[...] = source.reshape(target.shape)
            return
        integers, op, converted = as_integers(source, call.op or "", self._cupy)
        result: LocalArray = None if target is None else self._cupy.empty(target.shape, integers.dtype)
        self.run(call.with_arrays(integers, result, op))

        def convert() -> None:
            if target is not None:
                target[...] = converted(result)

        if self._grouped:
            self._conversions.append((self._stream(), convert))
        else:
            convert()

    def _failed(self, error: object) -> NoReturn:
        """Raise an error that NCCL reports for this call, or for earlier ones on the device or in the network."""
        raise CommunicationError(f"NCCL reports on rank {self._rank} of {self._size}: {error}") from (
            error if isinstance(error, Exception) else None
        )


_ENQUEUE = {kind: getattr(NcclTransport, f"_{kind}") for kind in KINDS}


class _ShutDown:
    """Replaces the binding of an aborted communicator."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        def fail(*_: object) -> NoReturn:
            raise CommunicationError("NCCL was shut down after a wait had passed its deadline: the transport is closed")

        return fail


_connected: weakref.WeakSet[NcclTransport] = weakref.WeakSet()


def _abort_all() -> None:
    for transport in list(_connected):
        _connected.discard(transport)
        transport.abort()


at_abort(_abort_all)


def _pieces(array: LocalArray, counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return rank, address and bytes of the consecutive pieces of a contiguous array that are not empty."""
    address, width = array.data.ptr, array.itemsize
    ends = accumulate(counts, initial=0)
    return [
        (rank, address + start * width, (stop - start) * width)
        for rank, (start, stop) in enumerate(pairwise(ends))
        if stop > start
    ]


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * _UNIQUE_ID_BYTES),)


class NcclLibrary:
    """NCCL by ctypes, for programs of XLA, with separate communicators, and possibly several GPUs per process.

    XLA's stream and the streams of other programs must not share a communicator. Neither a toolkit nor another package
    is needed. Loads the first loadable library of `paths`; raises `TransportError` if there is none.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        # By default NCCL connects ranks at the first call that needs it, inside a running program, and exchanges
        # addresses during graph capture, although another rank may have nothing to capture.
        os.environ.setdefault("NCCL_RUNTIME_CONNECT", "0")
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        reasons = []
        for path in paths:
            try:
                self._library = ctypes.CDLL(path)
                break
            except OSError as error:
                reasons.append(str(error))
        else:
            raise TransportError(f"collops.jax needs NCCL on GPUs, which cannot be loaded: {'; '.join(reasons)}")
        self._library.ncclGetErrorString.restype = ctypes.c_char_p

    def addresses(self, functions: Sequence[str]) -> list[int]:
        """Return the addresses of functions."""
        return [ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0 for name in functions]

    def unique_id(self) -> bytes:
        """Create the unique ID with which the ranks of a new communicator connect."""
        identity = _UniqueId()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")
        return bytes(identity)

    def connect(self, size: int, rank: int, unique_id: bytes) -> int:
        """Join this thread's current GPU to a communicator of ranks with a GPU each; return its address. Collective."""
        comm = ctypes.c_void_p()
        identity = _UniqueId.from_buffer_copy(unique_id)
        code = self._library.ncclCommInitRank(ctypes.byref(comm), ctypes.c_int(size), identity, ctypes.c_int(rank))
        self._check(code, "ncclCommInitRank")
        return comm.value or 0

    def connect_devices(self, devices: Sequence[int]) -> list[int]:
        """Connect GPUs of this process; return the addresses of their communicators."""
        count = len(devices)
        comms = (ctypes.c_void_p * count)()
        code = self._library.ncclCommInitAll(comms, ctypes.c_int(count), (ctypes.c_int * count)(*devices))
        self._check(code, "ncclCommInitAll")
        return [comm or 0 for comm in comms]

    def connect_pairs(self, comm: int, rank: int, size: int, scratch: int) -> None:
        """Send a byte between all pairs of ranks, and reduce one. Collective; does not wait for the device.

        NCCL connects two ranks at their first message, which involves both hosts. During other work this could
        deadlock, if one host delays a launch that the other's device waits for; here nothing else is in flight.
        `scratch` is the address of ``2 * size`` bytes on the device.
        """
        library, joined = self._library, ctypes.c_void_p(comm)
        stream, count = ctypes.c_void_p(), ctypes.c_size_t(1)
        self._check(library.ncclGroupStart(), "ncclGroupStart")
        codes = []
        for peer in (peer for peer in range(size) if peer != rank):
            source, target = ctypes.c_void_p(scratch + peer), ctypes.c_void_p(scratch + size + peer)
            codes.append(library.ncclSend(source, count, _BYTE, peer, joined, stream))
            codes.append(library.ncclRecv(target, count, _BYTE, peer, joined, stream))
        codes.append(library.ncclGroupEnd())
        buffer = ctypes.c_void_p(scratch)
        codes.append(library.ncclAllReduce(buffer, buffer, count, _BYTE, _SUM, joined, stream))
        for code in codes:
            self._check(code, "connecting all ranks")

    def _check(self, code: int, call: str) -> None:
        if code:
            text = self._library.ncclGetErrorString(ctypes.c_int(code)).decode()
            raise TransportError(f"{call} reports: {text}")
