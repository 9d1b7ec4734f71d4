"""The wire of MPI's nonblocking neighbourhood all-to-all-v: one call for all messages, persistent where MPI has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.graph.wires.mpi_parts import buffer_of, messages_of, mpi
from collops.graph.wires.ring import PLACES, RingChannel
from collops.graph.wires.wire import Channel, Routes, Wire, wait_for

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["NeighborWire"]


class NeighborWire(Wire):
    """A neighbourhood (a communicator with a graph) for each set of routes; given back by ``free`` only."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._messages = messages_of(comm)

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel."""
        return _Channel(self._comm, self._messages, routes, block, dtype, engine)


class _Channel(RingChannel):
    def __init__(
        self,
        comm: Communicator,
        messages: Any,
        routes: Routes,
        block: tuple[int, ...],
        dtype: np.dtype,
        engine: Engine,
    ) -> None:
        super().__init__()
        self.pieces = ((0, routes.leaving),)
        self._comm = comm
        self._engine = engine
        self._graph = messages.Create_dist_graph_adjacent(
            [segment.rank for segment in routes.receives], [segment.rank for segment in routes.sends]
        )
        unit = dtype.itemsize * int(np.prod(block, dtype=np.int64))
        self._persistent = mpi().Get_version() >= (4, 0)
        self._arguments, self._requests = [], []
        for _ in range(PLACES):
            leaving = engine.xp.empty((routes.leaving, *block), dtype)
            arriving = engine.xp.empty((routes.arriving, *block), dtype)
            self.outgoing.append([leaving])
            self.incoming.append(arriving)
            arguments = (_pieces(leaving, routes.sends, unit), _pieces(arriving, routes.receives, unit))
            self._arguments.append(arguments)
            # Requests of one place, made in the same order on all ranks.
            self._requests.append(self._graph.Neighbor_alltoallv_init(*arguments) if self._persistent else None)

    def send(self, place: int, use: int) -> None:
        if self._engine.memory == "device":
            self._engine.synchronize()
        if self._persistent:
            self._requests[place].Start()
        else:
            self._requests[place] = self._graph.Ineighbor_alltoallv(*self._arguments[place])

    def receive(self, place: int, use: int) -> None:
        wait_for(self._comm, self._requests[place].Test)

    def free(self) -> None:
        if self._persistent:
            for request in self._requests:
                request.Free()
        self._graph.Free()


def _pieces(array: Any, segments: tuple[Any, ...], unit: int) -> list[Any]:
    counts = [(segment.stop - segment.start) * unit for segment in segments]
    offsets = [segment.start * unit for segment in segments]
    return [buffer_of(array), (counts, offsets), mpi().BYTE]
