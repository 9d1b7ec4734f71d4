"""Report errors: one line for those that a user can correct, a traceback for bugs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from collops.cli.launch import started
from collops.comm.ending import abort
from collops.errors import CollopsError, Interrupted

__all__ = ["guarded"]

BAD_INPUT, _BUG, _INTERRUPTED = 2, 1, 130


def report(command: str, message: str) -> None:
    """Write one line on standard error, from the first rank only."""
    launcher = started()
    if launcher is None or launcher.rank == 0:
        _write(f"{command}: {' '.join(message.split())}")


def guarded(command: str, body: Callable[[], int], *, debug: bool = False) -> int:
    """Run `body`, and turn its errors into an exit code that is the same on every rank.

    The code is the result of `body`; 75 if a signal made all ranks write a checkpoint; 2 for any other `CollopsError`,
    whose traceback `debug` shows; 130 after an interrupt from the keyboard; 1 for other exceptions.

    For an error that all ranks raise, the first rank writes one line, which begins with the `command`. A rank with an
    error of its own writes the line and ends the other ranks, which would wait for it.
    """
    try:
        return body()
    except Interrupted as error:
        report(command, str(error))
        return error.exit_code
    except CollopsError as error:
        if debug:
            traceback.print_exc()
        if error.on_all_ranks or not _in_parallel():
            report(command, str(error))
        else:
            rank = sys.modules["mpi4py.MPI"].COMM_WORLD.rank
            _end_all_ranks(BAD_INPUT, f"{command}: rank {rank}: {' '.join(str(error).split())}")
        return BAD_INPUT
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception:
        # The only place that catches everything: the other ranks would wait for this one.
        traceback.print_exc()
        _end_all_ranks(_BUG, f"{command}: this is a bug in collops; please report it with the lines above")
        return _BUG


def _write(line: str) -> None:
    # One system call, so that lines of several ranks do not mix.
    sys.stderr.flush()
    os.write(2, (line + "\n").encode("utf-8", "replace"))


def _in_parallel() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1


def _end_all_ranks(code: int, why: str) -> None:
    if _in_parallel():
        abort(sys.modules["mpi4py.MPI"], code, why)
    else:
        _write(why)
