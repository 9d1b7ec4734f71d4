"""The time in which this machine's memory lets a grid be read once and written once: what one sweep cannot beat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collops.stencil import Grid, Problem

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["memory_limit"]

_ROUNDS, _COPIES = 5, 10


def memory_limit(problem: Problem, comm: Communicator, engine: Engine) -> float:
    """Return the seconds that all ranks together need to copy their blocks. Collective.

    Copies of the blocks themselves are timed, so that where they fit into a cache it is the cache's limit.
    """
    xp = engine.xp
    shape = Grid(problem, comm.size, comm.rank).layout.local_shape(comm.rank)
    source, target = xp.zeros(shape, problem.dtype), xp.empty(shape, problem.dtype)
    best = float("inf")
    for _ in range(_ROUNDS):
        engine.synchronize()
        comm.barrier()
        begin = time.perf_counter()
        for _ in range(_COPIES):
            xp.copyto(target, source)
        engine.synchronize()
        slowest = max(comm.allgather_metadata(time.perf_counter() - begin))
        best = min(best, slowest / _COPIES)
    return best
