"""The transport of a world of one: every message goes to oneself, as a copy or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from collops.comm.transport import Message, Pending, Transport
from collops.errors import CommunicationError

__all__ = ["SerialTransport"]


class SerialTransport(Transport):
    """Moves arrays of any engine from this rank to itself."""

    name = "serial"

    def __init__(self) -> None:
        self._sent: dict[int, deque[Any]] = {}

    def allreduce(self, source: Any, target: Any, op: str) -> None:
        _copy(source, target)

    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        _copy(source, target)

    def bcast(self, source: Any, target: Any, root: int) -> None:
        _copy(source, target)

    def allgather(self, source: Any, target: Any) -> None:
        _copy(source, target)

    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        _copy(source, target)

    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        _copy(source, target)

    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        _copy(source, target)

    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        _copy(source, target)

    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        _copy(source, target)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        for _, array in sends:
            self._sent.setdefault(tag, deque()).append(array.copy())
        return _ToMyself([array for _, array in receives], self._sent.setdefault(tag, deque()))

    def barrier(self) -> None:
        pass


class _ToMyself(Pending):
    __slots__ = ("_receives", "_sent")

    def __init__(self, receives: list[Any], sent: deque[Any]) -> None:
        self._receives = receives
        self._sent = sent

    def wait(self) -> None:
        for array in self._receives:
            if not self._sent:
                raise CommunicationError("recv: nothing was sent, and in a world of one nobody else will")
            _copy(self._sent.popleft(), array)
        self._receives = []


def _copy(source: Any, target: Any) -> None:
    if source is not target:
        target[...] = source.reshape(target.shape)
