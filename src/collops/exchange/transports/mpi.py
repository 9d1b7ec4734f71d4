"""Persistent messages of MPI, from host memory, from device memory that MPI can read, or through pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.backend import LocalArray
from collops.comm.mpi_exchanges import PersistentMessages, addresses_of
from collops.exchange.exchange import SLOTS, Exchange, LocalWork
from collops.exchange.pattern import Side

_MIN_DIRECT_BYTES = 1 << 10  # shorter messages are faster packed than prepared for each array
_MAX_CACHED = 64


class MpiExchange(Exchange):
    """One persistent message to and from each other rank, in each slot. Collective.

    Complete moves of host arrays send long runs of points directly from the source, and receive them directly in the
    target if they replace its values. Such messages are cached for arrays that are reused.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._cached: dict[tuple[int, int], PersistentMessages] = {}
        self.allocate()
        self._synchronize = self.engine.synchronize if self.engine.memory == "device" else None
        self._messages = []
        self._held = [self._buffers(slot) for slot in range(SLOTS)]
        for leaving, arriving in self._held:
            sends = [(rank, leaving[start:stop]) for rank, start, stop in self.pattern.sends.segments]
            receives = [(rank, arriving[start:stop]) for rank, start, stop in self.pattern.receives.segments]
            self._messages.append(PersistentMessages(self.comm, sends, receives, self.tag))

    def _buffers(self, slot: int) -> tuple[LocalArray, LocalArray]:
        """Return the send and receive buffers of messages."""
        return self.outgoing[slot][0], self.incoming[slot]

    def send(self, slot: int, use: int) -> None:
        if self._synchronize is not None:
            self._synchronize()
        self._messages[slot].start()

    def receive(self, slot: int, use: int) -> None:
        self._messages[slot].wait(self._held[slot])

    def mover(self, work: LocalWork) -> Callable[[LocalArray, LocalArray], LocalArray]:
        if self.engine.memory == "device":
            return super().mover(work)
        leaving, arriving = self._runs(self.pattern.sends), self._runs(self.pattern.receives)
        if (
            work.op != "replace"
            or not work.arriving.unique
            or np.isin(work.arriving.points, work.local_targets.points).any()
        ):
            arriving = None  # values are combined sequentially
        packing, stay, unpack = self._packing(work), work.stay(), work.unpacker()
        next_slot, incoming, prepared, cached = self.next_slot, self.incoming, self._messages, self._cached
        short, address_of = leaving is None and arriving is None, addresses_of(self.dtype)

        def move(source: LocalArray, target: LocalArray) -> LocalArray:
            slot, _ = next_slot()
            outbound, inbound = source, target if arriving else incoming[slot]
            if leaving is None:
                ((pack, outbound),) = packing[slot]
                pack(source, outbound)
            if short:
                messages = prepared[slot]
            else:
                addresses = address_of(outbound), address_of(inbound)
                messages = cached.get(addresses) or self._prepare_messages(
                    addresses, outbound, leaving, inbound, arriving
                )
            messages.start()
            if stay is not None:
                target = stay(source, target)
            messages.wait((outbound, inbound))
            return target if arriving or unpack is None else unpack(inbound, target)

        return move

    def _runs(self, side: Side) -> list[tuple[int, slice]] | None:
        """Return the other ranks, and their points of the array; ``None`` unless the points are long runs."""
        if side.points.size * self.width * self.dtype.itemsize < _MIN_DIRECT_BYTES:
            return None
        runs = [(rank, side.points.piece(start, stop).slice) for rank, start, stop in side.segments]
        long = [(rank, run) for rank, run in runs if run is not None and run.step == 1]
        return long if len(long) == len(runs) else None

    def _prepare_messages(
        self,
        addresses: tuple[int, int],
        outbound: LocalArray,
        send_runs: list[tuple[int, slice]] | None,
        inbound: LocalArray,
        receive_runs: list[tuple[int, slice]] | None,
    ) -> PersistentMessages:
        """Prepare messages between these arrays, or parts of buffers for a side without runs."""
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        sends, receives = (
            [(rank, array[part]) for rank, part in runs or [(rank, slice(*part)) for rank, *part in side.segments]]
            for array, runs, side in (
                (outbound, send_runs, self.pattern.sends),
                (inbound, receive_runs, self.pattern.receives),
            )
        )
        return self._cached.setdefault(addresses, PersistentMessages(self.comm, sends, receives, self.tag))


class StagedExchange(MpiExchange):
    """Device arrays through pinned host memory; the host waits for the device. Collective."""

    def __init__(self, *arguments: Any) -> None:
        self._pinned: list[tuple[np.ndarray, np.ndarray]] = []
        super().__init__(*arguments)

    def _buffers(self, slot: int) -> tuple[LocalArray, LocalArray]:
        leaving, arriving = super()._buffers(slot)
        self._pinned.append((_pinned(leaving), _pinned(arriving)))
        return self._pinned[slot]

    def send(self, slot: int, use: int) -> None:
        stream = self.engine.xp.cuda.get_current_stream()
        (values,) = self.outgoing[slot]
        if values.size:
            values.get(out=self._pinned[slot][0], stream=stream, blocking=False)
        stream.synchronize()  # also for the copy of the values received before
        self._messages[slot].start()

    def receive(self, slot: int, use: int) -> None:
        super().receive(slot, use)
        values = self.incoming[slot]
        if values.size:
            values.set(self._pinned[slot][1], stream=self.engine.xp.cuda.get_current_stream())


def _pinned(like: LocalArray) -> np.ndarray:
    """Return an array in page-locked host memory."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(max(1, like.nbytes))
    return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)
