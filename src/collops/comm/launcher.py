"""What started this process: rank and size as launchers put them into the environment, and whether MPI agrees.

``COLLOPS_BOOTSTRAP`` says how ranks find each other: by MPI where it is not set, without MPI at ``tcp://HOST:PORT``
(:mod:`collops.comm.tcp`), or not at all with ``alone``, where every process is a world of one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from collops.errors import InputError, TransportError

__all__ = ["Started", "started"]

_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK")
_SIZE_NAMES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE")
_LOCAL_RANK_NAMES = (
    *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID"),
)
# In Slurm, the steps of batch scripts and interactive shells have the highest numbers.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_JOBS = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "FLUX_JOB_ID", "COLLOPS_BOOTSTRAP")
_RANK_PROCESS = "COLLOPS_RANK_PROCESS"  # set by a rank: its number as a process, and its job


class Started(NamedTuple):
    """The rank of this process and the number of processes, if the launcher sets it."""

    rank: int
    ranks: int | None


def started(environment: Mapping[str, str] = os.environ) -> Started | None:
    """Return the position among the processes of a launcher, or None without one; do not import MPI.

    A process that a rank started by itself has inherited the rank's environment, and has no position. Names of torchrun
    count where ``COLLOPS_BOOTSTRAP`` is set: other programs set them as well.
    """
    bootstrap = environment.get("COLLOPS_BOOTSTRAP")
    if bootstrap == "alone" or inherited(environment):
        return None
    own = (("RANK",), ("WORLD_SIZE",)) if bootstrap else ((), ())
    slurm = (), ()
    if (step := _first(environment, "SLURM_STEP_ID", "SLURM_STEPID")) is not None and step < _FIRST_SPECIAL_STEP:
        slurm = ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    rank = _first(environment, *own[0], *_RANK_NAMES, *slurm[0])
    ranks = _first(environment, *own[1], *_SIZE_NAMES, *slurm[1])
    return None if rank is None else Started(rank, ranks)


def local_rank() -> int | None:
    """Return the number of this process among those of its host, as the launcher gives it."""
    return _first(os.environ, *_LOCAL_RANK_NAMES)


def why_not_mpi() -> str:
    """Return why this process must not start MPI; empty if it may."""
    bootstrap = os.environ.get("COLLOPS_BOOTSTRAP")
    if bootstrap == "alone":
        return "COLLOPS_BOOTSTRAP=alone"
    if inherited():
        return "a rank started this process, which is no rank itself"
    return f"COLLOPS_BOOTSTRAP={bootstrap} starts the ranks" if bootstrap else ""


def inherited(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a rank started this process, whose environment names the rank's place and not one of its own.

    MPI cannot be started in such a process, which would take the rank's place.
    """
    descriptor = environment.get("PMI_FD", "")
    if descriptor.isdecimal() and not environment.get("COLLOPS_BOOTSTRAP"):
        # Python closes the connection to the launcher in the processes that it starts.
        try:
            return not stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode)
        except OSError:
            return True
    process, _, job = environment.get(_RANK_PROCESS, "").partition(" ")
    return process.isdecimal() and int(process) != os.getpid() and job == _job(environment)


def mark_as_rank() -> None:
    """Let the processes that this rank starts know that they are none."""
    os.environ[_RANK_PROCESS] = f"{os.getpid()} {_job(os.environ)}"


def bootstrap_address() -> tuple[str, int] | None:
    """Return host and port where ranks without MPI find each other; ``None`` where they use MPI or nothing.

    Raises `InputError` if ``COLLOPS_BOOTSTRAP`` is no address and not ``alone``.
    """
    text = os.environ.get("COLLOPS_BOOTSTRAP", "")
    if not text or text == "alone" or inherited():
        return None
    wrong = InputError(f"COLLOPS_BOOTSTRAP={text!r}: give tcp://HOST:PORT, the address of rank 0, or alone")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme != "tcp" or not host or not port or parts.path or parts.query:
        raise wrong
    return host, port


def check_world_of_one(library: str | None, reason: str) -> None:
    """Raise `TransportError` if a launcher started several processes, of which this one sees itself only.

    `library` is the version of MPI that mpi4py has loaded; without one, `reason` says why.
    """
    launcher = started()
    if launcher is None or launcher.ranks == 1 or (launcher.ranks is None and library is not None):
        return
    count = "several" if launcher.ranks is None else launcher.ranks
    if library is None:
        found, remedy = reason, "install collops[mpi] or load the module of an MPI, or start without MPI"
    else:
        kind = "pmix" if "Open MPI" in library else "pmi2"
        found = f"MPI sees a world of 1: mpi4py has loaded {library}"
        remedy = (
            f"use srun --mpi={kind} (srun --mpi=list shows what there is) or the mpiexec of this MPI, or load the "
            "module of the launcher's MPI, or start without MPI"
        )
    raise TransportError(
        f"the launcher started {count} processes, but {found}; {remedy} (COLLOPS_BOOTSTRAP=tcp://HOST:PORT); "
        "COLLOPS_BOOTSTRAP=alone lets each process work alone"
    )


def _job(environment: Mapping[str, str]) -> str:
    return "/".join(environment.get(name, "") for name in _JOBS)


def _first(environment: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first of these variables that is set."""
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdecimal() else None
