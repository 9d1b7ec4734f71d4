"""How a program of several ranks ends: for all with an error on one, and agreed upon where calls are checked."""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from types import TracebackType
from typing import Any

from collops.comm.abort import abort
from collops.comm.calls import Calls
from collops.comm.deadline import ENDED, Watch
from collops.errors import CommunicationError

__all__ = ["abort_on_uncaught_errors", "answer_after_the_end", "end_together"]

_END = "the end of the program"
_SHORTEST_NAP_SECONDS, _LONGEST_NAP_SECONDS = 2e-5, 5e-3
_UNNOTICED_SECONDS = 1.0  # that a rank may end before others without their hearing of it
_MISSED_SECONDS = 5.0  # for ranks that have given up, but may still end by themselves
_answering: weakref.WeakSet[Watch] = weakref.WeakSet()


def answer_after_the_end(watch: Watch) -> None:
    """Have those that wait on a communicator hear that this rank's program has ended, until all ranks' have."""
    _answering.add(watch)


def end_together(mpi: Any, control: Any, watch: Watch, calls: Calls | None) -> None:
    """Have this rank wait for the others when its program ends, as MPI does, but answering those that wait for it.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    control : mpi4py.MPI.Comm
        Of the world.
    watch : Watch
        Of the world.
    calls : Calls, optional
        Where calls are checked, the end of the program is one of them.
    """

    def end() -> None:
        if mpi.Is_finalized():
            return
        try:
            if calls is not None and not watch.failure:
                calls.collective(_END, {"call": "end"})
        except CommunicationError as error:
            abort(mpi, 1, f"collops: {type(error).__name__}: {error}")
        _wait_for_others(mpi, control, watch)

    atexit.register(end)


def _wait_for_others(mpi: Any, control: Any, watch: Watch) -> None:
    everyone = control.Ibarrier()
    begin, nap, told = time.monotonic(), _SHORTEST_NAP_SECONDS, False
    while not everyone.Test():
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        waited = time.monotonic() - begin
        for each in _answering:
            if each.notes.waiting():
                each.notes.swap({"kind": ENDED, "call": _END, "place": "", "why": ""})
        if waited > _UNNOTICED_SECONDS and not told:
            for each in _answering:
                each.notes.say_end(each.turns.done)
            told = True
        if waited > _MISSED_SECONDS and watch.failure:
            abort(mpi, 1, f"collops: rank {control.rank} has ended and ends all ranks, since some no longer answer")
    # Messages that nobody took would be an error of the program for MPI.
    for each in _answering:
        each.notes.hear_ends()
        for _ in each.notes.hear_words():
            pass


def abort_on_uncaught_errors(mpi: Any) -> None:
    """End all ranks when one ends with an error that it does not share with them; they would wait for it for ever.

    Errors that :meth:`Communicator.check` raised end every rank by themselves. The hook that was there before reports
    the error.
    """
    if getattr(sys.excepthook, "ends_all_ranks", False):
        return
    report = sys.excepthook

    def end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            report(kind, error, trace)
        finally:
            if not getattr(error, "on_all_ranks", False):
                here = f"rank {mpi.COMM_WORLD.rank} of {mpi.COMM_WORLD.size}"
                abort(mpi, 1, f"collops: {here} ends all ranks, because of its {kind.__name__} above")

    end_all_ranks.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = end_all_ranks
