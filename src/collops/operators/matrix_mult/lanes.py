"""Lanes: where the messages of the next panel travel while this one is multiplied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from collops.backend import Engine

__all__ = ["Lane", "lane_for"]


class Lane(Protocol):
    """What orders messages beside products. Slots are the two buffers that take turns."""

    def begin(self) -> None:
        """Let messages start, after all that the current stream has to do so far."""

    def send(self, slot: int, message: Callable[[], Any], after_product: int | None = None) -> Any:
        """Return ``message()``, sent beside the products; after the last product of a slot if one is given."""

    def arrived(self, slot: int) -> None:
        """Let the current stream wait for what was last sent in `slot`."""

    def multiplied(self, slot: int) -> None:
        """Say that the product in `slot` has been launched."""

    def end(self) -> None:
        """Let the current stream wait for all messages."""


class _InOrder:
    """One thing after the other, as on hosts and where there is nothing to overlap."""

    def begin(self) -> None:
        pass

    def send(self, slot: int, message: Callable[[], Any], after_product: int | None = None) -> Any:
        return message()

    def arrived(self, slot: int) -> None:
        pass

    def multiplied(self, slot: int) -> None:
        pass

    def end(self) -> None:
        pass


class _StreamLane:
    """A stream for the messages, beside the one that multiplies. It can be captured together with that one."""

    def __init__(self, cupy: Any) -> None:
        self._current = cupy.cuda.get_current_stream
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._edge = cupy.cuda.Event(disable_timing=True)
        self._arrived = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
        self._multiplied = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]

    def begin(self) -> None:
        self._edge.record(self._current())
        self._stream.wait_event(self._edge)

    def send(self, slot: int, message: Callable[[], Any], after_product: int | None = None) -> Any:
        if after_product is not None:
            self._stream.wait_event(self._multiplied[after_product])
        with self._stream:
            result = message()
        self._arrived[slot].record(self._stream)
        return result

    def arrived(self, slot: int) -> None:
        self._current().wait_event(self._arrived[slot])

    def multiplied(self, slot: int) -> None:
        self._multiplied[slot].record(self._current())

    def end(self) -> None:
        self._edge.record(self._stream)
        self._current().wait_event(self._edge)


_IN_ORDER = _InOrder()


def lane_for(engine: Engine, panels: int) -> Lane:
    """Return how messages and products of an engine's arrays are ordered, for so many panels."""
    return _StreamLane(engine.xp) if engine.name == "cupy" and panels > 1 else _IN_ORDER
