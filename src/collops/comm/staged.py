"""The transport of device arrays through pinned host memory, for wires that cannot read the device.

Large arrays go in chunks, so that the copy of one chunk off the device overlaps with the message of the chunk before.
The host waits for the device here; there is no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from collops.comm.transport import Message, Pending, Transport

__all__ = ["CHUNK_BYTES", "StagedTransport"]

CHUNK_BYTES = 4 << 20


class StagedTransport(Transport):
    """Device arrays over a transport of host arrays.

    Parameters
    ----------
    host : Transport
        Carries the pinned host arrays.
    """

    name = "staged"

    def __init__(self, host: Transport) -> None:
        import cupy

        self._cupy = cupy
        self._host = host

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        self._in_chunks(source, target, lambda chunk: self._host.allreduce(chunk, chunk, op))

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        def reduce_chunk(chunk: Any) -> None:
            self._host.reduce(chunk, None if target is None else chunk, op, root)

        self._in_chunks(source, target, reduce_chunk)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        self._in_chunks(source, target, lambda chunk: self._host.bcast(chunk, chunk, root))

    def allgather(self, source: Any, target: Any) -> None:
        self._whole(source, target, self._host.allgather)

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        self._whole(source, target, lambda given, result: self._host.allgatherv(given, result, counts))

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        self._whole(source, target, lambda given, result: self._host.gatherv(given, result, counts, root))

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        self._whole(source, target, lambda given, result: self._host.scatterv(given, result, counts, root))

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        self._whole(source, target, lambda given, result: self._host.reduce_scatter(given, result, op))

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        self._whole(
            source,
            target,
            lambda given, result: self._host.alltoallv(given, result, send_counts, receive_counts),
        )

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
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

    def barrier(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()
        self._host.barrier()

    def _pinned(self, like: Any) -> np.ndarray:
        """Page-locked host memory for `like`, from CuPy's pool."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, like.nbytes))
        return np.frombuffer(memory, dtype=like.dtype, count=like.size).reshape(like.shape)

    def _in_chunks(self, source: Any, target: Any, message: Callable[[np.ndarray], None]) -> None:
        """Send chunk after chunk, the next one being copied off the device meanwhile."""
        stream = self._cupy.cuda.get_current_stream()
        sources = list(_chunks(source))
        targets = [None] * len(sources) if target is None else list(_chunks(target))
        buffers = [self._pinned(chunk) for chunk in sources[:2]]

        def fetch(number: int) -> tuple[np.ndarray, Any]:
            buffer = buffers[number % 2][: sources[number].size]
            sources[number].get(out=buffer, stream=stream, blocking=False)
            return buffer, stream.record()

        fetched = fetch(0)
        for number, landing in enumerate(targets):
            chunk, copied = fetched
            if number + 1 < len(sources):
                fetched = fetch(number + 1)
            copied.synchronize()
            message(chunk)
            if landing is not None:
                landing.set(chunk, stream=stream)
        stream.synchronize()  # the pinned buffers go back to the pool now

    def _whole(self, source: Any, target: Any, message: Callable[[Any, Any], None]) -> None:
        stream = self._cupy.cuda.get_current_stream()
        given = result = None
        if source is not None:
            given = self._pinned(source)
            source.get(out=given, stream=stream, blocking=False)
        if target is not None:
            result = self._pinned(target)
        stream.synchronize()
        message(given, result)
        if target is not None:
            target.set(result, stream=stream)
            stream.synchronize()


class _StagedPending(Pending):
    __slots__ = ("_arriving", "_sent", "_stream")

    def __init__(self, arriving: list[tuple[Pending, np.ndarray, Any]], sent: list[Pending], stream: Any) -> None:
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


def _chunks(array: Any) -> Iterator[Any]:
    """Flat views of at most ``CHUNK_BYTES``; one empty view of an empty array, so that every rank sends as often."""
    flat = array.ravel()
    step = max(1, CHUNK_BYTES // array.dtype.itemsize)
    for start in range(0, max(1, flat.size), step):
        yield flat[start : start + step]
