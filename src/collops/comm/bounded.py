"""Work on files in bounded time: a file system that does not answer must not keep a rank, nor others that wait for it.

A thread that waits for a file system cannot be ended. The work runs on a thread of its own, so that the rank can give
it up and raise an error on all ranks.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from collops.comm.failure import default_timeout

__all__ = ["in_time"]

# Less than the whole deadline, so that this error reaches the other ranks before the deadline of their own wait.
_SHARE = 0.9
_MIN_BYTES_PER_SECOND = 50e6  # of a file system that works

Value = TypeVar("Value")
_threads: list[threading.Thread] = []


def in_time(work: Callable[[], Value], path: object, size: int = 0) -> Value:
    """Return ``work()``, which reads or writes `size` bytes at a path and does not communicate. Not collective.

    Raises
    ------
    TimeoutError
        If that takes longer than 90 % of ``COLLOPS_TIMEOUT``, and the time for `size` bytes at 50 MB/s. The work may
        still end later.
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
        reason = f"the file system does not answer within {limit:.3g} s (COLLOPS_TIMEOUT is {timeout:g})"
        raise TimeoutError(errno.ETIMEDOUT, reason, str(path))
    return result.result()


def is_blocked() -> bool:
    """Return whether work that was given up has not ended; Python would wait for threads of libraries at its end."""
    return any(thread.is_alive() for thread in _threads)
