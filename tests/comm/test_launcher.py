"""Launchers that started several processes of which MPI sees one, and processes that are alone on purpose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collops.comm.launcher import Started, check_world_of_one, inherited, started
from collops.errors import TransportError
from tests.comm.tcp_ranks import plain_environment
from tests.launch import mpiexec

pytestmark = pytest.mark.serial

WORLD = "import collops; comm = collops.world(); print(comm.rank, comm.size)"
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "9"}
ALONE = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}


def run(environment, program=WORLD):
    """Run a program in a plain process, in which MPI sees a world of one."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=plain_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {**STEP, "SLURM_STEP_NUM_TASKS": "4"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
        {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"},
        {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"},
        {**STEP, "SLURM_NTASKS": "4"},
    ],
    ids=lambda names: "-".join(names)[:40],
)
def test_several_processes_of_which_mpi_sees_one(environment):
    done = run(environment)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert "TransportError: the launcher started 4 processes, but MPI sees a world of 1: mpi4py has loaded " in last
    assert "srun --mpi=p" in last and "COLLOPS_BOOTSTRAP=alone" in last


@pytest.mark.parametrize(
    "environment",
    [
        {**ALONE},  # in salloc
        {**ALONE, "SLURM_STEP_ID": "4294967291"},  # in a batch script
        {**ALONE, "SLURM_STEP_ID": "4294967290"},  # in the interactive step of salloc
        {**STEP, "SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "4", "COLLOPS_BOOTSTRAP": "alone"},
        {"RANK": "1", "WORLD_SIZE": "4"},  # of torchrun, which may start programs that do not communicate by collops
    ],
    ids=["salloc", "batch", "interactive", "step", "mpiexec -n 1", "flux", "alone", "torchrun"],
)
def test_one_process_on_purpose(environment):
    done = run(environment)
    assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr


@pytest.mark.parametrize(
    ("library", "reason", "text"),
    [
        ("Open MPI v5.0.8", "", r"mpi4py has loaded Open MPI v5.0.8; use srun --mpi=pmix"),
        ("MPICH Version: 5.0.2", "", r"mpi4py has loaded MPICH Version: 5.0.2; use srun --mpi=pmi2"),
        (None, "mpi4py is not installed", r"but mpi4py is not installed; install collops\[mpi\]"),
    ],
)
def test_the_remedy_fits_the_mpi(monkeypatch, library, reason, text):
    monkeypatch.setenv("FLUX_TASK_RANK", "2")
    monkeypatch.setenv("FLUX_JOB_SIZE", "3")
    with pytest.raises(TransportError, match=f"the launcher started 3 processes, .*{text}"):
        check_world_of_one(library, reason)


def test_a_launcher_that_gives_no_number_needs_an_mpi(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "2")
    check_world_of_one("Open MPI v5.0.8", "")
    with pytest.raises(TransportError, match="started several processes, but there is none; install"):
        check_world_of_one(None, "there is none")


def test_the_command_line_says_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "collops", "info"],
        env=plain_environment(FLUX_TASK_RANK="0", FLUX_JOB_SIZE="2"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("collops info: the launcher started 2 processes, but MPI sees a world of 1")


CHILD = f"""
import os, subprocess, sys
import collops
comm = collops.world()
child = subprocess.run([sys.executable, "-c", {WORLD!r}], capture_output=True, text=True)
os.write(1, f"{{comm.size}}: {{child.stdout.strip()}} {{child.returncode}}\\n".encode())
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_child_of_a_rank_is_a_world_of_one(ranks):
    done = subprocess.run(
        [mpiexec(), "-n", str(ranks), sys.executable, "-c", CHILD],
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout == f"{ranks}: 0 1 0\n" * ranks, done.stderr


def test_only_what_a_rank_started_is_its_child():
    job = {"PMIX_NAMESPACE": "job-1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    mark = "{} job-1////"
    assert inherited({**job, "COLLOPS_RANK_PROCESS": mark.format(os.getppid())})
    assert started({**job, "COLLOPS_RANK_PROCESS": mark.format(os.getppid())}) is None
    assert not inherited({**job, "COLLOPS_RANK_PROCESS": mark.format(os.getpid())})
    # A launcher that a rank has started gives another job.
    assert started({**job, "PMIX_NAMESPACE": "job-2", "COLLOPS_RANK_PROCESS": mark.format(os.getppid())}) == Started(
        1, 2
    )
    closed = {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "987654"}
    assert inherited(closed) and started(closed) is None
