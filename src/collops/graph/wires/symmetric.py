"""The wire of one-sided stores between GPUs: one kernel packs straight into the receivers' memory and raises a signal.

Receivers' buffers and all counters are symmetric memory. Waiting is done by kernels on the stream, never by the host,
and everything can be captured in a CUDA graph. A mover that is not split into start and end is one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import CollopsError
from collops.graph.wires.ring import PLACES, RingChannel, RingTransfer
from collops.graph.wires.wire import Channel, Motion, Routes, Transfer, Wire

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.graph.wires.one_sided import Ends

__all__ = ["SymmetricWire"]

_ALIGNMENT = 256


class SymmetricWire(Wire):
    """Stores into other GPUs' memory; memory is given back by ``free`` only.

    Parameters
    ----------
    comm : Communicator
        The ranks, whose GPUs can all address each other.
    """

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
        from collops.graph.wires import one_sided

        super().__init__()
        self.pieces = ()
        self._kernels = one_sided
        xp = engine.xp
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
        stops = xp.asarray(np.array([segment.stop for segment in routes.sends], np.int64))
        states = xp.zeros((PLACES, 4), xp.uint64)

        def addresses(values: list[int]) -> Any:
            return xp.asarray(np.array(values, np.uint64))

        self._ends: list[Ends] = []
        for place in range(PLACES):
            local = self._values.local[place * room : place * room + routes.arriving * unit]
            self.incoming.append(local.view(dtype).reshape(routes.arriving, *block))
            self.outgoing.append([])
            self._ends.append(
                one_sided.Ends(
                    len(to),
                    stops,
                    addresses([peers[rank][0] + place * room + int(starts[rank]) for rank in to]),
                    addresses([mine[1, place, rank:].data.ptr for rank in to]),
                    addresses([peers[rank][1][0, place, me:].data.ptr for rank in to]),
                    self.incoming[place],
                    len(by),
                    addresses([mine[0, place, rank:].data.ptr for rank in by]),
                    addresses([peers[rank][1][1, place, me:].data.ptr for rank in by]),
                    states[place],
                )
            )
        self._arrivals = [one_sided.arrival(ends, dtype) for ends in self._ends]
        engine.synchronize()
        comm.barrier()

    def starter(self, motion: Motion) -> Callable[[Any, Any, Transfer], Any]:
        """Prepare the kernel that packs and puts, and moves the values that stay."""
        together = motion.there.unique
        puts = [self._kernels.put(motion, ends, together) for ends in self._ends]
        stay = None if together else motion.move(motion.here, motion.there)

        def start(source: Any, target: Any, transfer: Transfer) -> Any:
            assert isinstance(transfer, RingTransfer)
            put = puts[transfer.place]
            if put is not None:
                put(source, target)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, motion: Motion) -> Callable[[Transfer, Any], Any]:
        """Prepare the kernel that waits for what arrives and takes it."""
        of_any_transfer = super().finisher(motion)
        if not self._kernels.takes_itself(motion):
            return of_any_transfer
        fills = [self._kernels.fill(motion, ends) for ends in self._ends]

        def finish(transfer: Transfer, target: Any) -> Any:
            assert isinstance(transfer, RingTransfer)
            if transfer.displaced:
                return of_any_transfer(transfer, target)
            fill = fills[transfer.place]
            if fill is not None:
                fill(target)
            self.busy[transfer.place] = None
            return target

        return finish

    def mover(self, motion: Motion) -> Callable[[Any, Any], Any]:
        """Prepare the kernel that does all of a mover; where much is moved, those of its start and its end."""
        if not self._kernels.takes_itself(motion):
            return Channel.mover(self, motion)
        exchanges = [self._kernels.exchange(motion, ends) for ends in self._ends]

        def move(source: Any, target: Any) -> Any:
            exchange = exchanges[self.turn()[0]]
            if exchange is not None:
                exchange(source, target)
            return target

        return move

    def send(self, place: int, use: int) -> None:
        pass  # packing has put

    def receive(self, place: int, use: int) -> None:
        arrival = self._arrivals[place]
        if arrival is not None:
            arrival[0]()

    def consume(self, place: int, use: int) -> None:
        arrival = self._arrivals[place]
        if arrival is not None:
            arrival[1]()

    def free(self) -> None:
        self.outgoing, self.incoming, self._ends = [], [], []
        self._values.free()
        self._counters.free()
