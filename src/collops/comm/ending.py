"""The end of a program of several ranks: collective, or an immediate abort after an error on a single rank."""

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
from typing import TextIO

from collops._forks import at_fork, register_at_exit
from collops._launcher import is_forked
from collops.comm.agreement import Mpi, name_ranks
from collops.comm.bounded import is_blocked
from collops.comm.checked import CallAgreement
from collops.comm.failure import PROGRAM_END, Failures
from collops.comm.mpi import mpi_or_tcp, running_mpi_or_tcp
from collops.errors import CommunicationError

__all__ = ["abort", "end_if_blocked"]

_SHORTEST_NAP_SECONDS, _LONGEST_NAP_SECONDS = 2e-5, 5e-3
_UNANNOUNCED_SECONDS = 1.0  # allowed between the ends of ranks without a message
_MISSED_SECONDS = 5.0  # for ranks that aborted a wait and may still exit normally
_LONGEST_SECONDS = 2.0  # for the launcher to read output: a launcher that hangs must not block the other ranks
_answering: weakref.WeakSet[Failures] = weakref.WeakSet()


def answer_after_the_end(failures: Failures) -> None:
    """Register a communicator for answers that this rank's program has ended, until all programs have ended."""
    _answering.add(failures)


def stop_answering(failures: Failures) -> None:
    """Unregister a freed communicator."""
    _answering.discard(failures)


at_fork(_answering.clear)


def end_together(failures: Failures, agreement: CallAgreement | None) -> None:
    """Register an exit function that waits for the other ranks, as MPI does, and answers ranks that wait for this one.

    `failures` belongs to the world. With ``COLLOPS_CHECK``, `agreement` also checks the end of the program.
    """
    mpi = mpi_or_tcp()

    def end() -> None:
        if not mpi.Is_finalized():
            wait_for_ends(failures, agreement)

    register_at_exit(end)


def wait_for_ends(failures: Failures, agreement: CallAgreement | None) -> None:
    """Wait until the programs of all ranks have ended; meanwhile answer ranks that wait for this one.

    Aborts all ranks if some make different calls or no longer respond. Collective: at the end of the program.
    """
    mpi = mpi_or_tcp()
    try:
        if agreement is not None and not failures.failure:
            agreement.collective(PROGRAM_END, {"call": "end"})
    except CommunicationError as error:
        abort(mpi, 1, f"collops: {type(error).__name__}: {error}")
    _wait_for_others(mpi, failures)


def _wait_for_others(mpi: Mpi, failures: Failures) -> None:
    all_ended = failures.channel.barrier()
    begin, nap, announced = time.monotonic(), _SHORTEST_NAP_SECONDS, False
    while not all_ended():
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        waited = time.monotonic() - begin
        if failures.channel.lost:
            gone = name_ranks(sorted(failures.channel.lost))
            abort(mpi, 1, f"collops: rank {failures.channel.rank} ends: the process of {gone} has exited")
        for communicator in _answering:
            communicator.answer()
            if waited > _UNANNOUNCED_SECONDS and not announced:
                communicator.end()
        announced = announced or waited > _UNANNOUNCED_SECONDS
        if waited > _MISSED_SECONDS and failures.failure:
            rank = failures.channel.rank
            abort(mpi, 1, f"collops: rank {rank} has ended and ends all ranks, because some no longer respond")
    for communicator in _answering:
        communicator.receive()  # MPI would report messages that are never received


def abort_on_uncaught_errors() -> None:
    """Abort all ranks if one ends with an error that the others do not raise; they would wait for it forever.

    Errors with `on_all_ranks` end every rank anyway, unless this rank waits for a file system. The previous
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
                name = f"rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}"
                abort(mpi, 1, f"collops: {name} ends all ranks, because of its {kind.__name__} above")

    end_all_ranks.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = end_all_ranks


def end_if_blocked(code: int) -> None:
    """Abort this program, and all ranks, with exit code `code`, if a thread still waits for a file system."""
    if not is_blocked():
        return
    if (mpi := running_mpi_or_tcp()) is not None:
        rank = mpi.COMM_WORLD.rank
        abort(mpi, code, f"collops: rank {rank} ends all ranks, because its file system does not respond")
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(code)


def abort(mpi: Mpi, code: int, why: str) -> None:
    """Abort the processes of all ranks with exit code `code`, after one line `why` on standard error.

    This rank first waits until its launcher has read its output: launchers discard unread data in their pipes.
    """
    try:
        # The more important stream first, in one write, so that lines of several ranks do not mix.
        _deliver(sys.stderr, 2, f"{why}\n")
        _deliver(sys.stdout, 1)
    finally:  # also if writing fails
        mpi.COMM_WORLD.Abort(code)
        os._exit(code)  # MPICH returns on a host that its launcher can no longer reach


def _deliver(stream: TextIO | None, descriptor: int, text: str = "") -> None:
    if stream is None:  # closed: the descriptor may be another file
        return
    stream.write(text)
    stream.flush()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while _unread_bytes(descriptor) and time.monotonic() < deadline:
        time.sleep(1e-3)


def _unread_bytes(descriptor: int) -> int:
    # Files and terminals outlive the launcher; only a pipe's contents do not.
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return 0
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)
