"""The wire of memory that the ranks of one host share: values are packed straight into the receiver's buffer.

Every rank has a window with its incoming buffers and with counters. Who sends waits until its part of the buffer has
been read, packs into it, and raises a counter there; who receives waits for the counter, unpacks, and raises one at the
sender. No message is sent.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import TransportError
from collops.graph.wires.mpi_parts import messages_of, mpi
from collops.graph.wires.ring import PLACES, RingChannel
from collops.graph.wires.wire import Channel, Routes, Wire, wait_for

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["SharedWire"]

_LINE = 64  # bytes of a cache line: no two ranks write to one
_LOOKS = 100  # some microseconds


class SharedWire(Wire):
    """A shared window for each channel; given back by ``free`` only.

    Parameters
    ----------
    comm : Communicator
        The ranks, all on one host.

    Raises
    ------
    TransportError
        If they are not.
    """

    def __init__(self, comm: Communicator) -> None:
        comm.check(
            None
            if comm.local_size == comm.size
            else TransportError("the wire 'shared' joins ranks of one host, and these are on several")
        )
        super().__init__(comm)
        self._messages = messages_of(comm)

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel."""
        return _Channel(self._comm, self._messages, routes, block, dtype)


class _Window:
    """One rank's window: where its parts are."""

    def __init__(self, memory: Any, ranks: int, block: tuple[int, ...], dtype: np.dtype) -> None:
        lines = np.frombuffer(memory, np.int64, ranks * (1 + 2 * PLACES) * _LINE // 8).reshape(-1, ranks, _LINE // 8)
        self.table = lines[0, :, 0]  # by sender: where its segment starts, in points
        self.arrived = lines[1 : 1 + PLACES, :, 0]  # by place and sender
        self.consumed = lines[1 + PLACES :, :, 0]  # by place and receiver of what this rank sends
        self.points = lines[0, 0, 1:2]
        self._rest = memory[lines.nbytes :]
        self._block = block
        self._dtype = dtype

    def buffers(self) -> list[np.ndarray]:
        """Return the incoming buffers by place."""
        points = int(self.points[0])
        shape = (points, *self._block)
        bytes_each = _room(points, self._block, self._dtype)
        return [np.ndarray(shape, self._dtype, self._rest, place * bytes_each) for place in range(PLACES)]


class _Channel(RingChannel):
    def __init__(
        self, comm: Communicator, messages: Any, routes: Routes, block: tuple[int, ...], dtype: np.dtype
    ) -> None:
        super().__init__()
        self._comm = comm
        self.pieces = tuple((segment.start, segment.stop) for segment in routes.sends)
        header = comm.size * (1 + 2 * PLACES) * _LINE
        room = PLACES * _room(routes.arriving, block, dtype)
        self._window: Any = mpi().Win.Allocate_shared(header + room, 1, comm=messages)
        self._window.Lock_all(mpi().MODE_NOCHECK)
        # Processors of this kind keep the order of stores, and that of loads; others need to be told to.
        self._sync: Any = _nothing if platform.machine().lower() in ("x86_64", "amd64") else self._window.Sync

        def window_of(rank: int) -> _Window:
            return _Window(self._window.Shared_query(rank)[0], comm.size, block, dtype)

        mine = window_of(comm.rank)
        mine.arrived[...] = 0
        mine.consumed[...] = 0
        mine.points[0] = routes.arriving
        for segment in routes.receives:
            mine.table[segment.rank] = segment.start
        self._window.Sync()
        comm.barrier()
        self._window.Sync()
        self.incoming = list(mine.buffers())
        me = comm.rank
        targets = [(segment, window_of(segment.rank)) for segment in routes.sends]
        starts = [int(window.table[me]) for _, window in targets]
        for place in range(PLACES):
            self.outgoing.append(
                [
                    window.buffers()[place][start : start + segment.stop - segment.start]
                    for (segment, window), start in zip(targets, starts, strict=True)
                ]
            )
        # Views of one counter each: reading and writing them costs least.
        receivers = [segment.rank for segment in routes.sends]
        senders = [segment.rank for segment in routes.receives]
        self._read = [[_counter(mine.consumed, place, rank) for rank in receivers] for place in range(PLACES)]
        self._tell = [[_counter(window.arrived, place, me) for _, window in targets] for place in range(PLACES)]
        self._come = [[_counter(mine.arrived, place, rank) for rank in senders] for place in range(PLACES)]
        sources = [window_of(rank) for rank in senders]
        self._done = [[_counter(window.consumed, place, me) for window in sources] for place in range(PLACES)]

    def prepare(self, place: int, use: int) -> None:
        for counter in self._read[place]:
            if counter[0] < use - 1:
                self._until(counter, use - 1)

    def send(self, place: int, use: int) -> None:
        self._sync()
        for counter in self._tell[place]:
            counter[0] = use

    def receive(self, place: int, use: int) -> None:
        for counter in self._come[place]:
            if counter[0] < use:
                self._until(counter, use)
        self._sync()

    def consume(self, place: int, use: int) -> None:
        self._sync()
        for counter in self._done[place]:
            counter[0] = use

    def _until(self, counter: memoryview, least: int) -> None:
        """Return when a counter has come so far; most often that is before a wait with a deadline would have begun."""
        for _ in range(_LOOKS):
            if counter[0] >= least:
                return
        wait_for(self._comm, lambda: counter[0] >= least)

    def free(self) -> None:
        self._comm.barrier()  # nobody writes any more
        self.outgoing, self.incoming = [], []
        self._read, self._tell, self._come, self._done = [], [], [], []
        self._window.Unlock_all()
        self._window.Free()


def _nothing() -> None:
    pass


def _counter(counters: np.ndarray, place: int, rank: int) -> memoryview:
    return memoryview(counters[place, rank : rank + 1])  # pyright: ignore[reportArgumentType] - it is a buffer


def _room(points: int, block: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes of a buffer, up to the next cache line."""
    used = points * int(np.prod(block, dtype=np.int64)) * dtype.itemsize
    return -(-used // _LINE) * _LINE
