"""How much memory benchmarks may fill: what is free where their arrays live, in equal shares for the ranks there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["free_memory"]

_GROUP = Path("/sys/fs/cgroup")


def free_memory(comm: Communicator, engine: Engine) -> int:
    """Return the bytes that each rank can still have, the same number on all ranks. Collective.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    engine : Engine
        Where the arrays live. What its pool of memory keeps without need is given back first.
    """
    if engine.name == "cupy":
        runtime = engine.xp.cuda.runtime
        engine.xp.get_default_memory_pool().free_all_blocks()
        free, sharing = runtime.memGetInfo()[0], -(-comm.local_size // runtime.getDeviceCount())
    else:
        free, sharing = _free_on_host(), comm.local_size
    return min(comm.allgather_metadata(free // sharing))


def _free_on_host() -> int:
    """Return what the kernel, and a limit on this group of processes, still allow."""
    free = _available()
    try:
        most, used = ((_GROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if most == "max" else min(free, max(0, int(most) - int(used)))


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        # Not Linux: what is installed is known everywhere, and half of it is a cautious guess of what is free.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return 1024 * int(sizes["MemAvailable"].split()[0])
