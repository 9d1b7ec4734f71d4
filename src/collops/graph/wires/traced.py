"""The transport of JAX's arrays: an all-to-all-v inside the program, between a gather and a scatter.

All three have transposes, so every transformation works; that of a bcast is a reduce. Inside ``jit`` the messages are
part of the compiled program, whose order is the compiler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops.graph.wires.wire import Channel, Routes, Transfer

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["TracedChannel"]


class TracedChannel(Channel):
    """One set of routes, for values of any dtype and shape; it owns no memory.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    routes : Routes
        Of this rank.
    """

    def __init__(self, comm: Communicator, routes: Routes) -> None:
        self.pieces = ((0, routes.leaving),)
        self.comm = comm
        self.counts = [[0] * comm.size for _ in range(2)]
        for counts, segments in zip(self.counts, (routes.sends, routes.receives), strict=True):
            for rank, start, stop in segments:
                counts[rank] = stop - start

    def begin(self) -> Transfer:
        """Return a transfer."""
        return _Transfer(self)


class _Transfer(Transfer):
    __slots__ = ("_channel",)

    def __init__(self, channel: TracedChannel) -> None:
        self.outgoing: list[Any] = [None]
        self._channel = channel

    def post(self) -> None:
        self.incoming = self._channel.comm.alltoallv(self.outgoing[0], *self._channel.counts)

    def wait(self) -> None:
        pass

    def release(self) -> None:
        pass
