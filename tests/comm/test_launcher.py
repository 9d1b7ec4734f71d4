"""Launchers that started several processes of which MPI sees one, and processes that are alone on purpose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from collops._launcher import Started, check_world_of_one, mark_rank, started, why_without_mpi
from collops.errors import TransportError
from tests.launch import mpiexec

pytestmark = pytest.mark.serial

LAUNCHERS = ("PMI", "OMPI", "MPI_", "MV2", "HYDI", "SLURM", "FLUX", "PALS", "COLLOPS_", "RANK", "WORLD_SIZE")
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
BATCH, INTERACTIVE = ({**ALLOCATION, "SLURM_STEP_ID": number} for number in ("4294967291", "4294967290"))
ONE = "MPICH Version: 5.0.2"


def ended(command, **names):
    """Run a command without the names that launchers set, other than these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.run(
        command, env=kept | names, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Started(1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"}, Started(0, 2)),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"}, Started(1, 4)),
        ({"PMIX_RANK": "4"}, Started(4, None)),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "6"}, Started(1, 6)),
        ({"PALS_RANKID": "3"}, Started(3, None)),
        ({"ALPS_APP_PE": "0"}, Started(0, None)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),  # of torchrun, which tells nothing of MPI
        ({"SLURM_JOB_ID": "7"}, None),
        (ALLOCATION, None),
        (BATCH, None),
        (INTERACTIVE, None),
        ({**STEP, "SLURM_PROCID": "2", "SLURM_NTASKS": "9"}, Started(2, 4)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "8", "PMIX_RANK": "1"}, Started(1, 8)),
        ({**STEP, "COLLOPS_BOOTSTRAP": "alone"}, None),
    ],
)
def test_the_environment_tells_the_launcher(environment, expected):
    assert started(environment) == expected


@pytest.mark.parametrize(
    ("has_mpi", "reason", "text"),
    [
        (True, "Open MPI v5.0.8", r"mpi4py has loaded Open MPI v5.0.8; .* srun --mpi=pmix or SLURM_MPI_TYPE=pmix"),
        (True, ONE, r"mpi4py has loaded MPICH Version: 5.0.2; .* srun --mpi=pmi2 or SLURM_MPI_TYPE=pmi2"),
        (False, "mpi4py is not installed", r"mpi4py is not installed: install collops\[mpi\]"),
    ],
)
def test_the_remedy_fits_the_mpi(monkeypatch, has_mpi, reason, text):
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TransportError, match=f"the launcher started 4 processes, .*{text}"):
        check_world_of_one(has_mpi, reason)


def test_a_launcher_that_gives_no_number_needs_an_mpi(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "2")
    check_world_of_one(True, "Open MPI v5.0.8")
    with pytest.raises(TransportError, match="started several processes, but there is none: install"):
        check_world_of_one(False, "there is none")


TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}
LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}


@pytest.mark.parametrize("outside", [{}, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}, {"PMI_RANK": "0", "PMI_SIZE": "1"}])
@pytest.mark.parametrize("names", [TORCHRUN, LIGHTNING])
def test_launchers_without_mpi_need_an_address(monkeypatch, names, outside):
    """Also where one of them runs in a step of another launcher that has one process."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "COLLOPS_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**names, **outside}.items():
        monkeypatch.setenv(name, value)
    remedy = "COLLOPS_BOOTSTRAP=tcp://HOST:PORT, .* and COLLOPS_SECRET, .*; with COLLOPS_BOOTSTRAP=alone"
    for has_mpi, reason in ((True, ONE), (False, "mpi4py is not installed")):
        with pytest.raises(TransportError, match=rf"torchrun .* started 4 processes .*{reason}.*{remedy}"):
            check_world_of_one(has_mpi, reason)
    monkeypatch.setenv("COLLOPS_BOOTSTRAP", "alone")
    check_world_of_one(False, "mpi4py is not installed")
    monkeypatch.delenv("COLLOPS_BOOTSTRAP")
    for name, value in (("WORLD_SIZE", "1"), ("WORLD_SIZE", "")):
        monkeypatch.setenv(name, value)
        check_world_of_one(True, ONE)


def test_a_program_under_torchrun_is_refused():
    done = ended([sys.executable, "-c", "import collops; collops.world()"], **TORCHRUN)
    assert done.returncode == 1 and "TransportError: torchrun or a similar launcher" in done.stderr.splitlines()[-1]
    program = "import collops; print(collops.world().size)"
    assert ended([sys.executable, "-c", program], **TORCHRUN, COLLOPS_BOOTSTRAP="alone").stdout == "1\n"


@pytest.mark.parametrize(
    "environment",
    [BATCH, {**STEP, "SLURM_STEP_NUM_TASKS": "1"}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}],
)
def test_one_process_on_purpose(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_world_of_one(True, ONE)
    check_world_of_one(False, "mpi4py is not installed")


def test_a_program_is_refused_where_mpi_sees_one_process():
    done = ended([sys.executable, "-c", "import collops; collops.world()"], **STEP)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "TransportError: the launcher started 4 processes, but MPI sees a world of 1: mpi4py has loaded " in last
    assert "srun --mpi=p" in last and "COLLOPS_BOOTSTRAP=alone" in last


def test_the_command_line_says_so_in_a_line():
    done = ended([sys.executable, "-m", "collops", "info"], FLUX_TASK_RANK="0", FLUX_JOB_SIZE="4")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("collops info: the launcher started 4 processes, but MPI sees a world of 1")
    several = ended([sys.executable, "-m", "collops", "lsm", "--ranks", "2"], COLLOPS_BOOTSTRAP="alone")
    assert several.stderr == "collops lsm: --ranks 2 contradicts COLLOPS_BOOTSTRAP=alone: omit one of them\n"


# A rank starts a process in two ways, of which one keeps MPICH's connection open, and another job of two ranks.
FAMILY = """
import os, subprocess, sys
import collops

