"""File operations with a deadline: a file system that does not respond must not block a rank and the ranks that wait.

A thread that waits for a file system cannot be stopped. The work runs on a separate thread, so that the rank can
abandon it and raise an error on all ranks.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from collops.comm.failure import default_timeout

__all__ = ["in_time"]

# Less than the deadline, so that this error reaches the other ranks before their own waits time out.
_SHARE = 0.9
_MIN_BYTES_PER_SECOND = 50e6  # of a working file system

Value = TypeVar("Value")
_threads: list[threading.Thread] = []


def in_time(work: Callable[[], Value], path: object, size: int = 0) -> Value:
    """Return ``work()``, which reads or writes `size` bytes at a path and does not communicate. Not collective.

    Raises
    ------
    TimeoutError
        If it takes longer than 90 % of ``COLLOPS_TIMEOUT`` plus the time for `size` bytes at 50 MB/s. The work may
        still complete later.
    """
    if (timeout := default_timeout()) is None:
        return work()
    limit = _SHARE * timeout + size / _MIN_BYTES_PER_SECOND
    result: Future[Value] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # raised in the thread that waits
            result.set_exception(error)

    _threads[:] = [thread for thread in _threads if thread.is_alive()]
    _threads.append(threading.Thread(target=run, name=f"files in {path}", daemon=True))
    _threads[-1].start()
    if not wait([result], limit).done:
        reason = f"the file system does not respond within {limit:.3g} s (COLLOPS_TIMEOUT is {timeout:g})"
        raise TimeoutError(errno.ETIMEDOUT, reason, str(path))
    return result.result()


def is_blocked() -> bool:
    """Return whether abandoned work still runs; Python would wait for threads of libraries at exit."""
    return any(thread.is_alive() for thread in _threads)
