"""The library on two hosts with two ranks each: tests of everything that sends messages."""

from __future__ import annotations

import importlib.util
import os
import re
import time

import pytest

from tests import hosts

pytestmark = pytest.mark.serial

LIBRARY = """
tests/robust/two_hosts.py
tests/comm/test_communicator.py::test_reductions[sum-float16]
tests/comm/test_communicator.py::test_reductions[prod-complex128]
tests/comm/test_communicator.py::test_reductions[max-float64]
tests/comm/test_communicator.py::test_reductions[min-int32]
tests/comm/test_communicator.py::test_logical_reductions[lxor-bool]
tests/comm/test_communicator.py::test_average[float64]
tests/comm/test_communicator.py::test_movement[bool]
tests/comm/test_communicator.py::test_movement[complex128]
tests/comm/test_communicator.py::test_messages[float64]
tests/comm/test_communicator.py::test_strided_arrays
tests/comm/test_communicator.py::test_exchange_plan
tests/comm/test_communicator.py::test_exchange_plans_in_flight
tests/comm/test_communicator.py::test_exchange_plan_of_several_arrays
tests/comm/test_communicator.py::test_split_orders_by_key
tests/comm/test_communicator.py::test_check_raises_everywhere
tests/exchange/test_transports.py
tests/exchange/test_forest.py::test_every_mover_does_what_the_model_does
tests/exchange/test_forest.py::test_many_at_once_finish_in_any_order
tests/array/test_redistribute.py
tests/array/test_halo.py::test_corners_come_with_the_same_exchange
tests/array/test_io.py::test_another_number_of_ranks
tests/operators/test_csr.py::test_solvers_take_it
tests/solvers/test_checkpoint.py::test_what_goes_on_ends_where_it_would_have[cgls]
tests/solvers/test_checkpoint.py::test_a_signal_to_one_rank_stops_all
"""
JAX = """
tests/jax/test_primitives.py::test_primitive[allreduce sum]
tests/jax/test_primitives.py::test_primitive[bcast]
tests/jax/test_primitives.py::test_primitive[neighbor_exchange]
tests/jax/test_primitives.py::test_primitive[send and recv]
"""
PYTEST = """
import sys
import pytest

sys.exit(pytest.main(["-m", "not serial", "-q", "-p", "no:cacheprovider", *{tests!r}]))
"""


def test_tests_pass():
    """Against the same independent answers as on one host; in one run, as ranks start longer than most tests take."""
    tests = LIBRARY.strip().splitlines()
    if importlib.util.find_spec("collops_native") is not None:
        tests += JAX.strip().splitlines()
    environment = {"COLLOPS_EXAMPLES": "8", "COLLOPS_JAX_RANKS": "4", "COLLOPS_ALL_CASES": "1"}
    done = hosts.run(PYTEST.format(tests=tests), env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) >= len(tests)
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    expected = ("ranks of one host", "ranks without MPI", "an all-to-all waits for all ranks")
    assert all(any(reason in line for reason in expected) for line in skipped), skipped


def test_ranks_without_mpi_meet_on_two_hosts():
    """Each rank listens at the address of its own host, and rank 0 at the one that is given."""
    program = """
import sys
sys.modules["mpi4py"] = None
import socket
import collops

comm = collops.world()
assert comm.sendrecv(float(comm.rank), 3 - comm.rank, comm.allreduce(0.0), 3 - comm.rank) == 3 - comm.rank
print(comm.host_transport, comm.rank, comm.local_rank, socket.gethostname())
"""
    environment = {"COLLOPS_BOOTSTRAP": "tcp://10.20.0.1:29600", "COLLOPS_SECRET": "known to two hosts only"}
    done = hosts.run(program, env=environment)
    assert sorted(done.stdout.splitlines()) == ["tcp 0 0 nodea", "tcp 1 1 nodea", "tcp 2 0 nodeb", "tcp 3 1 nodeb"], (
        done.stderr
    )


def test_private_folders_are_those_of_a_host():
    program = """
import pathlib, socket, tempfile
import collops

comm = collops.world()
folder = pathlib.Path(tempfile.gettempdir())
(folder / socket.gethostname()).touch()
comm.barrier()
assert [path.name for path in folder.iterdir()] == [socket.gethostname()]
assert len(set(comm.allgather_metadata(str(folder)))) == 1
print("DONE", flush=True)
"""
    done = hosts.run(program, private_tmp=True)
    assert (done.returncode, done.stdout) == (0, "DONE\n" * 4), done.stderr


def test_hosts_disappear_after_a_failure():
    """With their processes, networks, mounts and folders."""
    interfaces = os.listdir("/sys/class/net")
    with pytest.raises(ZeroDivisionError), hosts.Hosts(2) as two:
        holders = [holder.pid for holder in two._holders.values()]
        inside = [pid for name in two.names for pid in two.processes(name)]
        assert inside and two.shared.is_dir()
        raise ZeroDivisionError
    assert not two.shared.exists()
    end = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in [*holders, *inside]):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert os.listdir("/sys/class/net") == interfaces
    with open("/proc/mounts") as mounts:
        assert str(two.shared) not in mounts.read()