comm = collops.world()
show = "import os, collops; comm = collops.world(); os.write(1, f'{comm.rank} {comm.size};'.encode())"
said = []
for command, closed in (([sys.executable, "-c", show], True), ([sys.executable, "-c", show], False), (
    [sys.argv[1], "-n", "2", sys.executable, "-c", show], True
)):
    child = subprocess.run(command, capture_output=True, text=True, close_fds=closed)
    said.append((child.returncode, sorted(child.stdout.split(";"))))
os.write(1, f"{comm.size}: {said}\\n".encode())
"""


def test_a_process_that_a_rank_started_is_a_world_of_one():
    launcher = mpiexec()
    done = ended([launcher, "-n", "2", sys.executable, "-c", FAMILY, launcher])
    assert done.stdout == "2: [(0, ['', '0 1']), (0, ['', '0 1']), (0, ['', '0 2', '1 2'])]\n" * 2, done.stderr


def test_alone_by_request_does_not_start_mpi():
    show = "import sys, collops; print(collops.world().describe(), 'mpi4py.MPI' in sys.modules)"
    done = ended([sys.executable, "-c", show], **STEP, COLLOPS_BOOTSTRAP="alone")
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 1" in done.stdout and done.stdout.endswith(" False\n")
    given = "import os, collops; from mpi4py import MPI; comm = collops.from_mpi4py(MPI.COMM_WORLD)"
    said = "os.write(1, f'{collops.world().size} {comm.allreduce(1.0)};'.encode())"
    both = ended([mpiexec(), "-n", "2", sys.executable, "-c", f"{given}; {said}"], COLLOPS_BOOTSTRAP="alone")
    assert both.stdout == "1 2.0;1 2.0;", both.stderr
    wrong = ended([sys.executable, "-c", show], COLLOPS_BOOTSTRAP="tcp")
    assert "InputError: COLLOPS_BOOTSTRAP='tcp': give 'alone' or 'tcp://HOST:PORT', or unset it" in wrong.stderr


def test_a_new_launcher_gives_new_numbers():
    job = {"PMIX_NAMESPACE": "job-1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    ours, another = f"{os.getpid()}//job-1//////", f"{os.getppid()}//job-1//////"
    assert started({**job, "COLLOPS_RANK_PROCESS": ours}) == Started(1, 2)
    assert started({**job, "COLLOPS_RANK_PROCESS": another}) is None
    assert why_without_mpi({**job, "COLLOPS_RANK_PROCESS": another}) == "a rank started this process"
    assert started({**job, "COLLOPS_RANK_PROCESS": another, "PMIX_NAMESPACE": "job-2"}) == Started(1, 2)


def test_a_launcher_without_numbers_of_jobs_marks_nothing(monkeypatch):
    """A rank that it starts could not be told from a process that a rank starts."""
    for name in os.environ:
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MV2_COMM_WORLD_RANK", "1")
    mark_rank()
    assert "COLLOPS_RANK_PROCESS" not in os.environ
    monkeypatch.setenv("PALS_APID", "7")
    mark_rank()
    assert os.environ["COLLOPS_RANK_PROCESS"] == f"{os.getpid()}//////7//"
    del os.environ["COLLOPS_RANK_PROCESS"]
