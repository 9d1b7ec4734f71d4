"""End all ranks at once without losing what was written last: launchers drop what is still in their pipes."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
import termios
import time
from typing import Any, TextIO

__all__ = ["abort"]

_LONGEST_SECONDS = 2.0  # that a launcher may take to read: one that hangs must not keep the other ranks waiting
_NAP_SECONDS = 1e-3


def abort(mpi: Any, code: int, why: str) -> None:
    """End the processes of all ranks, once the launcher has read what this one has written.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``, initialized.
    code : int
        Exit code of the job.
    why : str
        One line for standard error.
    """
    try:
        # First what matters more, and in one piece, so that lines of several ranks do not mix.
        _deliver(sys.stderr, 2, f"{why}\n")
        _deliver(sys.stdout, 1)
    finally:
        # Also where nothing can be written any more.
        mpi.COMM_WORLD.Abort(code)


def _deliver(stream: TextIO, descriptor: int, text: str = "") -> None:
    stream.write(text)
    stream.flush()
    given_up = time.monotonic() + _LONGEST_SECONDS
    while _unread_bytes(descriptor) and time.monotonic() < given_up:
        time.sleep(_NAP_SECONDS)


def _unread_bytes(descriptor: int) -> int:
    # What is in a file or on a terminal outlives the launcher; only a pipe's contents do not.
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return 0
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, struct.pack("i", 0)))
    return int(count)
