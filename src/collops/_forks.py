"""Forked children of a rank: they do not use the ranks' resources, and are worlds of one.

A forked child has its parent's memory, connections and shared windows, so that it could send messages as its parent's
rank, or finalise MPI for it. Modules with such state register functions here that release it in the child.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

__all__ = ["at_fork", "end_child_without", "had_mpi", "is_child", "register_at_exit"]

_state = {"is child": False, "had MPI": False}


def is_child() -> bool:
    """Return whether this process was forked after ``import collops``."""
    return _state["is child"]


def had_mpi() -> bool:
    """Return whether mpi4py had been loaded when this process was forked."""
    return _state["had MPI"]


def at_fork(function: Callable[[], object]) -> None:
    """Register a function to be called in each forked child."""
    os.register_at_fork(after_in_child=function)


def register_at_exit(function: Callable[[], None]) -> None:
    """Register a function to be called at the end of this process, but not at the end of a forked child."""
    atexit.register(function)
    at_fork(partial(atexit.unregister, function))


def end_child_without(is_needed: Callable[[], bool]) -> None:
    """Let forked children skip the libraries' exit functions, if ``is_needed()`` is true in the child.

    mpi4py finalises MPI in such a function, also in a child, and thereby for the parent's rank. The child therefore
    ends by ``os._exit`` after all functions of :mod:`atexit`, with the status of ``sys.exit``, or 1 after an error.
    """
    at_fork(lambda: _Ending() if is_needed() else None)


class _Ending:
    """Ends this process at the end of its program, before exit functions of libraries."""

    def __init__(self) -> None:
        self._status: Any = None
        self._earlier_error = getattr(sys, "last_value", None)
        self._exit = sys.exit
        sys.exit = self._exit_with
        atexit.register(self._end)

    def _exit_with(self, status: Any = None, /) -> None:
        self._status = status
        self._exit(status)

    def _end(self) -> None:
        atexit.unregister(self._end)
        atexit._run_exitfuncs()  # functions registered before this one
        failed = getattr(sys, "last_value", None) is not self._earlier_error
        status = self._status if isinstance(self._status, int) else int(self._status is not None)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # closed, or a broken pipe
                stream.flush()
        os._exit(1 if failed else status & 0xFF)


def _fork() -> None:
    _state.update({"is child": True, "had MPI": "mpi4py.MPI" in sys.modules})


at_fork(_fork)
