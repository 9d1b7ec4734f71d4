"""Signals that ask a solver to stop: noted when they come, to be heeded when all ranks can."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["ASKING", "Signals"]

ASKING = (signal.SIGTERM, signal.SIGUSR1)
"""What batch systems send before they end a job."""


class Signals:
    """A context in which the first of these signals is noted, and does nothing else; the handlers return with its end.

    Python runs handlers in the main thread only: in another one, or for a signal whose handler is not Python's, nothing
    changes.

    Attributes
    ----------
    received : int
        Number of the signal, 0 for none.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                if signal.getsignal(number) is not None:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
