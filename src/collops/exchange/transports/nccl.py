"""Grouped sends of NCCL: all messages are one launch, and the host never waits."""

from __future__ import annotations

from typing import Any

from collops.backend import LocalArray
from collops.comm.transport import KnownExchange
from collops.exchange.exchange import SLOTS, Exchange


class NcclExchange(Exchange):
    """Messages of the communicator's transport. Not collective."""

    on_stream = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.allocate()
        transport: Any = self.comm.transport_of(self.engine.xp.empty(0, self.dtype))
        self._start = transport.start_addresses
        self._messages = []
        self._known = KnownExchange()
        self._pending: list[Any] = [None] * SLOTS
        for slot in range(SLOTS):
            (leaving,), arriving = self.outgoing[slot], self.incoming[slot]
            sends = [_message(rank, leaving[start:stop]) for rank, start, stop in self.pattern.sends.segments]
            receives = [_message(rank, arriving[start:stop]) for rank, start, stop in self.pattern.receives.segments]
            self._messages.append((sends, receives))

    def send(self, slot: int, use: int) -> None:
        self._pending[slot] = self._start(*self._messages[slot], False, self._known)

    def receive(self, slot: int, use: int) -> None:
        self._pending[slot].wait()


def _message(rank: int, values: LocalArray) -> tuple[int, int, int]:
    """Return rank, address and number of bytes."""
    return rank, values.data.ptr, values.nbytes
