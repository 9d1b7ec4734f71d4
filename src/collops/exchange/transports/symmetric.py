"""One-sided stores between GPUs: one kernel packs directly into the receivers' memory and increments counters there.

Receivers' buffers and all counters are in symmetric memory. Kernels on the stream wait for other ranks, never the host,
and everything can be captured in a CUDA graph. A move that is not split into start and finish is one launch.

Kernels that wait for other ranks have few blocks, so that several of them can be resident on a device. Large moves use
kernels that fill the device, between two small kernels that wait and signal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from collops.backend import LocalArray
from collops.comm.agreement import collective_errors
from collops.comm.device_launch import Launch
from collops.comm.parts import Part
from collops.exchange.exchange import SLOTS, Exchange, LocalWork, Transfer
from collops.exchange.packing import Index, cupy_moves
from collops.exchange.transports.shared import landings

_ALIGNMENT, _COUNTER = 256, 8  # bytes
_THREADS = 256
_BLOCKS_PER_PROCESSOR = 2  # of those that fit
_BLOCKS_TO_FILL_IT = 6  # for which put.cu keeps registers
_MAX_AT_ONCE = 6 << 20  # bytes, from where launches cost less than idle multiprocessors of the device
_WAITING = 32
_SOURCE = Path(__file__).with_name("put.cu")
_NO_POINTS = Index.run(0)


class SymmetricExchange(Exchange):
    """Stores into the memory of other GPUs, held until :meth:`free` or until no rank refers to it. Collective.

    Raises
    ------
    TransportError
        On every rank, if symmetric memory is not available.
    CommunicationError
        On every rank, if a GPU cannot address the memory of another GPU.
    """

    on_stream = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        comm, pattern, dtype, engine, xp = self.comm, self.pattern, self.dtype, self.engine, self.engine.xp
        sends, receives, arriving = pattern.sends.segments, pattern.receives.segments, pattern.receives.points.size
        unit = dtype.itemsize * self.width
        max_points, starts = landings(self)
        buffer = -(-max_points * unit // _ALIGNMENT) * _ALIGNMENT
        # For each use (filled, read), slot and rank a counter, then the incoming buffers.
        numbers = 2, SLOTS, comm.size
        header = -(-prod(numbers) * _COUNTER // _ALIGNMENT) * _ALIGNMENT
        self._memory = memory = Part(comm, header + SLOTS * buffer, engine.name)

        def ends_of(rank: int) -> tuple[int, LocalArray]:
            """Return the address of the incoming buffers of a rank, and its counters."""
            part = memory.peer(rank)
            return part.data.ptr + header, part[: prod(numbers) * _COUNTER].view(np.uint64).reshape(numbers)

        with collective_errors(comm):
            peers = {rank: ends_of(rank) for rank in {segment.rank for segment in (*sends, *receives)}}
        (_, own_counters), me = ends_of(comm.rank), comm.rank
        to, by = [segment.rank for segment in sends], [segment.rank for segment in receives]
        stops = xp.asarray(np.array([segment.stop for segment in sends], np.int64))
        states = xp.zeros((SLOTS, 4), xp.uint64)

        def addresses(values: list[int]) -> LocalArray:
            return xp.asarray(np.array(values, np.uint64))

        self._ends: list[_Ends] = []
        for slot in range(SLOTS):
            begin = header + slot * buffer
            local = memory.local[begin : begin + arriving * unit]
            self.incoming[slot] = local.view(dtype).reshape(arriving, *self.block)
            receiver_addresses = addresses([peers[rank][0] + slot * buffer + int(starts[rank]) * unit for rank in to])
            read_here = addresses([own_counters[1, slot, rank:].data.ptr for rank in to])
            filled_there = addresses([peers[rank][1][0, slot, me:].data.ptr for rank in to])
            filled_here = addresses([own_counters[0, slot, rank:].data.ptr for rank in by])
            read_there = addresses([peers[rank][1][1, slot, me:].data.ptr for rank in by])
            sending = len(to), stops, receiver_addresses, read_here, filled_there
            receiving = self.incoming[slot], len(by), filled_here, read_there, states[slot]
            self._ends.append(_Ends(sending, receiving))
        self._arrivals = [_arrival(ends, dtype) for ends in self._ends]
        engine.synchronize()
        comm.barrier()

    def starter(self, work: LocalWork) -> Callable[[LocalArray, LocalArray, Transfer], LocalArray]:
        together = work.local_targets.unique
        puts = [_put(work, ends, together) for ends in self._ends]
        stay = None if together else work.stay()

        def start(source: LocalArray, target: LocalArray, transfer: Transfer) -> LocalArray:
            puts[transfer.slot](source, target)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, LocalArray], LocalArray]:
        of_any_transfer = super().finisher(work)
        if not _unpacks_in_kernel(work):
            return of_any_transfer
        fills = [_fill(work, ends) for ends in self._ends]

        def finish(transfer: Transfer, target: LocalArray) -> LocalArray:
            if transfer.displaced:
                return of_any_transfer(transfer, target)
            fills[transfer.slot](target)
            self.busy[transfer.slot] = None
            return target

        return finish

    def mover(self, work: LocalWork) -> Callable[[LocalArray, LocalArray], LocalArray]:
        if not _unpacks_in_kernel(work):
            return self.mover_in_steps(work)
        exchanges = [_exchange(work, ends) for ends in self._ends]

        def move(source: LocalArray, target: LocalArray) -> LocalArray:
            exchanges[self.next_slot()[0]](source, target)
            return target

        return move

    def receive(self, slot: int, use: int) -> None:
        self._arrivals[slot][0]()

    def consume(self, slot: int, use: int) -> None:
        self._arrivals[slot][1]()

    def free(self) -> None:
        self.outgoing, self.incoming, self._ends = [], [], []
        self._memory.free()


class _Ends(NamedTuple):
    """The two ends of one slot of an exchange, as arguments of the kernels.

    Attributes
    ----------
    sending : tuple
        The number of receivers; the ends of their segments of the outgoing points; and the addresses of their buffers,
        of the local counters of their reads, and of their counters of this rank's writes.
    receiving : tuple
        The incoming buffer; the number of senders; the addresses of the local counters of their writes, and of their
        counters of this rank's reads; and `state`: how often this rank has sent and read, and how many blocks have done
        so for the current use.
    """

    sending: tuple[int, LocalArray, LocalArray, LocalArray, LocalArray]
    receiving: tuple[LocalArray, int, LocalArray, LocalArray, LocalArray]

    @property
    def receivers(self) -> int:
        return self.sending[0]

    @property
    def senders(self) -> int:
        return self.receiving[1]

    @property
    def state(self) -> LocalArray:
        return self.receiving[-1]


def _idle(*arrays: LocalArray) -> None:
    """Do nothing, on a rank without points."""


def _unpacks_in_kernel(work: LocalWork) -> bool:
    """Return whether the waiting kernel also unpacks: few values, and no sums by atomic operations."""
    if work.op == "sum" and not work.deterministic and not (work.local_targets.unique and work.arriving.unique):
        return False
    points = max(work.leaving.size, work.local_sources.size, work.arriving.size)
    return points * work.width * work.dtype.itemsize <= _MAX_AT_ONCE


def _put(work: LocalWork, ends: _Ends, staying: bool) -> Callable[..., object]:
    """Prepare to pack and store, and with `staying` to move local values."""
    local_sources, local_targets = (
        work.local_targets.ascending(work.local_sources) if staying else (_NO_POINTS, _NO_POINTS)
    )
    if not (ends.receivers or local_sources.size):
        return _idle
    few = _unpacks_in_kernel(work)
    return _launch(
        "put",
        work,
        max(work.leaving.size, local_sources.size),
        _BLOCKS_PER_PROCESSOR if few else _BLOCKS_TO_FILL_IT,
        2,
        *_leaving(work, ends),
        *(local_sources.size, *cupy_moves.described(local_sources), *cupy_moves.described(local_targets)),
        ends.state,
        not few,
    )


def _fill(work: LocalWork, ends: _Ends) -> Callable[..., object]:
    """Prepare to wait for values and to unpack them."""
    if not ends.senders:
        return _idle
    if work.arriving.unique:
        points = work.arriving.size, *cupy_moves.described(work.arriving)
        return _launch("fill", work, work.arriving.size, _BLOCKS_PER_PROCESSOR, 1, *points, *ends.receiving)
    segments = cupy_moves.segments(work.arriving)
    count = len(segments[0])
    return _launch("fill_in_turn", work, count, _BLOCKS_PER_PROCESSOR, 1, count, *segments, *ends.receiving)


def _exchange(work: LocalWork, ends: _Ends) -> Callable[..., object]:
    """Prepare a complete move."""
    local_sources, local_targets, arriving = work.local_sources, work.local_targets, work.arriving
    max_points = max(work.leaving.size, local_sources.size, arriving.size)
    if not (ends.receivers or ends.senders or local_sources.size):
        return _idle
    overlap = arriving.size > 0 and np.isin(arriving.points, local_targets.points).any()
    if overlap or not (local_targets.unique and arriving.unique):
        # Local values are combined before received ones.
        segments = cupy_moves.segments(Index(np.concatenate([local_targets.points, arriving.points])))
        staying = local_sources.size, *cupy_moves.described(local_sources)
        kind, points = "exchange_in_turn", (*staying, len(segments[0]), *segments)
    else:
        staying = local_sources.size, *cupy_moves.described(local_sources), *cupy_moves.described(local_targets)
        kind, points = "exchange", (*staying, arriving.size, *cupy_moves.described(arriving))
    return _launch(kind, work, max_points, _BLOCKS_PER_PROCESSOR, 2, *_leaving(work, ends), *points, *ends.receiving)


def _arrival(ends: _Ends, dtype: np.dtype) -> tuple[Callable[[], object], Callable[[], object]]:
    """Prepare to wait for values, and to signal that they have been read."""
    if not ends.senders:
        return _idle, _idle
    _, senders, filled_here, read_there, state = ends.receiving
    wait, tell = (cupy_moves.kernel(name, "replace", dtype, _SOURCE) for name in ("arrive", "release"))
    return (
        Launch(wait, 1, _WAITING, 0, senders, filled_here, state),
        Launch(tell, 1, _WAITING, 0, senders, read_there, state),
    )


def _leaving(work: LocalWork, ends: _Ends) -> tuple[LocalArray | int, ...]:
    return work.leaving.size, *cupy_moves.described(work.leaving), *ends.sending


def _launch(
    name: str, work: LocalWork, points: int, per_processor: int, arrays: int, *arguments: LocalArray | int
) -> Launch:
    kernel = cupy_moves.kernel(name, work.op, work.dtype, _SOURCE)
    max_blocks = per_processor * cupy_moves.processors(cupy.cuda.Device().id)
    blocks = max(1, min(-(-points * work.width // _THREADS), max_blocks))
    return Launch(kernel, blocks, _THREADS, arrays, work.width, *arguments)
