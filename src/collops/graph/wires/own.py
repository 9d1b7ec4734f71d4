"""The wire of the communicator's own transport: grouped sends of NCCL between devices, plain MPI between hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import TransportError
from collops.graph.wires.wire import Channel, PoolChannel, Routes, Transfer, Wire

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["NcclWire", "OwnWire"]


class OwnWire(Wire):
    """The communicator's own transport, see :meth:`Communicator.transport_of`."""

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel."""
        return _Channel(self._comm, routes, block, dtype, engine, tag)


class NcclWire(OwnWire):
    """The communicator's wire where it is NCCL: all messages are one launch, and the host never waits.

    Raises
    ------
    TransportError
        If the communicator's devices are not joined by NCCL.
    """

    def __init__(self, comm: Communicator) -> None:
        if comm.device_transport != "nccl":
            raise TransportError(
                f"the wire 'nccl' needs a communicator over NCCL; this one has {comm.device_transport or 'no device'}"
            )
        super().__init__(comm)


class _Channel(PoolChannel):
    def __init__(
        self,
        comm: Communicator,
        routes: Routes,
        block: tuple[int, ...],
        dtype: np.dtype,
        engine: Engine,
        tag: int,
    ) -> None:
        super().__init__()
        self.pieces = ((0, routes.leaving),)
        self.routes = routes
        self.tag = tag
        self._new = lambda points: engine.xp.empty((points, *block), dtype)
        self.transport = comm.transport_of(self._new(0))

    def make(self) -> Transfer:
        return _Transfer(self, self._new(self.routes.leaving), self._new(self.routes.arriving))


class _Transfer(Transfer):
    __slots__ = ("_channel", "_pending", "_receives", "_sends")

    def __init__(self, channel: _Channel, outgoing: Any, incoming: Any) -> None:
        self.outgoing = [outgoing]
        self.incoming = incoming
        self._channel = channel
        self._sends = [(rank, outgoing[start:stop]) for rank, start, stop in channel.routes.sends]
        self._receives = [(rank, incoming[start:stop]) for rank, start, stop in channel.routes.receives]

    def post(self) -> None:
        channel = self._channel
        self._pending = channel.transport.start_exchange(self._sends, self._receives, channel.tag)

    def wait(self) -> None:
        self._pending.wait()

    def release(self) -> None:
        self._channel.idle.append(self)
