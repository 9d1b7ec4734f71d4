"""One-sided stores between GPUs: one kernel packs straight into the receivers' memory and raises a counter there.

Receivers' buffers and all counters are symmetric memory. Kernels on the stream do all waiting, never the host, and
everything can be captured in a CUDA graph. A move that is not split into start and finish is one launch.

Kernels that wait for other ranks have few blocks, so that a device can hold several of them. Large moves use kernels
that fill the device, between two small ones that wait and signal.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from collops.comm.agreement import collective_errors
from collops.comm.device_launch import Launch
from collops.exchange.exchange import PLACES, Exchange, LocalWork, Transfer
from collops.exchange.packing import Index, cupy_moves
from collops.exchange.transports.shared import landings

_ALIGNMENT = 256
_THREADS = 256
_BLOCKS_PER_PROCESSOR = 2  # of those that fit
_BLOCKS_TO_FILL_IT = 6  # for which put.cu keeps registers
_MAX_AT_ONCE = 6 << 20  # bytes, from where launches cost less than empty places on the device
_WAITING = 32
_SOURCE = Path(__file__).with_name("put.cu")
_NO_POINTS = Index.run(0)


class SymmetricExchange(Exchange):
    """Stores into the memory of other GPUs, held until :meth:`free` or until no rank refers to it. Collective.

    Raises
    ------
    TransportError
        On every rank, if there is no symmetric memory.
    CommunicationError
        On every rank, if some GPU cannot address another's memory.
    """

    on_stream = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
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

        self._ends: list[_Ends] = []
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
            self._ends.append(_Ends(sending, receiving))
        self._arrivals = [_arrival(ends, dtype) for ends in self._ends]
        engine.synchronize()
        comm.barrier()

    def starter(self, work: LocalWork) -> Callable[[Any, Any, Transfer], Any]:
        together = work.there.unique
        puts = [_put(work, ends, together) for ends in self._ends]
        stay = None if together else work.stay()

        def start(source: Any, target: Any, transfer: Transfer) -> Any:
            puts[transfer.place](source, target)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, Any], Any]:
        of_any_transfer = super().finisher(work)
        if not _takes_itself(work):
            return of_any_transfer
        fills = [_fill(work, ends) for ends in self._ends]

        def finish(transfer: Transfer, target: Any) -> Any:
            if transfer.displaced:
                return of_any_transfer(transfer, target)
            fills[transfer.place](target)
            self.busy[transfer.place] = None
            return target

        return finish

    def mover(self, work: LocalWork) -> Callable[[Any, Any], Any]:
        if not _takes_itself(work):
            return self.mover_in_steps(work)
        exchanges = [_exchange(work, ends) for ends in self._ends]

        def move(source: Any, target: Any) -> Any:
            exchanges[self.turn()[0]](source, target)
            return target

        return move

    def receive(self, place: int, use: int) -> None:
        self._arrivals[place][0]()

    def consume(self, place: int, use: int) -> None:
        self._arrivals[place][1]()

    def free(self) -> None:
        self.outgoing, self.incoming, self._ends = [], [], []
        self._values.free()
        self._counters.free()


class _Ends(NamedTuple):
    """The two ends of one place of an exchange, as the kernels need them.

    Attributes
    ----------
    sending : tuple
        The number of receivers; where their parts of the leaving values end, in points; the addresses of their memory,
        of counters of how often they have read, and of counters there of how often this rank has filled.
    receiving : tuple
        The pattern of what arrives; the number of senders; the addresses of counters of how often they have filled, and
        of counters there of how often this rank has read; and `state`, how often this rank has sent and read, and
        how many blocks have done so in this turn.
    """

    sending: tuple[int, Any, Any, Any, Any]
    receiving: tuple[Any, int, Any, Any, Any]

    @property
    def receivers(self) -> int:
        return self.sending[0]

    @property
    def senders(self) -> int:
        return self.receiving[1]

    @property
    def state(self) -> Any:
        return self.receiving[-1]


def _idle(*arrays: Any) -> None:
    """Do nothing, in place of a kernel of a rank that has nothing to do."""


def _takes_itself(work: LocalWork) -> bool:
    """Return whether the kernel that waits also unpacks: few values, and no sums by atomic operations."""
    if work.op == "sum" and not work.deterministic and not (work.there.unique and work.arriving.unique):
        return False
    points = max(work.leaving.size, work.here.size, work.arriving.size)
    return points * work.width * work.dtype.itemsize <= _MAX_AT_ONCE


def _put(work: LocalWork, ends: _Ends, staying: bool) -> Callable[..., Any]:
    """Prepare to pack and store, and with `staying` to move local values."""
    here, there = work.there.ascending(work.here) if staying else (_NO_POINTS, _NO_POINTS)
    if not (ends.receivers or here.size):
        return _idle
    few = _takes_itself(work)
    return _launch(
        "put",
        work,
        max(work.leaving.size, here.size),
        _BLOCKS_PER_PROCESSOR if few else _BLOCKS_TO_FILL_IT,
        2,
        *_leaving(work, ends),
        *(here.size, *cupy_moves.described(here), *cupy_moves.described(there)),
        ends.state,
        not few,
    )


def _fill(work: LocalWork, ends: _Ends) -> Callable[..., Any]:
    """Prepare to wait for values and to unpack them."""
    if not ends.senders:
        return _idle
    if work.arriving.unique:
        points = work.arriving.size, *cupy_moves.described(work.arriving)
        return _launch("fill", work, work.arriving.size, _BLOCKS_PER_PROCESSOR, 1, *points, *ends.receiving)
    segments = cupy_moves.segments(work.arriving)
    count = len(segments[0])
    return _launch("fill_in_turn", work, count, _BLOCKS_PER_PROCESSOR, 1, count, *segments, *ends.receiving)


def _exchange(work: LocalWork, ends: _Ends) -> Callable[..., Any]:
    """Prepare a whole move."""
    here, there, arriving = work.here, work.there, work.arriving
    most = max(work.leaving.size, here.size, arriving.size)
    if not (ends.receivers or ends.senders or here.size):
        return _idle
    meet = np.intersect1d(there.points, arriving.points).size > 0
    if meet or not (there.unique and arriving.unique):
        # This rank's own values come before values of others.
        segments = cupy_moves.segments(Index(np.concatenate([there.points, arriving.points])))
        staying = here.size, *cupy_moves.described(here)
        kind, points = "exchange_in_turn", (*staying, len(segments[0]), *segments)
    else:
        staying = here.size, *cupy_moves.described(here), *cupy_moves.described(there)
        kind, points = "exchange", (*staying, arriving.size, *cupy_moves.described(arriving))
    return _launch(kind, work, most, _BLOCKS_PER_PROCESSOR, 2, *_leaving(work, ends), *points, *ends.receiving)


def _arrival(ends: _Ends, dtype: np.dtype) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Prepare to wait for values, and to signal that they have been read."""
    if not ends.senders:
        return _idle, _idle
    _, senders, filled_here, read_there, state = ends.receiving
    wait, tell = (cupy_moves.kernel(name, "replace", dtype, _SOURCE) for name in ("arrive", "release"))
    return (
        Launch(wait, 1, _WAITING, 0, senders, filled_here, state),
        Launch(tell, 1, _WAITING, 0, senders, read_there, state),
    )


def _leaving(work: LocalWork, ends: _Ends) -> tuple[Any, ...]:
    return work.leaving.size, *cupy_moves.described(work.leaving), *ends.sending


def _launch(name: str, work: LocalWork, points: int, per_processor: int, arrays: int, *arguments: Any) -> Launch:
    kernel = cupy_moves.kernel(name, work.op, work.dtype, _SOURCE)
    most = per_processor * cupy_moves.processors(cupy.cuda.Device().id)
    blocks = max(1, min(-(-points * work.width // _THREADS), most))
    return Launch(kernel, blocks, _THREADS, arrays, work.width, *arguments)
