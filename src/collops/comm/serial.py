"""The transport of a world of one: every message goes to this rank itself, as a copy or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from collops.comm.call import Call
from collops.comm.transport import Message, Pending, Transport
from collops.errors import CommunicationError


class SerialTransport(Transport):
    """Moves arrays of any engine from this rank to itself."""

    name = "serial"

    def __init__(self) -> None:
        self._sent: dict[int, deque[Any]] = {}

    def run(self, call: Call) -> None:
        """Copy the source of any call to its target."""
        if call.target is not call.source:
            call.target[...] = call.source.reshape(call.target.shape)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Keep copies of what is sent until it is received."""
        sent = self._sent.setdefault(tag, deque())
        sent.extend(array.copy() for _, array in sends)
        return _ToItself([array for _, array in receives], sent)


class _ToItself(Pending):
    __slots__ = ("_receives", "_sent")

    def __init__(self, receives: list[Any], sent: deque[Any]) -> None:
        self._receives = receives
        self._sent = sent

    def wait(self) -> None:
        for array in self._receives:
            if not self._sent:
                raise CommunicationError("recv: nothing was sent, and in a world of one there is no other sender")
            array[...] = self._sent.popleft().reshape(array.shape)
        self._receives = []
