"""Run programs that the user has built, such as NVIDIA's samples, and read their times: the option ``--peer``."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from collops.errors import InputError
from collops.extend.communication import default_timeout
from collops.jacobi.problem import Problem

__all__ = ["check_commands", "command_of", "run_sample"]

# Variables by which a launcher sets the rank of a process: a launcher in the user's command must not inherit ours.
_OF_LAUNCHERS = ("PMI", "OMPI_", "HYD", "MPI_LOCAL", "MV2_", "FLUX_TASK", "COLLOPS_LAUNCHED", "COLLOPS_RANK")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
# The samples print: type, nx, ny, niter, nccheck, devices, peer access, seconds, seconds of one device. The program for
# one device prints no devices, no peer access and no second time.
_LINE = re.compile(rf"\w+((?:, \d+){{4}})(?:, (\d+), \d+, ({_NUMBER}), {_NUMBER}|, ({_NUMBER}))")
_MAX_BYTES = 1 << 20  # of output: far more than a sample prints
_POLL_SECONDS, _GRACE_SECONDS = 0.02, 5.0


@dataclass(frozen=True)
class Sample:
    """The time that a program of the user has printed."""

    name: str
    devices: int
    seconds: float


def command_of(text: str) -> tuple[str, list[str]]:
    """Return name and words of a ``NAME=COMMAND``; raise `InputError` if it or its program is invalid."""
    name, _, command = text.partition("=")
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise InputError(f"--peer {text}: {problem}") from None
    if not re.fullmatch(r"\w+", name) or not words:
        raise InputError(f"--peer must be NAME=PATH, like nccl=./nccl/jacobi, not {text!r}")
    if shutil.which(words[0]) is None:
        raise InputError(f"--peer {name}: there is no program {words[0]}")
    return name, words


def check_commands(texts: Sequence[str] | None) -> None:
    """Raise `InputError` unless each is a ``NAME=COMMAND`` with an existing program, and names are distinct."""
    names = [command_of(text)[0] for text in texts or ()]
    if len(set(names)) < len(names):
        raise InputError(f"--peer gives several programs one name: {', '.join(names)}")


def run_sample(name: str, command: Sequence[str], problem: Problem, switches: Sequence[str] = ()) -> Sample:
    """Run a program on a problem, and return the time that it prints. Not collective.

    The samples' options are appended to the options in `command`. The deadline is half of the ranks' deadline
    (``COLLOPS_TIMEOUT``).

    Raises
    ------
    InputError
        If it cannot be started, fails, takes too long, or prints too much or no line of this problem.
    """
    sizes = {"-nx": problem.nx, "-ny": problem.ny, "-niter": problem.iterations, "-nccheck": problem.check}
    asked = [word for option, number in sizes.items() for word in (option, str(number))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_OF_LAUNCHERS)}
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                [*command, *asked, "-csv", *switches],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as problem_of_system:
            raise InputError(f"--peer {name}: {command[0]}: {problem_of_system.strerror}") from None
        try:
            why = _wait(process, output.fileno())
        finally:
            _end(process)
        output.seek(0)
        lines = output.read(_MAX_BYTES).decode("utf-8", "replace").split("\n")
    if why is None and process.returncode:
        said = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it printed nothing")
        why = f"ended with exit code {process.returncode} ({said})"
    if why is not None:
        raise InputError(f"--peer {name}: {command[0]} {why}")
    for match in filter(None, (_LINE.fullmatch(line.strip()) for line in reversed(lines))):
        solved, devices, several, single = match.groups()
        seconds = float(several or single)
        if [int(number) for number in solved.split(",")[1:]] == list(sizes.values()) and 0 < seconds < math.inf:
            return Sample(name, int(devices or 1), seconds)
    raise InputError(
        f"--peer {name}: {command[0]} did not print a line like NVIDIA's samples with -csv ({name}, {problem.nx}, "
        f"{problem.ny}, {problem.iterations}, {problem.check}, devices, 1, seconds, seconds of one device)"
    )


def _wait(process: subprocess.Popen[bytes], output: int) -> str | None:
    """Wait until the program has exited; return the problem if it has to be terminated."""
    limit = default_timeout()
    begin = time.monotonic()
    while process.poll() is None:
        if os.fstat(output).st_size > _MAX_BYTES:
            return f"printed more than {_MAX_BYTES >> 20} MiB, unlike NVIDIA's samples: name another program"
        if limit is not None and time.monotonic() - begin > 0.5 * limit:
            return f"did not end within {0.5 * limit:g} s: choose a smaller -niter, or set COLLOPS_TIMEOUT"
        time.sleep(_POLL_SECONDS)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the program if it still runs; a launcher then terminates its ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
