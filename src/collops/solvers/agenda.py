"""When a solver writes a checkpoint: every so many iterations or seconds, and when a signal asks it to stop.

A signal may reach one rank only, and clocks differ, but all ranks must write after the same iteration. They agree by a
small allreduce about twice a second, after an iteration whose number they agreed upon the last time; where iterations
take longer than that, after each. Beside it, a piggyback on the sums of an iteration would cost a message nothing, but
every method a place in them, and the host a wait for the device in every iteration.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.comm import Communicator
from collops.errors import InputError
from collops.solvers.signals import Signals

__all__ = ["Agenda", "Every"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_SECONDS = 600.0
_SECONDS_BETWEEN_MEETINGS = 0.5


@dataclass(frozen=True)
class Every:
    """How often a checkpoint is written: one of these is given.

    Attributes
    ----------
    iterations : int, optional
        After how many iterations.
    seconds : float, optional
        After how much time; the iteration under way is finished.
    """

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, every: Any) -> Every:
        """Return what a user means.

        Parameters
        ----------
        every : int, str or None
            A number of iterations, or a text: such a number, or one of seconds, minutes or hours with its unit, such as
            ``"30s"``, ``"10m"`` or ``"1.5h"``. None: ten minutes.

        Raises
        ------
        InputError
            If it is none of that, or not positive.
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


class Agenda:
    """What the ranks of one solver do after an iteration.

    Parameters
    ----------
    every : Every
        How often to write.
    signals : Signals
        Those that have come to this rank.
    comm : Communicator
        The ranks.
    iteration : int
        The one that the solver begins after.
    """

    def __init__(self, every: Every, signals: Signals, comm: Communicator, iteration: int) -> None:
        self._every = every
        self._signals = signals
        self._comm = comm
        self._first = iteration
        self._meeting, self._interval = iteration + 1, 1
        self._start = self._written = time.monotonic()

    def after(self, iteration: int) -> tuple[bool, int]:
        """Return whether to write a checkpoint now, and the number of the signal that asks to stop, or 0. Collective.

        Parameters
        ----------
        iteration : int
            The one that is done; one more than at the call before.
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
        signal, late, self._interval = (int(number) for number in agreed)
        self._meeting = iteration + self._interval
        if late:
            self._written = now
        return due or bool(late), signal
