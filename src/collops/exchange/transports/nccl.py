"""Grouped sends of NCCL: all messages are one launch, and the host never waits."""

from __future__ import annotations

from typing import Any

from collops.comm.transport import KnownExchange
from collops.exchange.exchange import PLACES, Exchange


class NcclExchange(Exchange):
    """Messages by the communicator's own transport. Not collective."""

    on_stream = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.allocate()
        transport: Any = self.comm.transport_of(self.engine.xp.empty(0, self.dtype))
        self._start = transport.start_addresses
        self._messages = []
        self._known = KnownExchange()
        self._pending: list[Any] = [None] * PLACES
        for place in range(PLACES):
            (leaving,), arriving = self.outgoing[place], self.incoming[place]
            sends = [_message(rank, leaving[start:stop]) for rank, start, stop in self.pattern.sends.segments]
            receives = [_message(rank, arriving[start:stop]) for rank, start, stop in self.pattern.receives.segments]
            self._messages.append((sends, receives))

    def send(self, place: int, use: int) -> None:
        self._pending[place] = self._start(*self._messages[place], False, self._known)

    def receive(self, place: int, use: int) -> None:
        self._pending[place].wait()


def _message(rank: int, values: Any) -> tuple[int, int, int]:
    """Return rank, address and number of bytes."""
    return rank, values.data.ptr, values.nbytes
