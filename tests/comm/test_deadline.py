"""Nothing hangs for ever: programs with a rank that never comes, in processes of their own."""

from __future__ import annotations

import pytest

from tests.launch import run_ranks

pytestmark = pytest.mark.serial

MISSING = """
import time, collops
comm = collops.world()
if comm.rank == 1:
    time.sleep(30)
comm.allreduce(1.0)
"""
LATE_NOTICE = """
import time, collops
comm = collops.world()
time.sleep((0, 1, 9)[comm.rank])
try:
    comm.allreduce(1.0)
except collops.errors.CommunicationTimeout as error:
    print(f"RANK {comm.rank}: {error}", flush=True)
    time.sleep(9)
"""
UNCAUGHT = """
import collops
comm = collops.world()
if comm.rank == 1:
    raise RuntimeError("only mine")
comm.allreduce(1.0)
"""
AGREED = """
import collops
comm = collops.world()
comm.check(collops.errors.InputError("bad file") if comm.rank == 1 else None)
"""


def test_the_error_names_who_is_missing():
    result = run_ranks(3, MISSING, {"COLLOPS_TIMEOUT": "1"}, seconds=20)
    assert result.returncode != 0
    assert "rank(s) 1 never arrived of 3" in result.stderr
    assert "allreduce" in result.stderr


def test_a_late_rank_learns_that_others_gave_up():
    result = run_ranks(3, LATE_NOTICE, {"COLLOPS_TIMEOUT": "3"}, seconds=30)
    first = next(line for line in result.stdout.splitlines() if line.startswith("RANK 0"))
    second = next(line for line in result.stdout.splitlines() if line.startswith("RANK 1"))
    assert "rank(s) 2 never arrived of 3" in first
    assert "another rank gave up" in second
    assert "rank(s) 2 never arrived of 3" in second


def test_an_uncaught_error_ends_all_ranks():
    result = run_ranks(3, UNCAUGHT, {"COLLOPS_TIMEOUT": "none"}, seconds=20)
    assert result.returncode != 0
    assert "only mine" in result.stderr


def test_an_agreed_error_is_raised_by_each_rank():
    result = run_ranks(3, AGREED, {}, seconds=20)
    assert result.returncode != 0
    assert result.stderr.count("InputError: rank 1: bad file") == 3
    assert "MPI_Abort" not in result.stderr
