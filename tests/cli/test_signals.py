"""A signal to a job with checkpoints: all ranks write one, and the exit code says that it can be resumed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.commands import SMALL

pytestmark = pytest.mark.serial

MPI = importlib.util.find_spec("mpi4py") is not None


@pytest.mark.skipif(not MPI, reason="mpi4py is not installed")
def test_a_signal_to_the_command_that_started_the_ranks(tmp_path):
    """The ranks get SIGUSR1 for SIGTERM; what each of the two does to a solver is tested with the solvers."""
    folder = tmp_path / "checkpoints"
    command = [sys.executable, "-m", "collops", "lsm", *SMALL, "--ranks", "2", "--quiet", "--iterations", "1000000"]
    command += ["--checkpoint", str(folder), "--every", "20", "--out", str(tmp_path / "out")]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"COLLOPS_TIMEOUT": "60"})
    try:
        until = time.monotonic() + 90
        while not list(folder.glob("iteration-*")) and job.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 75, said
    assert "resume from" in said and len(said.splitlines()) == 1
    assert len(list(folder.glob("iteration-*"))) == 1
