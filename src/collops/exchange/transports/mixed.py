"""Two levels in one exchange: memory between the ranks of a host, persistent messages between hosts.

All values arrive in one buffer, ordered by rank, so that they are combined in the same order as on other transports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops.comm.agreement import collective_errors
from collops.comm.mpi import PersistentMessages
from collops.errors import CommunicationError
from collops.exchange.exchange import PLACES
from collops.exchange.transports.shared import SharedExchange

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.comm.symmetric import Symmetric


class MixedExchange(SharedExchange):
    """Memory shared by the ranks of each host, and messages to all others. Collective."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        sends, receives = self.pattern.sends.segments, self.pattern.receives.segments
        self._messages = []
        for place in range(PLACES):
            leaving, arriving = self.outgoing[place], self.incoming[place]
            given = [(to, piece) for (to, *_), piece in zip(sends, leaving, strict=True) if to not in self._numbers]
            taken = [(by, arriving[start:stop]) for by, start, stop in receives if by not in self._numbers]
            self._messages.append(PersistentMessages(self.comm, given, taken, self.tag))

    def _allocated(self, near: Communicator, size: int) -> Symmetric:
        memory = None
        try:
            with collective_errors(self.comm, CommunicationError):  # hosts communicate, each by itself
                memory = super()._allocated(near, size)
        except Exception:
            if memory is not None:  # another host has none
                memory.free()
            raise
        return memory

    def send(self, place: int, use: int) -> None:
        self._messages[place].start()
        super().send(place, use)

    def receive(self, place: int, use: int) -> None:
        # First what needs this rank's calls to make progress.
        self._messages[place].wait((self.outgoing[place], self.incoming[place]))
        super().receive(place, use)

    def free(self) -> None:
        self._messages = []
        super().free()
