"""Nothing hangs for ever: programs with a rank that never comes, in processes of their own."""

from __future__ import annotations

import pytest

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
    assert "another rank gave up" in second and "rank 2 of 3 never arrived" in second
    assert sum("this communicator can no longer be used: CommunicationTimeout" in line for line in lines) == 2


def test_an_agreed_error_is_raised_by_each_rank():
    """With its own report on every rank, none being ended by another, and what they shared given back."""
    result = run_ranks(2, AGREED, {})
    assert result.returncode != 0
    assert result.stderr.count("InputError: rank 1: bad file") == 2
    assert "ends all ranks" not in result.stderr


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["COLLOPS_TIMEOUT", "COLLOPS_CHECK"])
def test_nonsense_in_the_environment_is_rejected(name, ranks):
    result = run_ranks(ranks, "import collops; collops.world()", {name: "soon"})
    assert result.returncode != 0
    assert result.stderr.count(f"InputError: {name}='soon': ") >= ranks
