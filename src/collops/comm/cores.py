"""The processor cores that this process may use, and its share of them for waits and threads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collops.comm.communicator import Communicator

__all__ = ["available_cores", "share_of_cores", "threads_of_rank"]

_THREAD_VARIABLES = (  # set by users or launchers
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
_READ_AT_LOAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def available_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def share_of_cores(other_processes: Iterable[frozenset[int]]) -> float:
    """Return how many cores this process has, if `others` are the cores that other processes of the machine may use.

    A core that k processes may use counts as 1/k. This is correct both for ranks bound to separate cores and for ranks
    that share all cores.
    """
    other_processes = tuple(other_processes)
    return sum(1.0 / (1 + sum(core in cores for cores in other_processes)) for core in available_cores())


def threads_of_rank(comm: Communicator) -> int:
    """Return OMP_NUM_THREADS if it is set, else this rank's share of the cores. No messages."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        return int(limit)
    return max(1, len(available_cores()) // comm.local_size)


def limit_blas(share: float) -> None:
    """Limit the BLAS libraries of this process to its share of the cores, unless the environment sets their threads.

    A BLAS library starts one thread for every core that its process may use. If ranks share cores, these threads
    compete for cores, and a dot product takes a hundred times as long as on one thread. Loaded libraries get fewer
    threads, at least one and never more than before; libraries that are loaded later read the environment.
    """
    if any(os.environ.get(name) for name in _THREAD_VARIABLES):
        return
    from threadpoolctl import ThreadpoolController  # only with several ranks

    threads = max(1, int(share + 1e-6))
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        if library.num_threads > threads:
            library.set_num_threads(threads)
    for name in _READ_AT_LOAD:
        os.environ[name] = str(threads)
