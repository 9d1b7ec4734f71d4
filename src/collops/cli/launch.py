"""Start this program again under a launcher: ``--ranks N`` is all that a user needs to know of MPI."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collops.comm.cores import available_cores
from collops.errors import InputError, Interrupted

__all__ = ["Started", "command_for", "environment_for", "launch", "started"]

_RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK")
_SIZE_NAMES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
# Slurm gives the highest numbers to the steps of batch scripts and interactive shells, which are no parallel tasks.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_LAUNCHED = "COLLOPS_LAUNCHED"  # set in what was launched: nothing launched launches again
_MOST_RANKS, _MOST_RANKS_PER_CORE = 64, 8
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1
_THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Started:
    """The launcher that started this process, according to the environment."""

    rank: int  # number of this process
    ranks: int | None  # how many processes there are, where the launcher says so


def started(environment: Mapping[str, str] = os.environ) -> Started | None:
    """Tell whether a launcher started this process, without importing MPI.

    Returns
    -------
    Started or None
        None for a process that was started by hand.
    """
    rank = next((_number(environment.get(name)) for name in _RANK_NAMES if name in environment), None)
    ranks = next((_number(environment.get(name)) for name in _SIZE_NAMES if name in environment), None)
    if _in_slurm_step(environment):
        rank = _number(environment.get("SLURM_PROCID")) if rank is None else rank
        if ranks is None:
            ranks = _number(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS")))
    return None if rank is None else Started(rank, ranks)


def command_for(ranks: int, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that runs this program with `arguments` on `ranks` processes.

    The launcher is what COLLOPS_MPIEXEC says (a command with its options), else ``srun`` inside a Slurm
    allocation, else the ``mpiexec`` next to this Python interpreter, which is where the wheel of an MPI
    library puts it, else the one on PATH.

    Raises
    ------
    InputError
        If there is no launcher, or the ranks are too many for this machine.
    """
    program = [sys.executable, "-m", "collops", *arguments]
    named = environment.get("COLLOPS_MPIEXEC", "")
    try:
        chosen = shlex.split(named)
    except ValueError as problem:
        raise InputError(f"COLLOPS_MPIEXEC is {named!r} ({problem}): correct it or unset it") from None
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise InputError(f"COLLOPS_MPIEXEC names {chosen[0]!r}, which is not there: correct it or unset it")
        return [*chosen, "-n", str(ranks), *program]
    if "SLURM_JOB_ID" in environment and (srun := shutil.which("srun", path=environment.get("PATH"))):
        return [srun, f"--ntasks={ranks}", *program]
    mpiexec = _mpiexec(environment)
    if mpiexec is None:
        raise InputError(
            f"--ranks {ranks} needs a launcher, and there is no mpiexec: install collops[mpi], or load your MPI module"
        )
    most = max(_MOST_RANKS, _MOST_RANKS_PER_CORE * len(available_cores()))
    if ranks > most:
        # Thousands of processes would stop the machine before MPI reported an error.
        raise InputError(
            f"--ranks {ranks} is too much for one machine of {len(available_cores())} cores: "
            f"choose at most {most}, or name the launcher of a cluster with COLLOPS_MPIEXEC"
        )
    return [mpiexec, *_launcher_options(mpiexec, ranks), "-n", str(ranks), *program]


def environment_for(ranks: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for `ranks` processes that share this machine's cores.

    Each rank gets its share of the cores as threads unless the user sets them, and is told whether it writes to a
    terminal, which it cannot see through the launcher's pipes.
    """
    result = {**environment, _LAUNCHED: "1"}
    if "SLURM_JOB_ID" not in environment:
        share = str(max(1, len(available_cores()) // ranks))
        for name in _THREADS:
            result.setdefault(name, share)
    if sys.stderr.isatty():
        result.update(TTY_COMPATIBLE="1", TTY_INTERACTIVE="1")
        result.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if sys.stdout.isatty():
        result["COLLOPS_STDOUT_TERMINAL"] = "1"
    return result


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run this program with `arguments` on `ranks` processes, and wait for it.

    Signals that ask for an end are passed on, so that no rank outlives this process. Launchers end the ranks at once
    on SIGTERM, but pass on SIGUSR1: jobs that write checkpoints get that instead.

    Returns
    -------
    int
        The exit code of the launcher; 128 plus the signal if one ended it, unless the ranks have written a checkpoint.

    Raises
    ------
    InputError
        If there is no launcher, or it cannot be started.
    """
    if _LAUNCHED in os.environ:
        # Otherwise a launcher that sets no rank would start this program again and again.
        raise InputError(
            "the launcher started this process without a rank in its environment: "
            "check COLLOPS_MPIEXEC, or start the ranks yourself and leave --ranks out"
        )
    command = command_for(ranks, arguments)
    try:
        # A session of its own: the terminal's signals then reach the ranks once, through this process.
        process = subprocess.Popen(
            command,
            env=environment_for(ranks),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (no other thread runs in this process)
        )
    except OSError as problem:
        raise InputError(f"cannot start {command[0]} ({problem.strerror}): check the MPI installation") from None
    received: list[int] = []
    heeded = any(argument.partition("=")[0] == "--checkpoint" for argument in arguments)

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        process.send_signal(signal.SIGUSR1 if heeded and number == signal.SIGTERM else number)

    previous = {number: signal.signal(number, forward) for number in _PASSED_ON}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received and code != Interrupted.exit_code:
        return 128 + received[0]
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    """Ask Linux to end the launcher when this process is killed by a signal that it cannot pass on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _mpiexec(environment: Mapping[str, str]) -> str | None:
    # The interpreter's folder without following links: in a virtual environment the interpreter is a link.
    beside = Path(sys.executable).parent / "mpiexec"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("mpiexec", path=environment.get("PATH"))


def _launcher_options(mpiexec: str, ranks: int) -> list[str]:
    """Return the options with which this `mpiexec` starts more ranks than it counts slots."""
    try:
        answer = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise InputError(f"{mpiexec} does not answer ({problem}): check the MPI installation") from None
    if not any(name in answer for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun")):
        return []
    # Open MPI counts cores, which may be half of the processors. After an exit code other than 0 it also prints
    # paragraphs that would hide the line with the error.
    return ["--quiet", *(["--oversubscribe"] if ranks > len(available_cores()) // 2 else [])]


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    step = _number(environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID")))
    return step is not None and step < _FIRST_SPECIAL_STEP


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
