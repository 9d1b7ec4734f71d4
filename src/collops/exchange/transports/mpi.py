"""Persistent messages of MPI, from host memory, from device memory that MPI can read, or through pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.comm.mpi import PersistentMessages, addresses_of
from collops.exchange.exchange import PLACES, Exchange, LocalWork
from collops.exchange.pattern import Side

_LONG = 1 << 10  # bytes, from where messages for certain arrays are worth keeping
_MAX_KEPT = 64


class MpiExchange(Exchange):
    """One persistent message to and from each other rank, in each place. Collective.

    Whole moves of host arrays send long runs of points from where they lie, and receive them where they go if they
    replace values there; such messages are kept for the arrays that are used again and again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._kept: dict[tuple[int, int], PersistentMessages] = {}
        self.allocate()
        self._synchronize = self.engine.synchronize if self.engine.memory == "device" else None
        self._messages = []
        self._held = [self._buffers(place) for place in range(PLACES)]
        for leaving, arriving in self._held:
            sends = [(rank, leaving[start:stop]) for rank, start, stop in self.pattern.sends.segments]
            receives = [(rank, arriving[start:stop]) for rank, start, stop in self.pattern.receives.segments]
            self._messages.append(PersistentMessages(self.comm, sends, receives, self.tag))

    def _buffers(self, place: int) -> tuple[Any, Any]:
        """Return the memory that messages leave from and arrive in."""
        return self.outgoing[place][0], self.incoming[place]

    def send(self, place: int, use: int) -> None:
        if self._synchronize is not None:
            self._synchronize()
        self._messages[place].start()

    def receive(self, place: int, use: int) -> None:
        self._messages[place].wait(self._held[place])

    def mover(self, work: LocalWork) -> Callable[[Any, Any], Any]:
        if self.engine.memory == "device":
            return super().mover(work)
        leaving, arriving = self._runs(self.pattern.sends), self._runs(self.pattern.receives)
        if work.op != "replace" or not work.arriving.unique or np.isin(work.arriving.points, work.there.points).any():
            arriving = None  # values are combined one after the other
        packing, stay, unpack = self._packing(work), work.stay(), work.unpacker()
        turn, incoming, prepared, kept = self.turn, self.incoming, self._messages, self._kept
        short, address_of = leaving is None and arriving is None, addresses_of(self.dtype)

        def move(source: Any, target: Any) -> Any:
            place, _ = turn()
            given, taken = source, target if arriving else incoming[place]
            if leaving is None:
                ((pack, given),) = packing[place]
                pack(source, given)
            if short:
                messages = prepared[place]
            else:
                places = address_of(given), address_of(taken)
                messages = kept.get(places) or self._keep(places, given, leaving, taken, arriving)
            messages.start()
            if stay is not None:
                target = stay(source, target)
            messages.wait((given, taken))
            return target if arriving or unpack is None else unpack(taken, target)

        return move

    def _runs(self, side: Side) -> list[tuple[int, slice]] | None:
        """Return the other ranks, and their points of the array; ``None`` unless those are long runs."""
        if side.points.size * self.width * self.dtype.itemsize < _LONG:
            return None
        runs = [(rank, side.points.piece(start, stop).slice) for rank, start, stop in side.segments]
        long = [(rank, run) for rank, run in runs if run is not None and run.step == 1]
        return long if len(long) == len(runs) else None

    def _keep(self, places: tuple[int, int], given: Any, leaving: Any, taken: Any, arriving: Any) -> PersistentMessages:
        """Prepare messages between these arrays, or parts of buffers for a side without runs."""
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        sends, receives = (
            [(rank, array[part]) for rank, part in runs or [(rank, slice(*part)) for rank, *part in side.segments]]
            for array, runs, side in ((given, leaving, self.pattern.sends), (taken, arriving, self.pattern.receives))
        )
        return self._kept.setdefault(places, PersistentMessages(self.comm, sends, receives, self.tag))


class StagedExchange(MpiExchange):
    """Device arrays through pinned host memory; the host waits for the device. Collective."""

    def __init__(self, *arguments: Any) -> None:
        self._pinned: list[tuple[np.ndarray, np.ndarray]] = []
        super().__init__(*arguments)

    def _buffers(self, place: int) -> tuple[Any, Any]:
        leaving, arriving = super()._buffers(place)
        self._pinned.append((_pinned(leaving), _pinned(arriving)))
        return self._pinned[place]

    def send(self, place: int, use: int) -> None:
        stream = self.engine.xp.cuda.get_current_stream()
        (values,) = self.outgoing[place]
        if values.size:
            values.get(out=self._pinned[place][0], stream=stream, blocking=False)
        stream.synchronize()  # also for the copy of what arrived the time before
        self._messages[place].start()

    def receive(self, place: int, use: int) -> None:
        super().receive(place, use)
        values = self.incoming[place]
        if values.size:
            values.set(self._pinned[place][1], stream=self.engine.xp.cuda.get_current_stream())


def _pinned(like: Any) -> np.ndarray:
    """Return an array in page-locked host memory."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(max(1, like.nbytes))
    return np.frombuffer(memory, like.dtype, like.size).reshape(like.shape)
