"""Start programs on several ranks, from tests that run in a plain process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def mpiexec() -> str:
    """The launcher that belongs to the interpreter's MPI, or the one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec beside the interpreter or on the path")
    return found


def run_ranks(
    ranks: int, program: str, environment: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `ranks` ranks; fail if it takes longer than `seconds`."""
    return subprocess.run(
        [mpiexec(), "-n", str(ranks), sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
