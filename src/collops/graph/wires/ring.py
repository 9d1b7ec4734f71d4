"""Channels with a fixed number of places that all ranks use in turn, for wires whose ends must agree on the place.

A rank that begins more transfers than there are places first moves the oldest one's values to other memory, so that no
rank waits for another to finish.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from collops.graph.wires.wire import Channel, Motion, Transfer, unpacker

__all__ = ["PLACES", "RingChannel", "RingTransfer"]

PLACES = 2


class RingTransfer(Transfer):
    """A transfer in one place of its channel.

    Parameters
    ----------
    channel : RingChannel
    place : int
    use : int
        How often the place has been used, this time included.

    Attributes
    ----------
    place : int
    displaced : bool
        Whether the values that arrived have been copied out of the place.
    """

    __slots__ = ("_arrived", "_channel", "_use", "displaced", "place")

    def __init__(self, channel: RingChannel, place: int, use: int) -> None:
        self._channel = channel
        self.place = place
        self._use = use
        self._arrived = False
        self.displaced = False
        self.outgoing = channel.outgoing[place]
        self.incoming = channel.incoming[place]

    def post(self) -> None:
        """Send the packed values."""
        self._channel.send(self.place, self._use)

    def wait(self) -> None:
        """Return when everything has arrived."""
        if not self._arrived:
            self._channel.receive(self.place, self._use)
            self._arrived = True

    def release(self) -> None:
        """Give the place back."""
        if not self.displaced:
            self._channel.busy[self.place] = None
            self._channel.consume(self.place, self._use)

    def displace(self) -> None:
        """Copy the values that arrive out of the place, which another transfer needs."""
        self.wait()
        self.incoming = self.incoming.copy()
        self.release()
        self.displaced = True


class RingChannel(Channel):
    """The places and their turns.

    Attributes
    ----------
    outgoing : list of list of array
        By place: the leaving values, in pieces.
    incoming : list of array
        By place: the values that arrive.
    busy : list of (RingTransfer or None)
        The transfer in each place.
    """

    def __init__(self) -> None:
        self.outgoing: list[list[Any]] = []
        self.incoming: list[Any] = []
        self.busy: list[RingTransfer | None] = [None] * PLACES
        self._begun = 0

    def begin(self) -> RingTransfer:
        """Return a transfer in the next place."""
        place, use = self.turn()
        transfer = self.busy[place] = RingTransfer(self, place, use)
        self.prepare(place, use)
        return transfer

    def turn(self) -> tuple[int, int]:
        """Return the place whose turn it is, which is free now, and how often it is used with this time."""
        use, place = divmod(self._begun, PLACES)
        self._begun += 1
        earlier = self.busy[place]
        if earlier is not None:
            earlier.displace()
        return place, use + 1

    def mover(self, motion: Motion) -> Callable[[Any, Any], Any]:
        """Prepare a mover whose start and end follow each other at once, and which needs no transfer object."""
        packers, stay, unpack = self.packers(motion), motion.move(motion.here, motion.there), unpacker(motion)
        places = [list(zip(packers, outgoing, strict=True)) for outgoing in self.outgoing]

        turn, prepare, send, receive, consume = self.turn, self.prepare, self.send, self.receive, self.consume

        def move(source: Any, target: Any) -> Any:
            place, use = turn()
            prepare(place, use)
            for pack, outgoing in places[place]:
                pack(source, outgoing)
            send(place, use)
            if stay is not None:
                stay(source, target)
            receive(place, use)
            if unpack is not None:
                unpack(self.incoming[place], target)
            consume(place, use)
            return target

        return move

    def prepare(self, place: int, use: int) -> None:
        """Make sure that the outgoing buffers of a place may be written."""

    @abstractmethod
    def send(self, place: int, use: int) -> None:
        """Send what is in a place."""

    @abstractmethod
    def receive(self, place: int, use: int) -> None:
        """Return when everything has arrived in a place."""

    def consume(self, place: int, use: int) -> None:
        """Let a place be filled again."""
