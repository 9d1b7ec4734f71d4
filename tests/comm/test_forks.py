"""A child that a rank forks is a world of one, and leaves the ranks, their memory, connections and files alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.comm.without_mpi import Processes, meeting
from tests.launch import run_ranks

pytestmark = pytest.mark.serial

ENVIRONMENT = {"COLLOPS_TIMEOUT": "10", "CUDA_VISIBLE_DEVICES": ""}  # CUDA cannot be used after a fork
BEGIN = """
import os, sys, time
import numpy as np
import collops
from collops.errors import CollopsError

comm = collops.world()
forest = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])


def moved(value):
    return float(forest.bcast(np.array([value + comm.rank]))[0])


def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())


def check_ranks(step):
    assert float(collops.full((4,), step).sum()) == 4 * step
    assert moved(step) == step + (comm.rank + 1) % comm.size
    assert int(comm.allreduce(np.array(step))) == step * comm.size


def outcome(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


check_ranks(1)
"""

CALLS = """
x = collops.full((comm.size, 3), 1.0)
memory = comm.symmetric(3, "int64", engine="numpy", signals=1) if comm.host_transport == "mpi" else None
finish_sum = comm.start_allreduce(np.ones(2))
in_flight = forest.start_bcast(np.array([5.0]))
by_messages = forest.with_transport(comm.host_transport)
by_messages.bcast(np.ones(1))
halo = collops.from_global(np.arange(12.0))
halo.halo(1)
one = np.ones(1)
calls = {
    "allreduce": lambda: comm.allreduce(one),
    "bcast": lambda: comm.bcast(one),
    "alltoall": lambda: comm.alltoall(np.ones(comm.size)),
    "barrier": comm.barrier,
    "send": lambda: comm.send(one, 0),
    "recv": lambda: comm.recv(one, 0),
    "metadata": lambda: comm.allgather_metadata(1),
    "check": lambda: comm.check(None),
    "agree": lambda: comm.agree("it", 1),
    "split": lambda: comm.split(comm.rank),
    "symmetric": lambda: comm.symmetric(1, engine="numpy"),
    "array": lambda: x.sum(),
    "dot": lambda: x.dot(x),
    "halo": lambda: halo.halo(1),
    "forest": lambda: forest.bcast(one),
    "start": lambda: forest.start_bcast(one),
    "messages": lambda: by_messages.bcast(one),
    "new forest": lambda: collops.StarForest(comm, 1, None, [0], [0]),
    "started forest": lambda: in_flight.finish(),
}
if memory is not None:
    from mpi4py import MPI
    calls["started sum"] = finish_sum  # by TCP it is complete
    calls["put"] = lambda: memory.put(np.ones(3, "int64"), 0)
    calls["get"] = lambda: memory.get(0, out=np.ones(3, "int64"))
    calls["signal"] = lambda: memory.wait_signal(0, 1)
    calls["peer"] = lambda: memory.peer(0)
    calls["memory barrier"] = memory.barrier
    calls["from_mpi4py"] = lambda: collops.comm.from_mpi4py(MPI.COMM_WORLD)
child = os.fork() if comm.rank == 0 else None
if child == 0:
    for name, call in calls.items():
        try:
            call()
            say("returned", name)
        except CollopsError as error:
            if "forked from a rank" not in str(error) or "world of one" not in str(error):
                say("another error", name, error)
    if memory is not None:
        memory.free()
    alone = collops.world()
    say("child", alone.size, float(collops.full((4,), 100.0).sum()), len(calls))
    sys.exit(3)
time.sleep(0.3)
check_ranks(2)
if child:
    assert outcome(child) == 3
assert finish_sum().tolist() == [comm.size] * 2
assert in_flight.finish().tolist() == [5.0]
if memory is not None:
    assert not memory.local.any()
    memory.barrier()
    memory.free()
check_ranks(3)
say("rank", comm.rank)
"""


def ends(done, ranks):
    return done.returncode, sorted(line for line in done.stdout.splitlines()), done.stderr


def run_tcp(program, ranks=2):
    environment = meeting(ranks, **ENVIRONMENT)
    with Processes(program, [{**environment, "RANK": str(rank)} for rank in range(ranks)]) as processes:
        codes, *written = zip(*processes.results(), strict=True)
    return subprocess.CompletedProcess([], max(map(abs, codes)), *map("".join, written))


def run_mpi(program, ranks=2, **environment):
    return run_ranks(ranks, program, ENVIRONMENT | environment)


@pytest.mark.parametrize(("run", "count"), [(run_mpi, 26), (run_tcp, 19)])
def test_a_child_is_a_world_of_one_and_its_parent_is_unharmed(run, count):
    done = run(BEGIN + CALLS)
    assert ends(done, 2) == (0, [f"child 1 400.0 {count}", "rank 0", "rank 1"], "")


@pytest.mark.parametrize("run", [run_mpi, run_tcp])
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(5)", 5),
        ("sys.exit('no')", 1),
        ("raise RuntimeError('of the child')", 1),
        ("os._exit(7)", 7),
    ],
)
def test_the_end_of_a_child_ends_nothing_of_its_parent(run, end, status):
    """Exit functions of others run; every rank forks."""
    program = (
        BEGIN
        + f"""
import atexit
atexit.register(lambda: say("exit function"))
child = os.fork()
if child == 0:
    {end}
assert outcome(child) == {status}
check_ranks(2)
say("rank", comm.rank)
"""
    )
    done = run(program)
    functions = 2 if end.startswith("os.") else 4
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["exit function"] * functions + ["rank 0", "rank 1"]
    assert done.stderr.count("of the child") == (2 if "raise" in end else 0)


@pytest.mark.parametrize("run", [run_mpi, run_tcp])
def test_workers_of_multiprocessing_are_worlds_of_one(run):
    program = (
        BEGIN
        + """
import multiprocessing


def work(value):
    return collops.world().size, float(collops.full((4,), value).sum())


with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(work, [1.0, 2.0, 3.0]) == [(1, 4.0), (1, 8.0), (1, 12.0)]
check_ranks(2)
say("rank", comm.rank)
"""
    )
    assert ends(run(program), 2) == (0, ["rank 0", "rank 1"], "")


def test_a_child_forked_before_the_first_world_is_not_a_rank():
    """As a pool of workers that is made at the begin of a program."""
    program = """
import os, sys
import collops

child = os.fork()
if child == 0:
    collops.world()
    os.write(1, f"child {collops.world().size}\\n".encode())
    sys.exit()
os.waitpid(child, 0)
os.write(1, f"rank of {collops.world().size}\\n".encode())
"""
    assert ends(run_mpi(program), 2) == (0, ["child 1"] * 2 + ["rank of 2"] * 2, "")


def test_a_child_writes_no_profile_of_its_parent(tmp_path):
    program = (
        BEGIN
        + """
path = os.environ["COLLOPS_PROFILE"].removeprefix("json=")
child = os.fork()
if child == 0:
    collops.full((4,), 1.0, comm=collops.world()).sum()
    sys.exit()
outcome(child)
assert not os.path.exists(path)
check_ranks(2)
"""
    )
    done = run_mpi(program, COLLOPS_PROFILE=f"json={tmp_path}/profile.json")
    assert ends(done, 2) == (0, [], "")
    assert (tmp_path / "profile.json").stat().st_size > 100


def test_processes_that_a_child_starts_are_not_ranks():
    program = (
        BEGIN
        + """
import subprocess
child = os.fork()
if child == 0:
    command = [sys.executable, "-c", "import collops; print('started', collops.world().size, flush=True)"]
    subprocess.run(command, check=True)
    os._exit(0)
assert outcome(child) == 0
check_ranks(2)
"""
    )
    assert ends(run_mpi(program), 2) == (0, ["started 1"] * 2, "")


def test_a_lost_rank_is_noticed_while_its_child_lives(tmp_path):
    """The child must not keep its parent's connections open."""
    program = (
        BEGIN
        + f"noticed = {str(tmp_path / 'noticed')!r}"
        + """
if comm.rank == 1:
    if os.fork() == 0:
        begin = time.monotonic()
        while not os.path.exists(noticed) and time.monotonic() - begin < 60:
            time.sleep(0.1)
        os._exit(0)
    os._exit(0)
begin = time.monotonic()
try:
    comm.barrier()
except CollopsError as error:
    say("error", time.monotonic() - begin < 30)
open(noticed, "w").close()
os._exit(0)
"""
    )
    assert run_tcp(program).stdout == "error True\n"


def test_a_child_of_a_single_process_keeps_its_arrays():
    program = """
import os, sys
import collops

x = collops.full((4,), 2.0)
child = os.fork()
if child == 0:
    y = collops.full((4,), 1.0)
    print(float(x.sum()), float((x + collops.full((4,), 1.0, comm=x.comm)).sum()), float(y.sum()))
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
print(float(x.sum()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "8.0 12.0 4.0\n8.0\n", "")
