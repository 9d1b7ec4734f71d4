"""Two-level exchanges: shared memory within a host, persistent messages between hosts.

All values are received in one buffer, ordered by rank, and so combined in the same order as on other transports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops.comm.agreement import collective_errors
from collops.comm.mpi_exchanges import PersistentMessages
from collops.errors import CommunicationError
from collops.exchange.exchange import SLOTS
from collops.exchange.transports.shared import SharedExchange

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.comm.parts import Part


class MixedExchange(SharedExchange):
    """Memory shared by the ranks of each host, and messages to all others. Collective."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        sends, receives = self.pattern.sends.segments, self.pattern.receives.segments
        self._messages = []
        for slot in range(SLOTS):
            leaving, arriving = self.outgoing[slot], self.incoming[slot]
            outbound = [
                (rank, piece) for (rank, *_), piece in zip(sends, leaving, strict=True) if rank not in self._near_ranks
            ]
            inbound = [(rank, arriving[start:stop]) for rank, start, stop in receives if rank not in self._near_ranks]
            self._messages.append(PersistentMessages(self.comm, outbound, inbound, self.tag))

    def _allocated(self, near: Communicator, size: int) -> Part:
        memory = None
        try:
            with collective_errors(self.comm, CommunicationError):  # hosts communicate, each by itself
                memory = super()._allocated(near, size)
        except Exception:
            if memory is not None:  # the allocation failed on another host
                memory.free()
            raise
        return memory

    def send(self, slot: int, use: int) -> None:
        self._messages[slot].start()
        super().send(slot, use)

    def receive(self, slot: int, use: int) -> None:
        # Messages first: they make progress only during calls of MPI.
        self._messages[slot].wait((self.outgoing[slot], self.incoming[slot]))
        super().receive(slot, use)

    def free(self) -> None:
        self._messages = []
        super().free()
