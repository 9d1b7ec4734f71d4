"""Memory that the ranks of one host share: values are packed straight into the receiver's buffer. No message is sent.

Every rank has symmetric memory with its incoming buffers and with counters. A sender waits until its part of the buffer
has been read, packs into it, and raises a counter there; a receiver waits for the counter, unpacks, and raises a
counter at the sender.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.exchange.exchange import PLACES, Exchange

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.comm.symmetric import Symmetric

_LINE = 64  # bytes of a cache line: no two ranks write to the same one
_LOOKS = 100  # some microseconds


class SharedExchange(Exchange):
    """Memory shared by the ranks of one host, until :meth:`free` or until no rank refers to it. Collective.

    Buffers for and from ranks of other hosts are this rank's own.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        comm, pattern, dtype = self.comm, self.pattern, self.dtype
        near = comm.subgroup(comm.nodes)  # `comm` itself on one host
        ranks = [rank for rank in range(comm.size) if comm.nodes[rank] == comm.nodes[comm.rank]]
        self._numbers = number = {rank: place for place, rank in enumerate(ranks)}  # their ranks in `near`
        unit = self.width * dtype.itemsize
        # For each use (filled, read), place and rank a counter, then the incoming buffers.
        header = 2 * PLACES * near.size * _LINE
        most, starts = landings(self)
        buffer = -(-most * unit // _LINE) * _LINE
        self._memory = self._allocated(near, header + PLACES * buffer)

        def counters_of(rank: int) -> np.ndarray:
            lines = self._memory.peer(number[rank])[:header].view(np.int64)
            return lines.reshape(2, PLACES, near.size, _LINE // 8)[..., 0]

        def values_of(rank: int, place: int, start: int, points: int) -> np.ndarray:
            if rank not in number:
                return np.empty((points, *self.block), dtype)
            begin = header + place * buffer + start * unit
            memory = self._memory.peer(number[rank])[begin : begin + points * unit]
            return memory.view(dtype).reshape(points, *self.block)

        sends, me = pattern.sends.segments, number[comm.rank]
        self.pieces = tuple((start, stop) for _, start, stop in sends)
        mine = counters_of(comm.rank)
        receivers, senders = (
            [rank for rank, *_ in side.segments if rank in number] for side in (pattern.sends, pattern.receives)
        )
        self._receivers, self._senders = receivers, senders
        there = {rank: counters_of(rank) for rank in {*receivers, *senders}}
        # Views of one counter each, which cost least to read and write.
        self._read_here, self._filled_there, self._filled_here, self._read_there = [], [], [], []
        for place in range(PLACES):
            self.outgoing[place] = [
                values_of(rank, place, int(starts[rank]), stop - start) for rank, start, stop in sends
            ]
            self.incoming[place] = values_of(comm.rank, place, 0, pattern.receives.points.size)
            self._read_here.append([_counter(mine[1, place], number[rank]) for rank in receivers])
            self._filled_there.append([_counter(there[rank][0, place], me) for rank in receivers])
            self._filled_here.append([_counter(mine[0, place], number[rank]) for rank in senders])
            self._read_there.append([_counter(there[rank][1, place], me) for rank in senders])
        # These processors keep the order of stores and the order of loads; others need a fence.
        self._fence = _nothing if platform.machine().lower() in ("x86_64", "amd64") else self._memory.fence

    def _allocated(self, near: Communicator, size: int) -> Symmetric:
        """Return memory that the ranks of `near` share. Collective among all ranks."""
        return near.symmetric((size,), np.uint8, engine="numpy")

    def prepare(self, place: int, use: int) -> None:
        for counter in self._read_here[place]:
            if counter[0] < use - 1:
                self._until(counter, use - 1, self._read_here[place], self._receivers)

    def send(self, place: int, use: int) -> None:
        self._fence()
        for counter in self._filled_there[place]:
            counter[0] = use

    def receive(self, place: int, use: int) -> None:
        for counter in self._filled_here[place]:
            if counter[0] < use:
                self._until(counter, use, self._filled_here[place], self._senders)
        self._fence()

    def consume(self, place: int, use: int) -> None:
        self._fence()
        for counter in self._read_there[place]:
            counter[0] = use

    def _until(self, counter: memoryview, least: int, counters: list[memoryview], ranks: list[int]) -> None:
        """Return when one of the counters of `ranks` has reached `least`, most often before a wait with a deadline."""
        for _ in range(_LOOKS):
            if counter[0] >= least:
                return
        needs = [rank for rank, each in zip(ranks, counters, strict=True) if each is counter]
        self.comm.wait_until(lambda: counter[0] >= least, "star forest", needs)

    def free(self) -> None:
        self.outgoing, self.incoming = [], []
        self._read_here, self._filled_there, self._filled_here, self._read_there = [], [], [], []
        self._memory.free()


def landings(exchange: Exchange) -> tuple[int, np.ndarray]:
    """Return the most points that a rank receives, and where this rank's start in each rank's buffer. Collective."""
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
