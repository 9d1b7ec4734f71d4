"""The resources that this process may still use: memory, within the limits of its machine, and space in a folder.

Batch systems and containers restrict the memory of a job by control groups, and kill it without a message if it uses
more. `collops` reads the control groups of this process, of both versions, and their parents, and the limits of Slurm
and of the shell (``ulimit -v``).
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["available_memory", "free_room", "in_words", "memory_limit"]

_ROOT = Path("/")
# The files of a control group with its limit, its use, and its statistics with the name of its unused file cache.
_GROUP_2 = ("memory.max", "memory.current", "inactive_file")
_GROUP_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


class _Limit(NamedTuple):
    """A limit and the use that counts towards it, in bytes."""

    most: int
    used: int
    shared: bool = True  # by all processes of this user or job on this machine


def available_memory(processes: int = 1, root: Path = _ROOT, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that each of `processes` on this machine can still allocate, by the tightest limit.

    The limits are the memory of the machine, the control groups of this process and their parents, Slurm's limits
    (``SLURM_MEM_PER_NODE``, ``SLURM_MEM_PER_CPU``), and the address space of this process (``ulimit -v``), each less
    the memory in use. File cache that can be dropped does not count as used.

    Parameters
    ----------
    processes : int
        The number of processes that allocate equally much. They share all limits except the address space.
    root : pathlib.Path
        Folder of ``proc`` and ``sys``.
    environment : mapping
        The environment variables.

    Examples
    --------
    >>> from collops.limits import available_memory, memory_limit
    >>> 0 < available_memory(processes=2) <= available_memory() <= memory_limit()
    True
    """
    limits = _limits(root, environment)
    return max(0, min((limit.most - limit.used) // (processes if limit.shared else 1) for limit in limits))


def memory_limit(root: Path = _ROOT, environment: Mapping[str, str] = os.environ) -> int:
    """Return the tightest of the limits of `available_memory`, in bytes, regardless of use.

    It is the same on all ranks of equal machines.

    Examples
    --------
    >>> from collops.limits import memory_limit
    >>> memory_limit() > 1e6
    True
    """
    return min(limit.most for limit in _limits(root, environment))


def free_room(folder: str | os.PathLike[str]) -> int:
    """Return the free space, in bytes, in an existing or future folder for this user; quotas are ignored.

    Examples
    --------
    >>> import tempfile
    >>> from collops.limits import free_room
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     free_room(folder) >= 0
    True
    """
    path = Path(folder).absolute()
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def digits(value: float, count: int = 3) -> str:
    """Return a number as text with at least `count` significant digits and without an exponent.

    Examples
    --------
    >>> from collops.limits import digits
    >>> digits(100.0, 2), digits(2256.7), digits(0.04567)
    ('100', '2257', '0.0457')
    """
    return f"{value:.0f}" if abs(value) >= 10 ** (count - 1) else f"{value:.{count}g}"


def in_words(size: int) -> str:
    """Return a number of bytes as text with a suitable unit.

    Examples
    --------
    >>> from collops.limits import in_words
    >>> in_words(3 << 29), in_words(5000)
    ('1.5 GiB', '4.88 KiB')
    """
    amount, units = float(size), ["KiB", "MiB", "GiB", "TiB"]
    amount /= 1024
    while amount >= 1000 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{amount:.3g} {units[0]}"


def _limits(root: Path, environment: Mapping[str, str]) -> Iterator[_Limit]:
    page = os.sysconf("SC_PAGE_SIZE")
    machine = _table(root / "proc/meminfo", 1024)
    total = machine.get("MemTotal:", os.sysconf("SC_PHYS_PAGES") * page)
    yield _Limit(total, total - machine.get("MemAvailable:", total))
    yield from _control_groups(root)
    size, resident = _own_pages(root)
    if (megabytes := _slurm_megabytes(environment)) is not None:
        # Without a control group the job's total is unknown; only this process is counted.
        yield _Limit(megabytes << 20, resident * page)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        yield _Limit(address_space, size * page, shared=False)


def _control_groups(root: Path) -> Iterator[_Limit]:
    """Yield the limits of the memory groups of this process and of all their parents.

    In a container the path of a group may be its path on the host, and only its last part is visible.
    """
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, names = root / "sys/fs/cgroup", _GROUP_2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", _GROUP_1
        else:
            continue
        group = Path(os.path.normpath(path).lstrip("/"))  # without the .. of groups outside the container
        for parent in (group, *group.parents):
            limit, usage, cache = names
            most, used = (_number(top / parent / name) for name in (limit, usage))
            if most is not None:  # otherwise it is not visible, or "max"
                dropped = _table(top / parent / "memory.stat").get(cache, 0)
                yield _Limit(most, max(0, (used or 0) - dropped))


def _slurm_megabytes(environment: Mapping[str, str]) -> int | None:
    """Return the memory that Slurm allows the job on each node; 0 there means all."""
    node, cpu, cpus = (
        int(text) if (text := environment.get(name, "")).isdecimal() else 0
        for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    )
    return node or cpu * cpus or None


def _own_pages(root: Path) -> tuple[int, int]:
    """Return the pages of this process' address space, and those in memory."""
    for line in _lines(root / "proc/self/statm"):
        size, resident, *_ = map(int, line.split())
        return size, resident
    return 0, 0


def _table(path: Path, unit: int = 1) -> dict[str, int]:
    """Return the numbers of a file whose lines are a name and a number of `unit` bytes."""
    return {words[0]: unit * int(words[1]) for words in map(str.split, _lines(path)) if len(words) > 1}


def _number(path: Path) -> int | None:
    return next((int(line) for line in _lines(path) if line.strip().isdecimal()), None)


def _lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; empty if it does not exist."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
