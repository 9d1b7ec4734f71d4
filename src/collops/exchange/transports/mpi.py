"""Persistent messages of MPI or TCP, from host or pinned memory, or from device memory that MPI can read."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.exchange.exchange import PLACES, Exchange


class MpiExchange(Exchange):
    """One persistent message to and from each other rank, in each place. Collective."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.allocate()
        self._synchronize = self.engine.synchronize if self.engine.memory == "device" else None
        self._messages = []
        host: Any = self.comm.transport_of(np.empty(0))
        for place in range(PLACES):
            leaving, arriving = self._buffers(place)
            sends = [(rank, leaving[start:stop]) for rank, start, stop in self.pattern.sends.segments]
            receives = [(rank, arriving[start:stop]) for rank, start, stop in self.pattern.receives.segments]
            self._messages.append(host.persistent(sends, receives, self.tag))

    def _buffers(self, place: int) -> tuple[Any, Any]:
        """Return the memory that messages leave from and arrive in."""
        return self.outgoing[place][0], self.incoming[place]

    def send(self, place: int, use: int) -> None:
        if self._synchronize is not None:
            self._synchronize()
        self._messages[place].start()

    def receive(self, place: int, use: int) -> None:
        done = self._messages[place].done
        if not done():
            self.wait_for(done)


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
