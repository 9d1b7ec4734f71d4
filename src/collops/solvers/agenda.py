"""When a solver writes a checkpoint: every so many iterations or seconds, and when a signal asks it to stop.

A signal may reach one rank only, and clocks differ, but all ranks must write after the same iteration. They agree by a
small allreduce about twice a second, after an iteration whose number they agreed upon the last time; where iterations
take longer than that, after each. The sums of an iteration could carry this information without a message, but every
method would need a place for it, and the host would wait for the device in every iteration.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from collops.comm import Communicator
from collops.errors import InputError

__all__ = ["ASKING", "Agenda", "Every", "Signals"]

ASKING = (signal.SIGTERM, signal.SIGUSR1)
"""The signals that batch systems send before they end a job."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_SECONDS = 600.0
_SECONDS_BETWEEN_MEETINGS = 0.5


@dataclass(frozen=True)
class Every:
    """How often a checkpoint is written: by one of these.

    Attributes
    ----------
    iterations : int, optional
        Number of iterations between two.
    seconds : float, optional
        Time between two; the current iteration is finished first.
    """

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, every: Any) -> Every:
        """Return what the argument of a user means.

        Parameters
        ----------
        every : int, str or None
            A number of iterations, or a text: such a number, or one of seconds, minutes or hours with its unit, such as
            ``"30s"``, ``"10m"`` or ``"1.5h"``. None: ten minutes.

        Raises
        ------
        InputError
            If it is none of these, or not positive.
        """
        if every is None:
            return cls(seconds=_DEFAULT_SECONDS)
        text = str(every).strip() if isinstance(every, str | int | np.integer) and not isinstance(every, bool) else ""
        if re.fullmatch(r"\d+", text) and int(text) > 0:
            return cls(iterations=int(text))
        time_of = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh])", text)
        if time_of and float(time_of[1]) > 0:
            return cls(seconds=float(time_of[1]) * _UNITS[time_of[2]])
        raise InputError(
            f"every must be a positive number of iterations, or a time such as '30s', '10m' or '2h', not {every!r}"
        )


class Signals:
    """A context that records the first of these signals, and restores their handlers at its end.

    Python runs handlers in the main thread only: in another thread, or for a signal whose handler is not Python's,
    nothing changes.

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


class Agenda:
    """Decides after each iteration whether the ranks of a solver write a checkpoint, and whether they stop.

    The solver begins after `iteration`; `signals` are those that this rank receives.
    """

    def __init__(self, every: Every, signals: Signals, comm: Communicator, iteration: int) -> None:
        self._every = every
        self._signals = signals
        self._comm = comm
        self._first = iteration
        self._meeting, self._interval = iteration + 1, 1
        self._start = self._written = time.monotonic()

    def after(self, iteration: int) -> tuple[bool, int]:
        """Return whether to write a checkpoint now, and the number of a signal that asks to stop, or 0. Collective.

        Parameters
        ----------
        iteration : int
            The last one; one more than at the call before.
        """
        counted = self._every.iterations
        due = counted is not None and (iteration - self._first) > 0 and iteration % counted == 0
        if iteration < self._meeting:
            return due, 0
        now = time.monotonic()
        late = self._every.seconds is not None and now - self._written >= self._every.seconds
        pace = (iteration - self._first) / max(now - self._start, 1e-9)
        # At most twice as long as before, for the first iterations may be quicker than those to come.
        interval = min(max(1, int(pace * _SECONDS_BETWEEN_MEETINGS)), 2 * self._interval)
        agreed = self._comm.allreduce(np.array([self._signals.received, late, interval], np.int64), "max")
        received, late, self._interval = (int(number) for number in agreed)
        self._meeting = iteration + self._interval
        if late:
            self._written = now
        return due or bool(late), received
