"""Restart this program under an MPI launcher, for ``--ranks N``."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from collops._launcher import alone_by_request
from collops.apps.interruption import INTERRUPTED, TO_BE_RESUMED, Stopped
from collops.comm.cores import available_cores
from collops.errors import InputError

_LAUNCHED = "COLLOPS_LAUNCHED"  # set in launched processes, which must not start ranks again
_MAX_RANKS, _MAX_RANKS_PER_CORE = 64, 8
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1
_OWN_EXIT_CODES = range(4)  # of jobs that did not end by a signal
_THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def command_for(ranks: int, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that runs this program with `arguments` on `ranks` processes.

    The launcher is the command in COLLOPS_MPIEXEC, with its options; else the ``mpiexec`` next to this Python
    interpreter, where the wheel of an MPI library installs it; else ``srun`` inside a Slurm allocation; else the
    ``mpiexec`` on PATH. In an allocation, SLURM_MPI_TYPE selects ``srun``, and so does MPI4PY_LIBMPI, which selects
    another MPI library than the wheel. Raises `InputError` without a launcher, or with too many ranks for this machine.
    """
    program = [sys.executable, "-m", "collops", *arguments]
    named = environment.get("COLLOPS_MPIEXEC", "")
    try:
        chosen = shlex.split(named)
    except ValueError as problem:
        raise InputError(f"COLLOPS_MPIEXEC is {named!r} ({problem}): correct it or unset it") from None
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise InputError(f"COLLOPS_MPIEXEC names {chosen[0]!r}, which does not exist: correct it or unset it")
        return [*chosen, "-n", str(ranks), *program]
    # Do not follow links: in a virtual environment the interpreter is a link.
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if os.access(beside, os.X_OK) else None
    if "SLURM_JOB_ID" in environment:
        # srun and the MPI library need a common PMI, and the default of a centre often is none.
        if mpiexec and not {"SLURM_MPI_TYPE", "MPI4PY_LIBMPI"} & environment.keys():
            return [mpiexec, "-n", str(ranks), *program]
        if srun := shutil.which("srun", path=environment.get("PATH")):
            return [srun, f"--ntasks={ranks}", *program]
    mpiexec = mpiexec or shutil.which("mpiexec", path=environment.get("PATH"))
    if mpiexec is None:
        raise InputError(
            f"--ranks {ranks} needs a launcher, but mpiexec is missing: install collops[mpi], or load your MPI module"
        )
    most = max(_MAX_RANKS, _MAX_RANKS_PER_CORE * len(available_cores()))
    if ranks > most:
        # Thousands of processes would overload the machine before MPI reported an error.
        raise InputError(
            f"--ranks {ranks} is too many for one machine of {len(available_cores())} cores: "
            f"choose at most {most}, or set COLLOPS_MPIEXEC to the launcher of a cluster"
        )
    return [mpiexec, *_launcher_options(mpiexec, ranks), "-n", str(ranks), *program]


def environment_for(ranks: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for `ranks` processes that share this machine's cores.

    Unless the user has set the number of threads, each rank uses its share of the cores. Variables for rich and
    `collops.cli.console` record whether the output is a terminal, since the launcher's pipes hide it.
    """
    result = {**environment, _LAUNCHED: "1"}
    # After a nonzero exit code, Open MPI 4 would print paragraphs after the error message. Its option --quiet sets this
    # variable; Open MPI 5 has neither.
    result.setdefault("OMPI_MCA_orte_execute_quiet", "1")
    if "SLURM_JOB_ID" not in environment:
        share = str(max(1, len(available_cores()) // ranks))
        for name in _THREADS:
            result.setdefault(name, share)
    if sys.stderr is not None and sys.stderr.isatty():
        result.update(TTY_COMPATIBLE="1", TTY_INTERACTIVE="1")
        result.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if sys.stdout is not None and sys.stdout.isatty():
        result["COLLOPS_STDOUT_TERMINAL"] = "1"
    return result


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Run this program with `arguments` on `ranks` processes, and return the exit code of the launcher.

    Signals that request termination are forwarded as SIGUSR1, which all launchers forward, while some launchers kill
    the ranks after other signals. A second Ctrl-C is forwarded as SIGINT, and ends the ranks at once. The code is then
    75, after Ctrl-C 130, unless the job ended otherwise. Raises `InputError` if the launcher cannot be started, and
    `Stopped` if a signal killed ranks before they installed handlers.
    """
    if _LAUNCHED in os.environ:
        # If the launcher does not set a rank, this program would start itself repeatedly.
        raise InputError(
            "the launcher started this process without a rank in its environment: "
            "check COLLOPS_MPIEXEC, or start the ranks yourself and omit --ranks"
        )
    if alone_by_request():
        raise InputError(f"--ranks {ranks} contradicts COLLOPS_BOOTSTRAP=alone: omit one of them")
    command = command_for(ranks, arguments)
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        again = received.count(signal.SIGINT) > 1 and number == signal.SIGINT
        if number == signal.SIGINT and not again and sys.stderr is not None and sys.stderr.isatty():
            os.write(2, b"\nCtrl-C: ending the job; press it again to end it at once\n")
        if process is not None:
            process.send_signal(signal.SIGINT if again else signal.SIGUSR1)

    previous = {number: signal.signal(number, forward) for number in _PASSED_ON if _heeded(number)}
    try:
        # In a separate session, the ranks receive signals of the terminal only once, through this process.
        process = subprocess.Popen(
            command,
            env=environment_for(ranks),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (no other thread runs in this process)
        )
    except OSError as problem:
        raise InputError(f"cannot start {command[0]} ({problem.strerror}): check the MPI installation") from None
    else:
        if received:  # before the launcher was started
            process.send_signal(signal.SIGUSR1)
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    code = code if code >= 0 else 128 - code
    if received.count(signal.SIGINT) > 1:
        return INTERRUPTED
    if not received or code in _OWN_EXIT_CODES:
        return code
    if code not in (TO_BE_RESUMED, INTERRUPTED):
        raise Stopped(received[0])
    return INTERRUPTED if received[0] == signal.SIGINT else TO_BE_RESUMED


def _heeded(number: signal.Signals) -> bool:
    """Return whether this process handles a signal: nohup ignores SIGHUP, and background jobs of shells SIGINT."""
    return number not in (signal.SIGHUP, signal.SIGINT) or signal.getsignal(number) is not signal.SIG_IGN


def _end_with_parent() -> None:
    """Ask Linux to end the launcher if this process is killed by a signal that it cannot forward."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _launcher_options(mpiexec: str, ranks: int) -> list[str]:
    """Return the options with which this `mpiexec` starts more ranks than it has slots."""
    try:
        answer = subprocess.run(
            [mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise InputError(f"{mpiexec} --version fails ({problem}): check the MPI installation") from None
    if not any(name in answer for name in ("Open MPI", "OpenRTE", "PRRTE", "prterun")):
        return []
    # Open MPI counts physical cores, which may be half of the logical cores.
    return ["--oversubscribe"] if ranks > len(available_cores()) // 2 else []
