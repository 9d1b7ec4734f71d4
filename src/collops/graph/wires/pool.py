"""Channels with as many places as are in use at once, for wires that pair messages by their order."""

from __future__ import annotations

from abc import abstractmethod

from collops.graph.wires.wire import Channel, Transfer

__all__ = ["PoolChannel"]


class PoolChannel(Channel):
    """Transfers that are kept and used again; a new one is made when all are under way."""

    def __init__(self) -> None:
        self.idle: list[Transfer] = []

    def begin(self) -> Transfer:
        """Return a transfer that is not under way."""
        return self.idle.pop() if self.idle else self.make()

    @abstractmethod
    def make(self) -> Transfer:
        """Return a new transfer, with buffers of its own. Not collective."""
