"""The transports of device arrays over MPI: through pinned host memory, or on device pointers if MPI is GPU-aware.

Staged arrays are pipelined in chunks: the copy of a chunk off the device overlaps with the message of the previous one.
The host has to synchronise with the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collops.backend import CudaEvent, CudaStream, LocalArray
from collops.comm.agreement import MpiComm
from collops.comm.call import Call
from collops.comm.failure import Failures
from collops.comm.messages import Bounds, CallsByMessages
from collops.comm.mpi_transport import DeviceMpi, MpiTransport
from collops.comm.reductions import library_loses_nan
from collops.comm.transport import Message, Pending, Transport

CHUNK_BYTES = 4 << 20


class StagedTransport(Transport):
    """Device arrays over the transport `host`, which carries pinned host arrays."""

    name = "staged"
    by_host = True

    def __init__(self, host: Transport) -> None:
        import cupy

        self._cupy = cupy
        self._host = host

    @classmethod
    def connect(
        cls, control: MpiComm, host: MpiTransport, failures: Failures, nodes: Sequence[int], level: str
    ) -> StagedTransport:
        return cls(host)

    def run(self, call: Call) -> None:
        """Run the call on copies in host memory."""
        if call.kind in ("allreduce", "reduce", "bcast"):
            self._run_in_chunks(call)
        else:
            self._run_whole(call)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start a message for each chunk."""
        stream = self._cupy.cuda.get_current_stream()
        arriving = []
        for peer, array in receives:
            for chunk in _chunks(array):
                landing = self._pinned(chunk)
                arriving.append((self._host.start_exchange([], [(peer, landing)], tag), landing, chunk))
        leaving = []
        for peer, array in sends:
            for chunk in _chunks(array):
                copy = self._pinned(chunk)
                chunk.get(out=copy, stream=stream, blocking=False)
                leaving.append((peer, copy, stream.record()))
        sent = []
        for peer, copy, copied in leaving:
            copied.synchronize()
            sent.append(self._host.start_exchange([(peer, copy)], [], tag))
        return _StagedPending(arriving, sent, stream)

    def _pinned(self, like: LocalArray) -> np.ndarray:
        """Page-locked host memory for `like`, from CuPy's pool."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, like.nbytes))
        return np.frombuffer(memory, dtype=like.dtype, count=like.size).reshape(like.shape)

    def _run_in_chunks(self, call: Call) -> None:
        """Run the call on each chunk, while the next one is copied off the device."""
        stream = self._cupy.cuda.get_current_stream()
        sources = list(_chunks(call.source))
        targets = [None] * len(sources) if call.target is None else list(_chunks(call.target))
        buffers = [self._pinned(chunk) for chunk in sources[:2]]

        def fetch(number: int) -> tuple[np.ndarray, CudaEvent]:
            buffer = buffers[number % 2][: sources[number].size]
            sources[number].get(out=buffer, stream=stream, blocking=False)
            return buffer, stream.record()

        fetched = fetch(0)
        for number, landing in enumerate(targets):
            chunk, copied = fetched
            if number + 1 < len(sources):
                fetched = fetch(number + 1)
            copied.synchronize()
            self._host.run(call.with_arrays(chunk, None if landing is None else chunk))
            if landing is not None:
                landing.set(chunk, stream=stream)
        stream.synchronize()  # the pinned buffers go back to the pool now

    def _run_whole(self, call: Call) -> None:
        stream = self._cupy.cuda.get_current_stream()
        source = target = None
        if call.source is not None:
            source = self._pinned(call.source)
            call.source.get(out=source, stream=stream, blocking=False)
        if call.target is not None:
            target = self._pinned(call.target)
        stream.synchronize()
        self._host.run(call.with_arrays(source, target))
        if call.target is not None:
            call.target.set(target, stream=stream)
            stream.synchronize()


class GpuAwareTransport(Transport):
    """Device pointers given to MPI, once the current stream is idle.

    At level ``all`` MPI's collective calls are used where possible; all other calls consist of messages. For levels see
    :func:`collops.comm.mpi.gpu_awareness`.
    """

    name = "mpi"

    def __init__(self, direct: DeviceMpi, size: int, level: str) -> None:
        import cupy

        self._cupy = cupy
        self._direct = direct
        self.part, self.start_parts = direct.part, direct.start_parts
        self._by_messages = CallsByMessages(direct.rank, size, self)
        self.reductions = direct.reductions if level == "all" else self._by_messages.functions
        self._kinds = (
            ("allreduce", "reduce", "bcast", "allgather", "reduce_scatter", "alltoall", "alltoallv")
            if level == "all"
            else ()
        )

    @classmethod
    def connect(
        cls, control: MpiComm, host: MpiTransport, failures: Failures, nodes: Sequence[int], level: str
    ) -> GpuAwareTransport:
        device = DeviceMpi(control, failures)
        host.releases += device.releases
        return cls(device, control.size, level)

    def run(self, call: Call) -> None:
        """Run the call by MPI's own algorithm or by messages."""
        # Host code reduces half types and extremes, and cannot read the device.
        if call.kind not in self._kinds or self._needs_host_code(call):
            self._by_messages.run(call)
            return
        self._cupy.cuda.get_current_stream().synchronize()
        if call.kind == "bcast" and call.source is not call.target:
            array = call.target
            if self._direct.rank == call.root:  # MPI sends the source while the device copies it
                array[...] = call.source
                array = call.source
            call = call.with_arrays(array, array)
        self._direct.run(call)

    @staticmethod
    def _needs_host_code(call: Call) -> bool:
        dtype = call.array.dtype
        return library_loses_nan(call.op, dtype) or (dtype.itemsize == 2 and dtype.kind in "fV")

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start the messages on device pointers."""
        self._cupy.cuda.get_current_stream().synchronize()
        return self._direct.start_exchange(sends, receives, tag)

    def ready(self) -> int:
        """Return the current stream, once it is idle."""
        stream = self._cupy.cuda.get_current_stream()
        stream.synchronize()
        return stream.ptr

    def copy(
        self, target: LocalArray, target_bounds: Bounds, source: LocalArray, source_bounds: Bounds, stream: int
    ) -> None:
        """Copy elements of a contiguous array to another one, without views of them."""
        runtime, width = self._cupy.cuda.runtime, source.itemsize
        (to, _), (start, end) = target_bounds, source_bounds
        addresses = target.data.ptr + to * width, source.data.ptr + start * width
        runtime.memcpyAsync(*addresses, (end - start) * width, runtime.memcpyDefault, stream)


class _StagedPending(Pending):
    __slots__ = ("_arriving", "_sent", "_stream")

    def __init__(
        self, arriving: list[tuple[Pending, np.ndarray, LocalArray]], sent: list[Pending], stream: CudaStream
    ) -> None:
        self._arriving = arriving
        self._sent = sent
        self._stream = stream

    def wait(self) -> None:
        for pending, landing, chunk in self._arriving:
            pending.wait()
            chunk.set(landing, stream=self._stream)
        for pending in self._sent:
            pending.wait()
        self._stream.synchronize()  # the pinned buffers go back to the pool now


def _chunks(array: LocalArray) -> Iterator[LocalArray]:
    """Flat views of at most ``CHUNK_BYTES``; one empty view of an empty array, so that all ranks send as many."""
    flat = array.ravel()
    step = max(1, CHUNK_BYTES // array.dtype.itemsize)
    for start in range(0, max(1, flat.size), step):
        yield flat[start : start + step]
