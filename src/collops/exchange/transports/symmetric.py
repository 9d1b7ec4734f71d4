"""One-sided stores between GPUs: one kernel packs straight into the receivers' memory and raises a counter there.

Receivers' buffers and all counters are symmetric memory. Kernels on the stream do all waiting, never the host, and
everything can be captured in a CUDA graph. A move that is not split into start and finish is one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.comm.agreement import collective_errors
from collops.exchange.exchange import PLACES, Exchange, LocalWork, Transfer
from collops.exchange.transports.shared import landings

if TYPE_CHECKING:
    from collops.exchange.transports.one_sided import Ends

_ALIGNMENT = 256


class SymmetricExchange(Exchange):
    """Stores into the memory of other GPUs; only :meth:`free` gives the memory back. Collective.

    Raises
    ------
    TransportError
        On every rank, if there is no symmetric memory.
    CommunicationError
        On every rank, if some GPU cannot address another's memory.
    """

    def __init__(self, *arguments: Any) -> None:
        from collops.exchange.transports import one_sided

        super().__init__(*arguments)
        self._kernels = one_sided
        comm, pattern, dtype, engine, xp = self.comm, self.pattern, self.dtype, self.engine, self.engine.xp
        sends, receives, arriving = pattern.sends.segments, pattern.receives.segments, pattern.receives.points.size
        unit = dtype.itemsize * self.width
        most, starts = landings(self)
        buffer = -(-most * unit // _ALIGNMENT) * _ALIGNMENT
        self._values = comm.symmetric((PLACES * buffer,), np.uint8, engine=engine.name)
        # By use (filled, read), place and rank.
        self._counters = comm.symmetric((2, PLACES, comm.size), np.uint64, engine=engine.name)
        peers = {}
        with collective_errors(comm):
            for rank in {segment.rank for segment in (*sends, *receives)}:
                peers[rank] = self._values.peer(rank).data.ptr, self._counters.peer(rank)
        mine, me = self._counters.local, comm.rank
        to, by = [segment.rank for segment in sends], [segment.rank for segment in receives]
        stops = xp.asarray(np.array([segment.stop for segment in sends], np.int64))
        states = xp.zeros((PLACES, 4), xp.uint64)

        def addresses(values: list[int]) -> Any:
            return xp.asarray(np.array(values, np.uint64))

        self._ends: list[Ends] = []
        for place in range(PLACES):
            local = self._values.local[place * buffer : place * buffer + arriving * unit]
            self.incoming[place] = local.view(dtype).reshape(arriving, *self.block)
            places = addresses([peers[rank][0] + place * buffer + int(starts[rank]) * unit for rank in to])
            read_here = addresses([mine[1, place, rank:].data.ptr for rank in to])
            filled_there = addresses([peers[rank][1][0, place, me:].data.ptr for rank in to])
            filled_here = addresses([mine[0, place, rank:].data.ptr for rank in by])
            read_there = addresses([peers[rank][1][1, place, me:].data.ptr for rank in by])
            sending = len(to), stops, places, read_here, filled_there
            receiving = self.incoming[place], len(by), filled_here, read_there, states[place]
            self._ends.append(one_sided.Ends(sending, receiving))
        self._arrivals = [one_sided.arrival(ends, dtype) for ends in self._ends]
        engine.synchronize()
        comm.barrier()

    def starter(self, work: LocalWork) -> Callable[[Any, Any, Transfer], Any]:
        together = work.there.unique
        puts = [self._kernels.put(work, ends, together) for ends in self._ends]
        stay = None if together else work.stay()

        def start(source: Any, target: Any, transfer: Transfer) -> Any:
            put = puts[transfer.place]
            if put is not None:
                put(source, target)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, Any], Any]:
        of_any_transfer = super().finisher(work)
        if not self._kernels.takes_itself(work):
            return of_any_transfer
        fills = [self._kernels.fill(work, ends) for ends in self._ends]

        def finish(transfer: Transfer, target: Any) -> Any:
            if transfer.displaced:
                return of_any_transfer(transfer, target)
            fill = fills[transfer.place]
            if fill is not None:
                fill(target)
            self.busy[transfer.place] = None
            return target

        return finish

    def mover(self, work: LocalWork) -> Callable[[Any, Any], Any]:
        if not self._kernels.takes_itself(work):
            return self.mover_in_steps(work)
        exchanges = [self._kernels.exchange(work, ends) for ends in self._ends]

        def move(source: Any, target: Any) -> Any:
            exchange = exchanges[self.turn()[0]]
            if exchange is not None:
                exchange(source, target)
            return target

        return move

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
