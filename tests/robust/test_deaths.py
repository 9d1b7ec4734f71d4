"""A rank dies, one way or another: the others end soon, with an error, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import mpiexec

pytestmark = pytest.mark.serial

PROGRAM = """
import os, signal, sys
import collops

comm = collops.world()
for turn in range(1_000_000):
    comm.allreduce(1.0)
    if turn == 200 and comm.rank == comm.size - 1:
        {death}
"""
DEATHS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "Killed (signal 9)"),
    "left": ("os._exit(3)", "EXIT"),
    "raised": ("raise KeyError('mine alone')", "rank 2 of 3 ends all ranks, because of its KeyError above"),
    "ended": ("sys.exit(4)", "rank 2: the end of the program"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_the_others_end(death):
    action, said = DEATHS[death]
    mark = f"COLLOPS_TEST_DEATH_{os.getpid()}_{len(death)}"
    begin = time.monotonic()
    result = subprocess.run(
        [mpiexec(), "-n", "3", sys.executable, "-c", PROGRAM.format(death=action)],
        env={**os.environ, "COLLOPS_TIMEOUT": "none", mark: "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert said in result.stdout + result.stderr
    # Starting Python three times takes most of it.
    assert time.monotonic() - begin < 30
    while with_variable(mark):  # the launcher does not wait until the last is gone
        assert time.monotonic() - begin < 40
        time.sleep(0.05)


def test_an_ordinary_end_is_quick_and_silent():
    program = "import collops; comm = collops.world(); comm.barrier(); import time; time.sleep(0.2 * comm.rank)"
    result = subprocess.run(
        [mpiexec(), "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_ranks_may_end_long_before_others():
    """One rank ends at once; the others, which need it no more, talk on and are not disturbed."""
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
    result = subprocess.run(
        [mpiexec(), "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("DONE") == 2


@pytest.mark.timeout(300)
def test_a_killed_job_goes_on_from_its_checkpoint():
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_runs.py")), "--runs", "1", "--ranks", "2"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def with_variable(name):
    """Return the processes that have inherited a variable of the environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if name.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(folder.name)
        except OSError:
            continue
    return found
