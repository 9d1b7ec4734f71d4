"""How a program of several ranks ends: for all with an error on one, and agreed upon where calls are checked."""

from __future__ import annotations

import atexit
import sys
from types import TracebackType
from typing import Any

from collops.comm.calls import Calls
from collops.comm.deadline import Watch
from collops.errors import CommunicationError

__all__ = ["abort_on_uncaught_errors", "end_together"]


def end_together(mpi: Any, calls: Calls, watch: Watch) -> None:
    """Have the end of the program agreed upon like a call, for ranks that go on would wait for this one in vain."""

    def end() -> None:
        if watch.broken:
            return
        try:
            calls.collective("the end of the program", {"call": "end"})
        except CommunicationError as error:
            _say(f"collops: {type(error).__name__}: {error}")
            mpi.COMM_WORLD.Abort(1)

    atexit.register(end)


def abort_on_uncaught_errors(mpi: Any) -> None:
    """End all ranks when one ends with an error that it does not share with them; they would wait for it for ever.

    Errors that :meth:`Communicator.check` raised end every rank by themselves. The hook that was there before reports
    the error.
    """
    if getattr(sys.excepthook, "ends_all_ranks", False):
        return
    report = sys.excepthook

    def end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        report(kind, error, trace)
        sys.stdout.flush()
        if not getattr(error, "on_all_ranks", False):
            world = mpi.COMM_WORLD
            _say(f"collops: rank {world.rank} of {world.size} ends all ranks, because of its {kind.__name__} above")
            world.Abort(1)

    end_all_ranks.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = end_all_ranks


def _say(line: str) -> None:
    # In one piece, so that lines of several ranks do not mix, and before all of them are ended.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
