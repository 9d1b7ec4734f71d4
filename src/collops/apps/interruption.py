"""Signals that end a job of the command line, from its first line to its last.

Until the solver has something to save, a signal ends the job at once. While a solver with checkpoints iterates, its own
handlers (`collops.solvers.checkpoint.Signals`) replace these: all ranks write a checkpoint first. Once the solution is
known, signals no longer end the job, which only writes its results: a queue that asks it to end then gets them. Work
that takes long before that, such as samples of the posterior, asks whether one was `received`, and ends early.

A launcher forwards signals to one rank, some, or all; the rank that gets one ends the others. Those that still
initialise MPI can be ended only by a rank that has initialised it: launchers wait for ranks that have left before.
Therefore signals are noted until `begin`.

This module needs only the standard library, since the handlers are installed before other modules are imported.
"""

from __future__ import annotations

import atexit
import signal
from types import FrameType

__all__ = ["INTERRUPTED", "TO_BE_RESUMED", "Stopped", "begin", "complete", "install", "received"]

TO_BE_RESUMED, INTERRUPTED = 75, 130  # EX_TEMPFAIL of sysexits.h, and what shells expect after Ctrl-C
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# A rank that cannot end itself by then, as in the set-up of MPI, is ended by the system, and then by its launcher.
_LONGEST_SECONDS = 30


class Stopped(SystemExit):
    """A signal ends the job at once; `number` is the signal's. No ``except Exception`` stops it."""

    def __init__(self, number: int) -> None:
        self.exit_code = INTERRUPTED if number == signal.SIGINT else TO_BE_RESUMED
        super().__init__(self.exit_code)
        self.number = number


class _Job:
    """The state of this process."""

    begun = False  # whether a signal may end it at once
    complete = False  # whether signals no longer end it
    received = 0  # the first signal


def install() -> None:
    """Install the handlers of a job, in the first line of a program."""
    for number in STOP_SIGNALS:
        # Shells have jobs in the background ignore Ctrl-C.
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _receive)
    # Registered first and so called last: what follows takes no time, but Python would restore the system's handlers.
    atexit.register(_ignore)


def begin() -> None:
    """Let a signal end the job at once from now on; raise `Stopped` if there was one."""
    _Job.begun = True
    if _Job.received and not _Job.complete:
        raise Stopped(_Job.received)


def complete() -> None:
    """Let signals no longer end the job, except for a second Ctrl-C: only its results are still to be written."""
    _Job.complete = True
    if _Job.received:
        signal.alarm(0)


def received() -> bool:
    """Return whether this process got a signal that asks the job to end."""
    return _Job.received != 0


def _receive(number: int, _frame: FrameType | None) -> None:
    at_once = number == signal.SIGINT and _Job.received != 0
    _Job.received = _Job.received or number
    if _Job.complete and not at_once:
        return
    signal.alarm(_LONGEST_SECONDS)
    if _Job.begun or at_once:
        raise Stopped(number)


def _ignore() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
