"""CGLS on JAX, one compiled program, beside the loop of the engine that solvers otherwise run on."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from collops.comm import Communicator

__all__ = ["seconds_of_cgls"]


def seconds_of_cgls(
    comm: Communicator, engine: str, rows: int = 4000, columns: int = 8000, niter: int = 100, repeats: int = 5
) -> float:
    """Return the least time of one CGLS of `niter` iterations with a dense matrix on every rank. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    engine : str
        ``"numpy"``, ``"cupy"`` or ``"jax"``.
    rows, columns : int
        Of each rank's matrix, in single precision.
    niter : int
        Iterations; none is left out.
    repeats : int
        Solutions that are timed, after one that is not.
    """
    from collops.array import random
    from collops.backend import engine as find_engine
    from collops.operators import VStack
    from collops.solvers import CGLS, solve

    chosen = find_engine(engine)
    values = np.random.default_rng(comm.rank).standard_normal((rows, columns), np.float32)
    operator = VStack([chosen.from_host(values)], comm)
    data = random(operator.range, seed=1, dtype=np.float32, comm=comm, engine=engine)

    method = CGLS(tol=0.0, precision=0.0)

    def solution() -> Any:
        return solve(method, operator, data, niter=niter, progress=False).x

    solution()
    times = []
    for _ in range(repeats):
        comm.barrier()
        begin = time.perf_counter()
        x = solution()
        float(x.norm())
        times.append(time.perf_counter() - begin)
    return min(times)
