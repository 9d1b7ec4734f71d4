"""Threads of a rank that share the rows of a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from collops.comm import Communicator
from collops.comm.cores import threads_of_rank

Result = TypeVar("Result")
_ENTRIES = 1 << 18  # minimum number of entries for a thread, which takes 0.1 ms to start


def in_pieces(
    comm: Communicator, starts: np.ndarray, function: Callable[[np.uint64, np.uint64], Result]
) -> list[Result]:
    """Call ``function(first, end)`` for consecutive rows with about equally many entries; return the results in order.

    Each call is in a thread of its own, so that `function` should release the lock of the interpreter.
    """
    pieces = max(1, min(threads_of_rank(comm), int(starts[-1]) // _ENTRIES))
    bounds = np.searchsorted(starts, int(starts[-1]) * np.arange(1, pieces) // pieces)
    ends = [*map(np.uint64, bounds), np.uint64(len(starts) - 1)]
    firsts = [np.uint64(0), *ends[:-1]]
    if pieces == 1:
        return [function(firsts[0], ends[0])]
    with ThreadPoolExecutor(pieces) as threads:
        return list(threads.map(function, firsts, ends))
