"""A host disappears, one way or another: the job ends soon, and says which host it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hosts import Hosts

pytestmark = pytest.mark.serial

# How soon all must have ended, with allowance for a machine that does much else at the same time.
SECONDS = 70.0

# The shared folder gets what each rank writes: a host without a network cannot send it to the launcher.
PROGRAM = """
import os, pathlib
import collops
from collops.comm import failure

failure._GRACE_SECONDS = 2.0
comm = collops.world()
shared = pathlib.Path({shared!r})
os.dup2(os.open(shared / f"{{comm.rank}}.err", os.O_WRONLY | os.O_CREAT), 2)
for turn in range(1_000_000):
    comm.allreduce(1.0)
    if turn == 20:
        (shared / f"{{comm.rank}}.begun").touch()
"""


def start(hosts, deadline=3):
    """Return a job of two ranks on each host, once all of them send messages."""
    job = subprocess.Popen(
        [*hosts.launcher(2), "-n", "4", sys.executable, "-c", PROGRAM.format(shared=str(hosts.shared))],
        env={**os.environ, "COLLOPS_TIMEOUT": str(deadline)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: len([*hosts.shared.glob("*.begun")]) == 4, job)
    return job


def wait_for(found, job=None):
    end = time.monotonic() + 2 * SECONDS
    while not found():
        assert time.monotonic() < end and (job is None or job.poll() is None)
        time.sleep(0.05)


def ranks_on(hosts, name):
    """Return the processes of the ranks that are on a host."""
    return [pid for pid in hosts.processes(name) if b"PMI_RANK=" in environment(pid)]


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended
        return b""


def written(hosts, *ranks):
    """Return what these ranks have written; the first one that ends, ends those that it can still reach."""
    return "".join((hosts.shared / f"{rank}.err").read_text() for rank in ranks)


def test_the_ranks_of_a_host_are_killed():
    """The launcher is told of it at once, and names the host."""
    with Hosts(2) as hosts:
        job = start(hosts)
        for pid in ranks_on(hosts, "nodeb"):
            with suppress(ProcessLookupError):  # the launcher has ended it already
                os.kill(pid, signal.SIGKILL)
        said, _ = job.communicate(timeout=SECONDS)
        assert job.returncode != 0
        assert "RUNNING AT nodeb" in said
        wait_for(lambda: not ranks_on(hosts, "nodea"))


def test_all_processes_of_a_host_are_killed():
    """With the launcher's there, whose connection is closed; of the host's name its message has nothing."""
    with Hosts(2) as hosts:
        job = start(hosts)
        hosts.kill("nodeb")
        said, _ = job.communicate(timeout=SECONDS)
        assert job.returncode != 0
        assert "closed" in said
        wait_for(lambda: not ranks_on(hosts, "nodea"))


def test_the_network_of_a_host_is_down():
    """Both sides are told nothing, name the host of the other in their errors, and end.

    After 25 s UCX would find a host silent, unless told not to, and MPICH would crash.
    """
    with Hosts(2) as hosts:
        job = start(hosts, deadline=30)
        hosts.disconnect("nodeb")
        job.communicate(timeout=SECONDS)
        assert job.returncode != 0
        wait_for(lambda: not ranks_on(hosts, "nodea") + ranks_on(hosts, "nodeb"))
        assert "ranks 2-3 of 4 on nodeb never arrived:" in written(hosts, 0, 1)
        assert "ranks 0-1 of 4 on nodea never arrived:" in written(hosts, 2, 3)


def test_a_host_loses_its_power():
    """No connection of it is closed."""
    with Hosts(2) as hosts:
        job = start(hosts)
        hosts.disconnect("nodeb")
        hosts.kill("nodeb")
        job.communicate(timeout=SECONDS)
        assert job.returncode != 0
        wait_for(lambda: not ranks_on(hosts, "nodea"))
        assert "CommunicationTimeout: allreduce at " in written(hosts, 0, 1)
        assert "ranks 2-3 of 4 on nodeb never arrived:" in written(hosts, 0, 1)
        assert "\n  ranks 2-3 on nodeb: not in a collops call, or its process has exited\n" in written(hosts, 0, 1)
