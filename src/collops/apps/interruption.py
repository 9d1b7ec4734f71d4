"""Handling of signals that end a command-line job, from start to exit.

Until the solver has progress to save, a signal ends the job at once. While a solver with checkpoints iterates, its own
handlers (`collops.solvers.checkpoint.Signals`) replace these: all ranks write a checkpoint first. Once the solution is
known, signals no longer end the job, which only writes its results. Longer work after the solver, such as sampling the
posterior, checks whether a signal was `received`, and ends early.

A launcher forwards signals to one rank, some, or all; the rank that receives a signal ends the others. Ranks that are
still initialising MPI can be ended only by a rank that has initialised it: launchers wait for ranks that exit before.
Therefore signals are only recorded until `begin`.

This module needs only the standard library, since the handlers are installed before other modules are imported.
"""

from __future__ import annotations

import atexit
import signal
from types import FrameType

__all__ = ["INTERRUPTED", "TO_BE_RESUMED", "Stopped", "begin", "complete", "install", "received"]

TO_BE_RESUMED, INTERRUPTED = 75, 130  # EX_TEMPFAIL of sysexits.h, and the code that shells expect after Ctrl-C
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# After this time SIGALRM ends a rank that cannot end itself, such as during MPI initialisation.
_TIMEOUT_SECONDS = 30


class Stopped(SystemExit):
    """A signal ends the job at once; `number` is the number of the signal. ``except Exception`` does not catch it."""

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
    """Install the handlers of a job, at the start of a program."""
    for number in STOP_SIGNALS:
        # Background jobs of shells ignore Ctrl-C.
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _receive)
    # Registered first, therefore called last: Python would otherwise restore the default handlers before it exits.
    atexit.register(_ignore)


def begin() -> None:
    """Let signals end the job at once from now on; raise `Stopped` if one was received before."""
    _Job.begun = True
    if _Job.received and not _Job.complete:
        raise Stopped(_Job.received)


def complete() -> None:
    """Ignore signals from now on, except a second Ctrl-C: only the results remain to be written."""
    _Job.complete = True
    if _Job.received:
        signal.alarm(0)


def received() -> bool:
    """Return whether this process received a signal that ends the job."""
    return _Job.received != 0


def _receive(number: int, _frame: FrameType | None) -> None:
    at_once = number == signal.SIGINT and _Job.received != 0
    _Job.received = _Job.received or number
    if _Job.complete and not at_once:
        return
    signal.alarm(_TIMEOUT_SECONDS)
    if _Job.begun or at_once:
        raise Stopped(number)


def _ignore() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
