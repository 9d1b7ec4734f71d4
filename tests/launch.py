"""Start programs on several ranks, from tests that run in a plain process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

# Options of XLA that halve the time of tests of compiled programs: they change machine code, and not what is sent.
QUICK_CODE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
QUICK_CODE_FLAGS = " ".join(f"--{name}={value}" for name, value in QUICK_CODE.items())

# Launchers lose output of ranks that are ended. What each rank writes goes to files, and the program keeps its lines.
# Processes of two hosts may have the same number.
_TO_FILES = """
import os, sys
for number, name in ((1, "out"), (2, "err")):
    path = os.path.join(sys.argv[1], f"{os.uname().nodename}.{os.getpid()}.{name}")
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, number)
exec(sys.argv[2])
"""


def mpiexec() -> str:
    """The launcher that belongs to the interpreter's MPI, or the one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec beside the interpreter or on the path")
    return found


def run_ranks(
    ranks: int,
    program: str,
    environment: Mapping[str, str],
    seconds: float = 200.0,
    launcher: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `ranks` ranks; fail if it takes longer than `seconds`.

    `launcher` is the command that starts them, by default :func:`mpiexec` alone.

    Returns
    -------
    subprocess.CompletedProcess
        With what the ranks have written, one after the other, and not what the launcher says.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*(launcher or [mpiexec()]), "-n", str(ranks), sys.executable, "-c", _TO_FILES, folder, program],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        written = {
            kind: "".join(path.read_text() for path in sorted(Path(folder).glob(f"*.{kind}")))
            for kind in ("out", "err")
        }
    return subprocess.CompletedProcess(done.args, done.returncode, written["out"], written["err"])
