"""A rank dies, one way or another: the others end soon, with an error, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import run_ranks

pytestmark = pytest.mark.serial

# How soon the others must have ended, with allowance for a machine that does much else at the same time.
SECONDS = 30.0

PROGRAM = """
import os, pathlib, signal, sys
import collops

comm = {comm}
for turn in range(1_000_000):
    comm.allreduce(1.0)
    if turn == 200 and comm.rank == comm.size - 1:
        pathlib.Path({mark!r}).touch()
        {death}
"""
WORLD, PART = "collops.world()", "collops.world().split(0)"
# What a rank says that still can. Exit codes are the launcher's: its own, a rank's, or of those that it killed.
DEATHS = {
    "killed": (WORLD, "os.kill(os.getpid(), signal.SIGKILL)", ""),
    "left": (WORLD, "os._exit(3)", ""),
    "raised": (WORLD, "raise KeyError('mine alone')", "rank 1 of 2 ends all ranks, because of its KeyError above"),
    "ended": (WORLD, "sys.exit(4)", "rank 1: the end of the program"),
    "ended_in_a_part": (PART, "sys.exit(4)", "rank 1: the end of the program"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_the_others_end(death, tmp_path):
    comm, action, said = DEATHS[death]
    mark = tmp_path / "died"
    name = f"COLLOPS_TEST_DEATH_{os.getpid()}_{death}"
    program = PROGRAM.format(comm=comm, death=action, mark=str(mark))
    result = run_ranks(2, program, {"COLLOPS_TIMEOUT": "none", name: "1"})
    died = mark.stat().st_mtime
    assert time.time() - died < SECONDS
    assert result.returncode != 0
    assert said in result.stderr
    while with_variable(name):  # the launcher does not wait until the last is gone
        assert time.time() - died < 2 * SECONDS
        time.sleep(0.05)


def test_ranks_may_end_long_before_others():
    """One rank ends at once; the others, which need it no more, talk on and are not disturbed; all end in silence."""
    program = """
import time, collops
comm = collops.world()
part = comm.subgroup(tuple(rank > 0 for rank in range(comm.size)))
if comm.rank:
    time.sleep(3 * (comm.rank == 1))
    part.allreduce(1.0)
    for rank in (1, 2):
        if comm.rank == rank:
            comm.send(1.0, 3 - rank)
        else:
            comm.recv(__import__("numpy").zeros(()), rank)
    print("DONE", flush=True)
"""
    result = run_ranks(3, program, {})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("DONE") == 2


# Rank 2 comes late. Rank 1 has no more to do in the first program as soon as it has sent, rank 0 in the second.
OTHERS_ARE_LATE = {
    "gather": "comm.gather(collops.ones(3).local_array)",
    "exchange": "plan(numpy.full(2, comm.rank), numpy.zeros(2, int))",
}


@pytest.mark.parametrize("call", OTHERS_ARE_LATE)
def test_ranks_that_have_done_their_part_may_end_before_others_begin_theirs(call):
    program = f"""
import time
import numpy
import collops
comm = collops.world()
beside = {{0: [1], 1: [0, 2], 2: [1]}}[comm.rank]
boxes = [(rank, (slice(rank > comm.rank, 1 + (rank > comm.rank)),)) for rank in beside]
plan = collops.ExchangePlan(comm, boxes, boxes)
if comm.rank == 2:
    time.sleep(4)
{OTHERS_ARE_LATE[call]}
print("DONE", flush=True)
"""
    result = run_ranks(3, program, {})
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("DONE") == 3


KILLED_AND_RESUMED = """
import os, pathlib, signal, sys
import numpy as np
import collops

comm = collops.world()
matrix = np.random.default_rng(comm.rank).normal(size=(30, 20))
operator = collops.VStack([matrix], comm)
data = operator @ collops.ones(operator.domain, comm=comm)
folder = pathlib.Path({folder!r})

def watch(iteration, view):
    if iteration == 5 and comm.rank == 1 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)

def solve(**options):
    return collops.cgls(operator, data, niter=12, tol=0, callback=watch, **options)

safe = solve(checkpoint=str(folder / "checkpoints"), every=1, resume=True)
whole = solve()
assert np.array_equal(safe.x.local_array, whole.x.local_array)
assert np.array_equal(safe.residual_norms, whole.residual_norms)
print("SAME FROM", safe.resumed_from, flush=True)
"""


def test_a_solver_goes_on_from_the_checkpoint_of_a_job_that_died(tmp_path):
    program = KILLED_AND_RESUMED.format(folder=str(tmp_path))
    killed = run_ranks(2, program, {})
    assert killed.returncode != 0
    assert (tmp_path / "killed").exists()
    assert "SAME" not in killed.stdout
    resumed = run_ranks(2, program, {})
    assert resumed.returncode == 0, resumed.stderr
    # Iteration 5 had ended on the rank that died, but may not have been written.
    lines = resumed.stdout.splitlines()
    assert len(lines) == 2 and len(set(lines)) == 1
    assert lines[0] in ("SAME FROM 4", "SAME FROM 5")


def test_the_command_line_says_that_a_rank_was_killed(tmp_path):
    """As `kill_runs.py` does it again and again, with larger jobs."""
    name = f"COLLOPS_TEST_KILL_{os.getpid()}"
    options = ["--points", "60", "--method", "cgls", "--tol", "0", "--iterations", "1000000", "--quiet"]
    job = subprocess.Popen(
        [sys.executable, "-m", "collops", "solve", "--ranks", "2", *options, "--out", str(tmp_path / "out")],
        env={**os.environ, name: "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        rank = wait_for(lambda: next(iter(solving(name)), None), job)
        os.kill(rank, 9)
        said, _ = job.communicate(timeout=SECONDS)
    finally:
        job.kill()
    assert job.returncode != 0
    assert "a rank was killed by SIGKILL, which ended the others" in said
    wait_for(lambda: not with_variable(name))


def solving(name):
    """Return the processes of a job's ranks, once they are all there."""
    names = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK")
    ranks = [pid for pid in with_variable(name) if any(rank in environment(pid) for rank in names)]
    return ranks if len(ranks) == 2 else []


def wait_for(found, job=None):
    """Return what `found` finds, as soon as it does."""
    end = time.monotonic() + 2 * SECONDS
    while not (result := found()):
        assert time.monotonic() < end and (job is None or job.poll() is None)
        time.sleep(0.05)
    return result


def with_variable(name):
    """Return the processes that have inherited a variable of the environment."""
    own = os.getpid()
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if pid != own and name.encode() in environment(pid)]


def environment(pid):
    """Return the environment of a process; nothing if it has ended."""
    try:
        return (Path("/proc") / str(pid) / "environ").read_bytes()
    except OSError:
        return b""
