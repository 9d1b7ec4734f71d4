"""The wire of device arrays through pinned host memory and persistent MPI messages; the host waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.backend import Engine
from collops.graph.wires.p2p import PointToPointWire
from collops.graph.wires.wire import Channel, PoolChannel, Routes, Transfer, Wire

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["StagedWire"]


class StagedWire(Wire):
    """Packed on the device, copied to the host, sent, copied back, unpacked on the device."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._host = PointToPointWire(comm)

    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel."""
        return _Channel(self._host.channel(routes, block, dtype, _PinnedEngine(engine.xp), tag), engine)


class _PinnedEngine(Engine):
    """The host's engine, with new arrays in page-locked memory."""

    __slots__ = ("_cupy",)

    def __init__(self, cupy: Any) -> None:
        super().__init__("numpy", np, "host")
        self.xp = self
        self._cupy = cupy

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64))
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, size * dtype.itemsize))
        return np.frombuffer(memory, dtype, size).reshape(shape)


class _Channel(PoolChannel):
    def __init__(self, host: Any, engine: Engine) -> None:
        super().__init__()
        self.pieces = host.pieces
        self.host = host
        self.engine = engine

    def make(self) -> Transfer:
        return _Transfer(self)


class _Transfer(Transfer):
    __slots__ = ("_channel", "_host")

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._host = channel.host.make()
        xp = channel.engine.xp
        self.outgoing = [xp.empty(self._host.outgoing[0].shape, self._host.outgoing[0].dtype)]
        self.incoming = xp.empty(self._host.incoming.shape, self._host.incoming.dtype)

    def post(self) -> None:
        stream = self._channel.engine.xp.cuda.get_current_stream()
        if self.outgoing[0].size:
            self.outgoing[0].get(out=self._host.outgoing[0], stream=stream, blocking=False)
        stream.synchronize()  # also for the copy of what arrived the time before
        self._host.post()

    def wait(self) -> None:
        self._host.wait()
        if self.incoming.size:
            self.incoming.set(self._host.incoming, stream=self._channel.engine.xp.cuda.get_current_stream())

    def release(self) -> None:
        self._channel.idle.append(self)
