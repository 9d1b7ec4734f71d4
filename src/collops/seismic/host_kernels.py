"""Kernels for host memory: the choice between Numba and NumPy, their threads, and compilation by one process."""

from __future__ import annotations

import importlib.util
import os
import platform
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from collops import Communicator
from collops.errors import InputError
from collops.extend.communication import available_cores, share_of_cores
from collops.extend.engines import Engine


def checked_kernels(name: str | None) -> None:
    """Raise InputError unless `name` is ``None``, ``"numba"`` or ``"numpy"``, and Numba is installed if required."""
    if name not in (None, "numba", "numpy"):
        raise InputError(f"kernels must be 'numba' or 'numpy', not {name!r}")
    if name == "numba" and importlib.util.find_spec("numba") is None:
        raise InputError("kernels='numba' needs Numba: pip install 'collops[numba]'")


def uses_numba(name: str | None, what: str) -> bool:
    """Return whether to use the Numba kernels: by default where Numba is installed, else with a warning about `what`.

    Exceptions as for :func:`checked_kernels`.
    """
    checked_kernels(name)
    if name != "numpy" and importlib.util.find_spec("numba") is not None:
        return True
    if name is None:
        warnings.warn(
            f"Numba is not installed, so {what} in plain NumPy, many times slower; "
            "pip install 'collops[numba]', or pass kernels='numpy' to choose it",
            RuntimeWarning,
            stacklevel=5,
        )
    return False


def threads_of_rank(comm: Communicator, engine: Engine, kernels: str | None = None) -> int | None:
    """Return the threads of this rank's CPU kernels: its share of the node's cores. Collective: one metadata message.

    ``None`` if the rank uses kernels without threads.
    """
    if engine.memory == "device" or kernels == "numpy" or importlib.util.find_spec("numba") is None:
        comm.allgather_metadata(None)
        return None
    nodes = comm.allgather_metadata([platform.node(), sorted(available_cores())])
    node = nodes.pop(comm.rank)
    return thread_count(tuple(frozenset(other[1]) for other in nodes if other is not None and other[0] == node[0]))


def thread_count(others: Iterable[frozenset[int]] = ()) -> int:
    """Return NUMBA_NUM_THREADS if it is set in the environment, else this process' share of the cores, at least 1.

    `others` are the cores of the other ranks on this node, as for :func:`collops.comm.cores.share_of_cores`.
    """
    limit = _max_threads()
    if "NUMBA_NUM_THREADS" in os.environ:
        return limit
    return max(1, min(limit, int(share_of_cores(others) + 1e-6)))


def checked_threads(threads: int | None) -> int:
    """Return the number of threads, `thread_count` by default; raise InputError if Numba cannot start as many."""
    count = thread_count() if threads is None else threads
    if not 1 <= count <= _max_threads():
        raise InputError(
            f"threads must be 1 to {_max_threads()}, not {count}; "
            "set NUMBA_NUM_THREADS before Python starts to allow more"
        )
    return count


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Run Numba's parallel loops on this many threads."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)


@contextmanager
def compilation_lock(dispatcher: Any, name: str) -> Iterator[None]:
    """Compile in one process at a time, on one thread: the index of Numba's cache does not support concurrent writers.

    `dispatcher` is a compiled function with a cache on disk, and `name` the name of the file to lock beside the cache.
    """
    import fcntl

    folder = dispatcher.stats.cache_path
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name}.lock"), "w", encoding="utf-8") as lock, limited_threads(1):
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed; all processes share the cache on disk
        yield


def _max_threads() -> int:
    from numba.core import config

    configuration: Any = config  # its values are set at import, where type checkers cannot see them
    return configuration.NUMBA_NUM_THREADS
