"""Shared memory of the ranks of one host: values are packed directly into the receiver's buffer, without messages.

Every rank has a part of symmetric memory with its incoming buffers and with counters. A sender waits until its part of
the buffer has been read, packs into it, and increments a counter of the receiver. A receiver waits for the counter,
unpacks, and increments a counter of the sender.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.comm.parts import Part
from collops.exchange.exchange import SLOTS, Exchange

if TYPE_CHECKING:
    from collops.comm import Communicator

_LINE = 64  # bytes of a cache line: no two ranks write to the same one
_POLLS = 100  # some microseconds


class SharedExchange(Exchange):
    """Shared memory of the ranks of one host, held until :meth:`free` or until no rank refers to it. Collective.

    Buffers of messages to and from other hosts are private to this rank.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        comm, pattern, dtype = self.comm, self.pattern, self.dtype
        near = comm.subgroup(comm.nodes)  # `comm` itself on one host
        ranks = [rank for rank in range(comm.size) if comm.nodes[rank] == comm.nodes[comm.rank]]
        self._near_ranks = near_ranks = {rank: slot for slot, rank in enumerate(ranks)}  # in the communicator `near`
        unit = self.width * dtype.itemsize
        # For each use (filled, read), slot and rank a counter, then the incoming buffers.
        header = 2 * SLOTS * near.size * _LINE
        most, starts = landings(self)
        buffer = -(-most * unit // _LINE) * _LINE
        self._memory = self._allocated(near, header + SLOTS * buffer)

        def counters_of(rank: int) -> np.ndarray:
            lines = self._memory.peer(near_ranks[rank])[:header].view(np.int64)
            return lines.reshape(2, SLOTS, near.size, _LINE // 8)[..., 0]

        def values_of(rank: int, slot: int, start: int, points: int) -> np.ndarray:
            if rank not in near_ranks:
                return np.empty((points, *self.block), dtype)
            begin = header + slot * buffer + start * unit
            memory = self._memory.peer(near_ranks[rank])[begin : begin + points * unit]
            return memory.view(dtype).reshape(points, *self.block)

        sends, me = pattern.sends.segments, near_ranks[comm.rank]
        self.pieces = tuple((start, stop) for _, start, stop in sends)
        own_counters = counters_of(comm.rank)
        receivers, senders = (
            [rank for rank, *_ in side.segments if rank in near_ranks] for side in (pattern.sends, pattern.receives)
        )
        self._receivers, self._senders = receivers, senders
        peer_counters = {rank: counters_of(rank) for rank in {*receivers, *senders}}
        # Memoryviews of single counters, which are the fastest to read and write.
        self._read_here, self._filled_there, self._filled_here, self._read_there = [], [], [], []
        for slot in range(SLOTS):
            self.outgoing[slot] = [
                values_of(rank, slot, int(starts[rank]), stop - start) for rank, start, stop in sends
            ]
            self.incoming[slot] = values_of(comm.rank, slot, 0, pattern.receives.points.size)
            self._read_here.append([_counter(own_counters[1, slot], near_ranks[rank]) for rank in receivers])
            self._filled_there.append([_counter(peer_counters[rank][0, slot], me) for rank in receivers])
            self._filled_here.append([_counter(own_counters[0, slot], near_ranks[rank]) for rank in senders])
            self._read_there.append([_counter(peer_counters[rank][1, slot], me) for rank in senders])
        # x86 does not reorder stores or loads; other processors need a fence.
        self._fence = _nothing if platform.machine().lower() in ("x86_64", "amd64") else self._memory.fence

    def _allocated(self, near: Communicator, size: int) -> Part:
        """Return memory that the ranks of `near` share. Collective among all ranks."""
        return Part(near, size, "numpy")

    def prepare(self, slot: int, use: int) -> None:
        for counter in self._read_here[slot]:
            if counter[0] < use - 1:
                self._until(counter, use - 1, self._read_here[slot], self._receivers)

    def send(self, slot: int, use: int) -> None:
        self._fence()
        for counter in self._filled_there[slot]:
            counter[0] = use

    def receive(self, slot: int, use: int) -> None:
        for counter in self._filled_here[slot]:
            if counter[0] < use:
                self._until(counter, use, self._filled_here[slot], self._senders)
        self._fence()

    def consume(self, slot: int, use: int) -> None:
        self._fence()
        for counter in self._read_there[slot]:
            counter[0] = use

    def _until(self, counter: memoryview, least: int, counters: list[memoryview], ranks: list[int]) -> None:
        """Return when one of the counters of `ranks` has reached `least`: poll briefly, then wait with a deadline."""
        for _ in range(_POLLS):
            if counter[0] >= least:
                return
        needs = [rank for rank, awaited in zip(ranks, counters, strict=True) if awaited is counter]
        self.comm.wait_until(lambda: counter[0] >= least, "star forest", needs)

    def free(self) -> None:
        self.outgoing, self.incoming = [], []
        self._read_here, self._filled_there, self._filled_here, self._read_there = [], [], [], []
        self._memory.free()


def landings(exchange: Exchange) -> tuple[int, np.ndarray]:
    """Return the maximum number of points that a rank receives, and the offsets of this rank's in each rank's buffer.

    Collective.
    """
    comm, receives = exchange.comm, exchange.pattern.receives
    most = comm.allreduce(np.array(receives.points.size, np.int64), "max")
    starts = np.zeros(comm.size, np.int64)
    for rank, start, _ in receives.segments:
        starts[rank] = start
    return int(most), comm.alltoall(starts)


def _nothing() -> None:
    pass


def _counter(counters: np.ndarray, rank: int) -> memoryview:
    return memoryview(counters[rank : rank + 1])  # pyright: ignore[reportArgumentType] - it is a buffer
