"""The wire of one-sided stores between GPUs: one kernel packs straight into the receivers' memory and raises a signal.

Receivers' buffers and all counters are symmetric memory. Waiting is done by kernels on the stream, never by the host,
and everything can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import CollopsError
from collops.graph.wires.ring import PLACES, RingChannel, RingTransfer
from collops.graph.wires.wire import Channel, Routes, Transfer, Wire

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.graph.packing import Index

__all__ = ["SymmetricWire"]

_ALIGNMENT = 256
_BLOCK = 256
_BLOCKS_PER_PROCESSOR = 4
_WAITING = (32,)
_ONE_BLOCK = (1,)


class SymmetricWire(Wire):
    """Stores into other GPUs' memory; memory is given back by ``free`` only.

    Parameters
    ----------
    comm : Communicator
        The ranks, whose GPUs can all address each other.
    """

    name = "symmetric"
    on_stream = True

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel. Collective.

        Raises
        ------
        TransportError
            On every rank, if symmetric memory cannot be had.
        CommunicationError
            On every rank, if some GPU cannot address another's memory.
        """
        return _Channel(self._comm, routes, block, dtype, engine)


class _Channel(RingChannel):
    def __init__(
        self, comm: Communicator, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine
    ) -> None:
        super().__init__()
        self.pieces = ()
        xp = self._xp = engine.xp
        self._leaving = routes.leaving
        unit = dtype.itemsize * int(np.prod(block, dtype=np.int64))
        most = int(comm.allreduce(np.array(routes.arriving * unit, np.int64), "max"))
        room = -(-most // _ALIGNMENT) * _ALIGNMENT
        self._values = comm.symmetric((PLACES * room,), np.uint8, engine=engine.name)
        # By use (filled, read), place and rank.
        self._counters = comm.symmetric((2, PLACES, comm.size), np.uint64, engine=engine.name)
        starts = np.zeros(comm.size, np.int64)
        for segment in routes.receives:
            starts[segment.rank] = segment.start
        starts = comm.alltoall(starts) * unit
        peers, error = {}, None
        try:
            for rank in {segment.rank for segment in (*routes.sends, *routes.receives)}:
                peers[rank] = self._values.peer(rank).data.ptr, self._counters.peer(rank)
        except CollopsError as problem:
            error = problem
        comm.check(error)
        mine, me = self._counters.local, comm.rank
        to, by = [segment.rank for segment in routes.sends], [segment.rank for segment in routes.receives]
        self._stops = xp.asarray(np.array([segment.stop for segment in routes.sends], np.int64))
        self._receivers, self._senders = len(to), len(by)
        self._states = xp.zeros((PLACES, 3), xp.uint64)
        self._sending: list[tuple[Any, ...]] = []
        self._waiting: list[tuple[Any, ...]] = []
        self._telling: list[tuple[Any, ...]] = []

        def addresses(values: list[int]) -> Any:
            return xp.asarray(np.array(values, np.uint64))

        for place in range(PLACES):
            self._sending.append(
                (
                    addresses([peers[rank][0] + place * room + int(starts[rank]) for rank in to]),
                    addresses([mine[1, place, rank:].data.ptr for rank in to]),
                    addresses([peers[rank][1][0, place, me:].data.ptr for rank in to]),
                )
            )
            filled = addresses([mine[0, place, rank:].data.ptr for rank in by])
            read = addresses([peers[rank][1][1, place, me:].data.ptr for rank in by])
            self._waiting.append((np.int32(len(by)), filled, self._states[place, 2:]))
            self._telling.append((np.int32(len(by)), read, self._states[place, 2:]))
            self.outgoing.append([])
            local = self._values.local[place * room : place * room + routes.arriving * unit]
            self.incoming.append(local.view(dtype).reshape(routes.arriving, *block))
        self._put, self._arrive, self._release = _kernels(xp.cuda.Device().id, dtype.itemsize)
        engine.synchronize()
        comm.barrier()

    def packer(self, points: Index, moves: Any, dtype: np.dtype, width: int) -> Callable[[Any, Transfer], None]:
        """Prepare the kernel that packs and puts."""
        if not self._receivers:
            return lambda source, transfer: None
        described = moves.described(points)
        processors = self._xp.cuda.Device().attributes["MultiProcessorCount"]
        blocks = -(-self._leaving * width // _BLOCK)
        grid = (max(1, min(blocks, _BLOCKS_PER_PROCESSOR * processors)),)
        rest = [
            (self._leaving, width, *described, np.int32(self._receivers), self._stops, *self._sending[place], states)
            for place, states in enumerate(self._states)
        ]

        def pack(source: Any, transfer: Transfer) -> None:
            assert isinstance(transfer, RingTransfer)
            self._put(grid, (_BLOCK,), (source, *rest[transfer.place]))

        return pack

    def send(self, place: int, use: int) -> None:
        pass  # packing has put

    def receive(self, place: int, use: int) -> None:
        if self._senders:
            self._arrive(_ONE_BLOCK, _WAITING, self._waiting[place])

    def consume(self, place: int, use: int) -> None:
        if self._senders:
            self._release(_ONE_BLOCK, _WAITING, self._telling[place])

    def free(self) -> None:
        self.outgoing, self.incoming = [], []
        self._values.free()
        self._counters.free()


@cache
def _kernels(device: int, itemsize: int) -> tuple[Any, Any, Any]:
    import cupy

    source = Path(__file__).with_name("put.cu").read_text()
    module = cupy.RawModule(code=source, options=("-std=c++17", f"-DBYTES={itemsize}"))
    return module.get_function("put"), module.get_function("arrive"), module.get_function("release")
