"""The wire of persistent point-to-point messages of MPI, between hosts, or between devices that MPI can read."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.graph.wires.mpi_parts import buffer_of, messages_of, mpi
from collops.graph.wires.wire import Channel, PoolChannel, Routes, Transfer, Wire, wait_for

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["PointToPointWire"]


class PointToPointWire(Wire):
    """Requests are made once for each pair of buffers and started again and again."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._messages = messages_of(comm)

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel."""
        return _Channel(self._comm, self._messages, routes, block, dtype, engine, tag)


class _Channel(PoolChannel):
    def __init__(
        self,
        comm: Communicator,
        messages: Any,
        routes: Routes,
        block: tuple[int, ...],
        dtype: np.dtype,
        engine: Engine,
        tag: int,
    ) -> None:
        super().__init__()
        self.pieces = ((0, routes.leaving),)
        self.comm = comm
        self.routes = routes
        self.messages = messages
        self.tag = tag
        self.engine = engine
        self._shapes = (routes.leaving, *block), (routes.arriving, *block)
        self._dtype = dtype

    def make(self) -> Transfer:
        leaving, arriving = (self.engine.xp.empty(shape, self._dtype) for shape in self._shapes)
        return _Transfer(self, leaving, arriving)


class _Transfer(Transfer):
    __slots__ = ("__weakref__", "_channel", "_on_device", "_requests", "_start", "_test")

    def __init__(self, channel: _Channel, outgoing: Any, incoming: Any) -> None:
        self.outgoing = [outgoing]
        self.incoming = incoming
        self._channel = channel
        self._on_device = channel.engine.memory == "device"
        byte, messages, tag = mpi().BYTE, channel.messages, channel.tag
        self._requests = [
            messages.Recv_init([buffer_of(incoming[start:stop]), byte], rank, tag)
            for rank, start, stop in channel.routes.receives
        ]
        self._requests += [
            messages.Send_init([buffer_of(outgoing[start:stop]), byte], rank, tag)
            for rank, start, stop in channel.routes.sends
        ]
        self._start, self._test = mpi().Prequest.Startall, mpi().Prequest.Testall
        weakref.finalize(self, _free, self._requests).atexit = False

    def post(self) -> None:
        if self._on_device:
            self._channel.engine.synchronize()
        self._start(self._requests)

    def wait(self) -> None:
        if not self._test(self._requests):
            wait_for(self._channel.comm, lambda: self._test(self._requests))

    def release(self) -> None:
        self._channel.idle.append(self)


def _free(requests: list[Any]) -> None:
    if not mpi().Is_finalized():
        for request in requests:
            request.Free()
