"""How a program of several ranks ends: all ranks together, and at once if one of them has an error of its own."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
import termios
import time
import weakref
from types import TracebackType
from typing import Any, TextIO

from collops._forks import at_fork, register_at_exit
from collops._launcher import is_forked
from collops.comm.agreement import name_ranks
from collops.comm.bounded import is_blocked
from collops.comm.checked import CallAgreement
from collops.comm.failure import PROGRAM_END, Failures
from collops.comm.mpi import mpi_or_tcp, running_mpi_or_tcp
from collops.errors import CommunicationError

__all__ = ["abort", "end_if_blocked"]

_SHORTEST_NAP_SECONDS, _LONGEST_NAP_SECONDS = 2e-5, 5e-3
_UNANNOUNCED_SECONDS = 1.0  # by which ranks may end one after the other without a message
_MISSED_SECONDS = 5.0  # for ranks that gave up and may still end by themselves
_LONGEST_SECONDS = 2.0  # that a launcher may take to read: one that hangs must not keep the other ranks waiting
_answering: weakref.WeakSet[Failures] = weakref.WeakSet()


def answer_after_the_end(failures: Failures) -> None:
    """Have a communicator's other ranks told that this rank's program has ended, until all programs have."""
    _answering.add(failures)


def stop_answering(failures: Failures) -> None:
    """End this for a communicator that is freed."""
    _answering.discard(failures)


at_fork(_answering.clear)


def end_together(failures: Failures, agreement: CallAgreement | None) -> None:
    """Have this rank wait for the others when its program ends, as MPI does, but answer those that wait for it.

    `failures` belongs to the world. Where calls are checked, its `agreement` checks the end of the program too.
    """
    mpi = mpi_or_tcp()

    def end() -> None:
        if not mpi.Is_finalized():
            wait_for_ends(failures, agreement)

    register_at_exit(end)


def wait_for_ends(failures: Failures, agreement: CallAgreement | None) -> None:
    """Return when the programs of all ranks have ended; until then answer those that wait for this one.

    Ends all ranks if some make calls that differ, or no longer answer. Collective: at the end of the program.
    """
    mpi = mpi_or_tcp()
    try:
        if agreement is not None and not failures.failure:
            agreement.collective(PROGRAM_END, {"call": "end"})
    except CommunicationError as error:
        abort(mpi, 1, f"collops: {type(error).__name__}: {error}")
    _wait_for_others(mpi, failures)


def _wait_for_others(mpi: Any, failures: Failures) -> None:
    all_ended = failures.channel.barrier()
    begin, nap, announced = time.monotonic(), _SHORTEST_NAP_SECONDS, False
    while not all_ended():
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        waited = time.monotonic() - begin
        if failures.channel.lost:
            gone = name_ranks(sorted(failures.channel.lost))
            abort(mpi, 1, f"collops: rank {failures.channel.rank} ends: the process of {gone} is gone")
        for each in _answering:
            each.answer()
            if waited > _UNANNOUNCED_SECONDS and not announced:
                each.end()
        announced = announced or waited > _UNANNOUNCED_SECONDS
        if waited > _MISSED_SECONDS and failures.failure:
            rank = failures.channel.rank
            abort(mpi, 1, f"collops: rank {rank} has ended and ends all ranks, because some no longer answer")
    for each in _answering:
        each.receive()  # MPI would report messages that are never received


def abort_on_uncaught_errors() -> None:
    """End all ranks when one ends with an error that the others do not raise; they would wait for it for ever.

    Errors with `on_all_ranks` end every rank by themselves, unless this one waits for a file system. The previous
    ``sys.excepthook`` reports the error.
    """
    if getattr(sys.excepthook, "ends_all_ranks", False):
        return
    report, mpi = sys.excepthook, mpi_or_tcp()

    def end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            report(kind, error, trace)
        finally:
            if not is_forked() and (not getattr(error, "on_all_ranks", False) or is_blocked()):
                here = f"rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}"
                abort(mpi, 1, f"collops: {here} ends all ranks, because of its {kind.__name__} above")

    end_all_ranks.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = end_all_ranks


def end_if_blocked(code: int) -> None:
    """End this program, and all ranks, with exit code `code`, if a thread still waits for a file system."""
    if not is_blocked():
        return
    if (mpi := running_mpi_or_tcp()) is not None:
        abort(mpi, code, f"collops: rank {mpi.COMM_WORLD.rank} ends all ranks, because its file system does not answer")
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(code)


def abort(mpi: Any, code: int, why: str) -> None:
    """End the processes of all ranks with exit code `code`, after one line `why` on standard error.

    This rank first waits until its launcher has read what it wrote: launchers drop what is still in their pipes.
    """
    try:
        # The more important stream first, and in one piece, so that lines of several ranks do not mix.
        _deliver(sys.stderr, 2, f"{why}\n")
        _deliver(sys.stdout, 1)
    finally:  # also if nothing can be written any more
        mpi.COMM_WORLD.Abort(code)
        os._exit(code)  # MPICH returns on a host that its launcher can no longer reach


def _deliver(stream: TextIO | None, descriptor: int, text: str = "") -> None:
    if stream is None:  # closed: the descriptor may be another file
        return
    stream.write(text)
    stream.flush()
    given_up = time.monotonic() + _LONGEST_SECONDS
    while _unread_bytes(descriptor) and time.monotonic() < given_up:
        time.sleep(1e-3)


def _unread_bytes(descriptor: int) -> int:
    # Files and terminals outlive the launcher; only a pipe's contents do not.
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return 0
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)
