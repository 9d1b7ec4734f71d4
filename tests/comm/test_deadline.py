"""Nothing hangs for ever: programs with a rank that never comes, in processes of their own, and work on files."""

from __future__ import annotations

import threading

import pytest

from collops.comm.bounded import in_time, is_blocked
from tests.launch import run_ranks

pytestmark = pytest.mark.serial

# Rank 0 gives up first; rank 1, whose own deadline is far, hears of it; rank 2 never comes.
LATE = """
import os, pathlib, time
from mpi4py import MPI
import collops
os.environ["COLLOPS_TIMEOUT"] = ("5", "90", "90")[MPI.COMM_WORLD.rank]
MPI.COMM_WORLD.Barrier()
comm = collops.world()
heard = pathlib.Path({heard!r})
if comm.rank == 2:
    time.sleep(90)
try:
    comm.allreduce(1.0)
except collops.errors.CommunicationTimeout as error:
    print(f"RANK {{comm.rank}}: {{error}}", flush=True)
    try:
        comm.allreduce(1.0)
    except collops.errors.CommunicationError as later:
        print(f"THEN {{comm.rank}}: {{later}}", flush=True)
    if comm.rank == 1:
        heard.touch()
    while not heard.exists():
        time.sleep(0.05)
    raise
"""
AGREED = """
import collops
comm = collops.world()
with comm.symmetric(1000, engine="numpy") as memory:
    comm.check(collops.errors.InputError("bad file") if comm.rank == 1 else None)
"""

# A rank whose program has ended still shares memory with one that goes on, and only that one calls.
ALONE = """
import collops
comm = collops.world()
memory = comm.symmetric(10, engine="numpy")
if comm.rank == 0:
    print("SUM", float(comm.allreduce(1.0)), flush=True)
"""

# Rank 1 of 3 exchanges values with both others; rank 2 is the first whose program ends.
NEIGHBOURS = """
import time
import collops
from scipy import sparse
from collops.operators import CSRMatrix
comm = collops.world()
matrix = sparse.csr_array([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]])
A = CSRMatrix(matrix[[comm.rank]], comm=comm, transport={transport!r})
x = A @ collops.ones(A.domain, comm=comm)
if {late} and comm.rank == 0:
    time.sleep(4)
if {late} or comm.rank < 2:
    for _ in range(1 if {late} else 9):
        A @ x
"""

PATIENT = """
import time
import collops
comm = collops.world()
time.sleep(2 * comm.rank)
assert float(comm.allreduce(1.0)) == 2
"""


@pytest.mark.parametrize("forever", ["0", "none"])
def test_without_a_deadline_a_late_rank_is_waited_for(forever):
    result = run_ranks(2, PATIENT, {"COLLOPS_TIMEOUT": forever})
    assert result.returncode == 0, result.stderr


def test_the_ranks_that_give_up_name_the_one_that_is_missing(tmp_path):
    result = run_ranks(3, LATE.format(heard=str(tmp_path / "heard")), {})
    assert result.returncode != 0
    lines = result.stdout.splitlines()
    first = next(line for line in lines if line.startswith("RANK 0"))
    second = next(line for line in lines if line.startswith("RANK 1"))
    assert "allreduce at <string>:12 (Communicator.allreduce)" in first
    assert "the deadline is 5 s" in first and "rank 2 of 3 never arrived" in first
    assert "another rank aborted its wait" in second and "rank 2 of 3 never arrived" in second
    assert sum("this communicator can no longer be used: CommunicationTimeout" in line for line in lines) == 2


def test_an_agreed_error_is_raised_by_each_rank():
    """With its own report on every rank, none being ended by another, and what they shared given back."""
    result = run_ranks(2, AGREED, {})
    assert result.returncode != 0
    assert result.stderr.count("InputError: rank 1: bad file") == 2
    assert "ends all ranks" not in result.stderr


@pytest.mark.parametrize(("check", "error"), [("0", "CommunicationError: allreduce at"), ("1", "CallMismatch: ")])
def test_shared_memory_at_the_end_is_not_freed_in_the_calls_of_other_ranks(check, error):
    result = run_ranks(2, ALONE, {"COLLOPS_TIMEOUT": "30", "COLLOPS_CHECK": check})
    assert result.returncode != 0
    assert "SUM" not in result.stdout
    assert error in result.stderr
    assert "rank 1: the end of the program" in result.stderr


@pytest.mark.parametrize("transport", ["shared", "mpi"])
def test_a_late_neighbour_is_waited_for_when_another_has_done_its_part_and_ended(transport):
    result = run_ranks(3, NEIGHBOURS.format(transport=transport, late=True), {})
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("transport", ["shared", "mpi"])
def test_a_neighbour_that_has_ended_is_not_waited_for(transport):
    result = run_ranks(3, NEIGHBOURS.format(transport=transport, late=False), {"COLLOPS_TIMEOUT": "100"})
    assert result.returncode != 0
    assert "CommunicationError: star forest at <string>:14" in result.stderr
    # Ranks 0 and 1 find out at the same time, and the first report ends the other rank: one may only say that it heard.
    assert "; rank 2 of 3 ended:" in result.stderr and "rank 2: the end of the program" in result.stderr
    assert "the deadline is" not in result.stderr


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["COLLOPS_TIMEOUT", "COLLOPS_CHECK"])
def test_nonsense_in_the_environment_is_rejected(name, ranks):
    result = run_ranks(ranks, "import collops; collops.world()", {name: "soon"})
    assert result.returncode != 0
    assert result.stderr.count(f"InputError: {name}='soon': ") >= ranks


def test_work_on_files_has_the_time_that_its_bytes_need(monkeypatch):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "0.2")
    blocked = threading.Event()
    assert in_time(lambda: blocked.wait(0.4), "a", 500_000_000) is False  # 10 s at 50 MB/s
    with pytest.raises(TimeoutError, match=r"does not respond within 0.18 s \(COLLOPS_TIMEOUT is 0.2\)"):
        in_time(blocked.wait, "a")
    assert is_blocked()
    blocked.set()
