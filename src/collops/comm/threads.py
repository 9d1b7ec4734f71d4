"""The threads of BLAS in ranks that share cores: each rank's share of the cores, as its other kernels take.

A BLAS library starts a thread for every core that its process may use. On ranks that share cores these threads wait for
each other's cores, and a dot product takes a hundred times as long as it would on one thread.
"""

from __future__ import annotations

import os

__all__ = ["limit_blas"]

_SAID = (  # what a user or a launcher may have said
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
)
_READ_AT_LOAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def limit_blas(share: float) -> None:
    """Limit the BLAS libraries of this process to its share of the cores, unless the environment says how many threads.

    Those that are loaded get fewer threads, never more; those that are loaded later read the environment, which is
    set for them.

    Parameters
    ----------
    share : float
        The cores of this process; see :func:`collops.comm.cores.share_of_cores`. At least one thread remains.
    """
    if any(os.environ.get(name) for name in _SAID):
        return
    from threadpoolctl import ThreadpoolController  # here, since a process alone does without

    threads = max(1, int(share + 1e-6))
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        if library.num_threads > threads:
            library.set_num_threads(threads)
    for name in _READ_AT_LOAD:
        os.environ[name] = str(threads)
