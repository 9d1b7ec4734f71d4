"""Remove stale shared memory of an earlier run of the same Slurm job, before MPICH attaches to it.

MPICH names the shared segment by which the ranks of a node connect after PMI's job identifier: for ``srun`` the job and
step IDs. A killed job (SIGKILL) leaves the segment in ``/dev/shm``, and if Slurm requeues the job, its steps have the
same IDs again: the ranks would attach to the old segment, and abort or hang in ``MPI_Init``, which has no deadline.

A segment is removed only if its name belongs to this step, this user owns it, it is older than this process, and no
process has mapped it. One rank of the node removes it, and the others wait: if all removed it, a slow rank would remove
the new segment of a fast one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

# In seconds. Scripts around the program may delay some ranks of a step; Slurm waits for minutes before it requeues.
_MARGIN = 10.0
_LONGEST_WAIT = 60.0


def remove_leftovers(environment: Mapping[str, str] = os.environ, folder: Path = Path("/dev/shm")) -> None:
    """Remove MPICH's segments of an earlier run of this Slurm step on this node. Call before MPI is initialised."""
    step = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
    if environment.get("PMI_JOBID") != step:
        return  # not started by srun, or its PMI does not name the job
    for path in folder.glob(f"mpich_shm_{_hash(step):x}_*"):
        old = _identity(path)
        if old is None or not _is_left_over(path):
            continue
        if environment.get("SLURM_LOCALID") == "0":
            path.unlink(missing_ok=True)
        until = time.monotonic() + _LONGEST_WAIT
        while _identity(path) == old and time.monotonic() < until:
            time.sleep(0.01)


def _is_left_over(path: Path) -> bool:
    """Return whether a file is this user's, older than this process, and not mapped by any visible process."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.getuid() and status.st_mtime < _start() - _MARGIN and not _is_mapped(path)


def _is_mapped(path: Path) -> bool:
    """Return whether a process of this user has mapped a file."""
    name = str(path)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in maps.read_text():
                return True
        except OSError:
            continue  # another user's process, or it has just ended
    return False


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time, which change with a new file of the same name; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _start() -> float:
    """Return when this process started, in seconds like `time.time`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _hash(text: str) -> int:
    """Return the 32-bit FNV-1a hash, with which MPICH shortens job names."""
    result = 2166136261
    for byte in text.encode():
        result = (result ^ byte) * 16777619 % 2**32
    return result
