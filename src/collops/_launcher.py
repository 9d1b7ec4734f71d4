"""Determine the launcher of this process from the environment, and whether MPI is consistent with it.

A process is a world of one, without MPI, if the environment has ``COLLOPS_BOOTSTRAP=alone``, or if a rank has started
or forked it: it has inherited the identity of that rank, with which MPI cannot be initialised a second time. With
``COLLOPS_BOOTSTRAP=tcp://HOST:PORT`` ranks start without MPI (:mod:`collops.comm.tcp`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from collops._forks import at_fork, had_mpi, is_child
from collops.errors import InputError, TransportError

__all__ = ["alone_by_request", "started"]

_RANK_NAMES = (
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK"),
    *("JSM_NAMESPACE_RANK", "PALS_RANKID", "ALPS_APP_PE"),
)
_SIZE_NAMES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE")
# In Slurm, the steps of batch scripts and interactive shells have the highest numbers.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_JOB_NAMES = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "FLUX_JOB_ID", "PALS_APID", "PMI_PORT")
_ALONE = "with COLLOPS_BOOTSTRAP=alone each process works alone"
_MARK = "COLLOPS_RANK_PROCESS"  # set by a rank for the processes that it starts: its number, connection and job
FORKED = "this process was forked from a rank, whose place it must not take: collops.world() is a world of one here"


class Started(NamedTuple):
    """The rank of this process and the number of processes, if the launcher sets it."""

    rank: int
    ranks: int | None


def started(environment: Mapping[str, str] = os.environ) -> Started | None:
    """Return the position among the processes of a launcher, or None without one; do not import MPI."""
    return None if why_without_mpi(environment) else _position(environment)


def _position(environment: Mapping[str, str]) -> Started | None:
    names = _RANK_NAMES, _SIZE_NAMES
    if (step := _first(environment, "SLURM_STEP_ID", "SLURM_STEPID")) is not None and step < _FIRST_SPECIAL_STEP:
        names = (*_RANK_NAMES, "SLURM_PROCID"), (*_SIZE_NAMES, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if environment.get("COLLOPS_BOOTSTRAP", "").startswith("tcp:"):  # torchrun's names
        names = ("RANK", *names[0]), ("WORLD_SIZE", *names[1])
    rank, ranks = (_first(environment, *variables) for variables in names)
    return None if rank is None else Started(rank, ranks)


def bootstrap_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Return host and port of ``COLLOPS_BOOTSTRAP``, where ranks without MPI meet; ``None`` for a start by MPI.

    Raises `InputError` if its value has no meaning.
    """
    text = environment.get("COLLOPS_BOOTSTRAP", "")
    if text in ("", "alone"):
        return None
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not text.startswith("tcp://") or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"COLLOPS_BOOTSTRAP={text!r}: give 'alone' or 'tcp://HOST:PORT', or unset it")
    return None if why_without_mpi(environment) else (host.strip("[]"), int(port))


def alone_by_request(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether ``COLLOPS_BOOTSTRAP`` is ``alone``."""
    return environment.get("COLLOPS_BOOTSTRAP") == "alone"


def why_without_mpi(environment: Mapping[str, str] = os.environ) -> str:
    """Return why this process must not start MPI; empty if it may."""
    if alone_by_request(environment):
        return "COLLOPS_BOOTSTRAP=alone"
    if is_forked():
        return "a rank forked this process"
    process, _, identity = environment.get(_MARK, "").partition("/")
    connection, _, job = identity.partition("/")
    if not process.isdecimal() or int(process) == os.getpid() or job != _job(environment):
        return ""
    # A launcher that the rank has started gives its processes new connections. Python closes the rank's connection in
    # processes that it starts.
    return "a rank started this process" if _connection(environment) in ("", connection) else ""


def is_forked() -> bool:
    """Return whether this process was forked from a rank, or from a process that could become one by MPI."""
    if not is_child() or _state["forked from a rank"]:
        return is_child()
    return had_mpi() or (_position(os.environ) is not None and not os.environ.get("COLLOPS_BOOTSTRAP"))


def mark_rank() -> None:
    """Mark the environment, so that processes that this rank starts or forks are not ranks.

    Started processes detect this if the launcher distinguishes jobs.
    """
    _state["is rank"] = True
    identity = f"{_connection(os.environ)}/{_job(os.environ)}"
    if started() is not None and identity.strip("/"):
        os.environ[_MARK] = f"{os.getpid()}/{identity}"


def _fork() -> None:
    _state.update({"forked from a rank": _state["is rank"], "is rank": False})


_state = {"is rank": False, "forked from a rank": False}
at_fork(_fork)


def check_world_of_one(has_mpi: bool, text: str) -> None:
    """Raise `TransportError` if a launcher started several processes, but this one sees only itself.

    `text` is the version of the MPI that mpi4py has loaded, or the reason why none is loaded.
    """
    _check_launcher_without_mpi(has_mpi, text)
    launcher = started()
    if launcher is None or launcher.ranks == 1 or (launcher.ranks is None and has_mpi):
        return
    count = "several" if launcher.ranks is None else launcher.ranks
    if not has_mpi:
        raise TransportError(
            f"the launcher started {count} processes, but {text}: install collops[mpi], or load the module of the "
            f"cluster's MPI and install mpi4py; {_ALONE}"
        )
    kind = "pmix" if "Open MPI" in text else "pmi2"
    raise TransportError(
        f"the launcher started {count} processes, but MPI sees a world of 1: mpi4py has loaded {text}; use the mpiexec "
        f"that belongs to this MPI, or under Slurm srun --mpi={kind} or SLURM_MPI_TYPE={kind} (srun --mpi=list shows "
        f"the choices), or load the module of the launcher's MPI; {_ALONE}"
    )


def _check_launcher_without_mpi(has_mpi: bool, text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `TransportError` if torchrun's variables, which MPI does not set, indicate several processes.

    Other launchers set the same variables (accelerate, DeepSpeed), Lightning without ``RANK``. They may run inside a
    step of Slurm or MPI with one process on each node.
    """
    rank, ranks = _first(environment, "RANK", "LOCAL_RANK"), _first(environment, "WORLD_SIZE")
    if rank is None or ranks is None or ranks < 2 or why_without_mpi(environment):
        return
    state = f"MPI sees a world of 1 ({text})" if has_mpi else text
    raise TransportError(
        f"torchrun or a similar launcher started {ranks} processes (RANK, WORLD_SIZE), but {state}: set "
        "COLLOPS_BOOTSTRAP=tcp://HOST:PORT, with an address of the host of rank 0 and a free port, and COLLOPS_SECRET, "
        "which connect the ranks without MPI (under torchrun collops.bridges.torch_distributed.world() sets both), or "
        f"start them by mpiexec or srun; {_ALONE}"
    )


def _job(environment: Mapping[str, str]) -> str:
    return "/".join(environment.get(name, "") for name in (*_JOB_NAMES, "COLLOPS_BOOTSTRAP"))


def _connection(environment: Mapping[str, str]) -> str:
    """Return the number of the socket between MPICH and its launcher; empty without one."""
    descriptor = environment.get("PMI_FD", "")
    if not descriptor.isdecimal():
        return ""
    try:
        status = os.fstat(int(descriptor))
    except OSError:  # closed
        return ""
    return str(status.st_ino) if stat.S_ISSOCK(status.st_mode) else ""


def _first(environment: Mapping[str, str], *names: str) -> int | None:
    """Return the number in the first of these variables that is set."""
    text = next((environment[name] for name in names if name in environment), "")
    return int(text) if text.isdecimal() else None
