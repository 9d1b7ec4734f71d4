"""Tests that only ranks of two hosts can run, two on each; `test_several_hosts.py` starts them with others."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from collops.backend import engine
from collops.errors import InputError, TransportError
from collops.exchange import StarForest, possible_transports


@pytest.fixture
def host(comm):
    """The communicator of the ranks of this rank's host."""
    return comm.split(["nodea", "nodeb"].index(socket.gethostname()))


def sent_bytes() -> int:
    """Return what this host has sent over its network."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if "eth0:" in line).partition(":")[2].split()[8])


def test_hosts_share_only_the_network(comm, host):
    assert (comm.size, comm.local_size, comm.local_rank) == (4, 2, comm.rank % 2)
    assert f"rank {comm.rank} of 4 (rank {comm.rank % 2} of 2 on its node)" in comm.describe()
    assert comm.allgather_metadata(socket.gethostname()) == ["nodea", "nodea", "nodeb", "nodeb"]
    assert (host.size, host.local_size) == (2, 2)
    memory = Path("/dev/shm")
    (memory / f"of-{socket.gethostname()}-{host.rank}").touch()
    comm.barrier()
    assert {path.name for path in memory.glob("of-*")} == {f"of-{socket.gethostname()}-{rank}" for rank in range(2)}


def test_hosts_talk_over_the_network(comm):
    comm.barrier()
    before = sent_bytes()
    x = np.full(1 << 17, 1.5 + comm.rank)
    np.testing.assert_array_equal(comm.allgather(x)[:, -1], 1.5 + np.arange(4))
    comm.barrier()
    assert sent_bytes() - before > 2 * x.nbytes  # the values of both its ranks, which the other host lacks


def test_shared_memory_ends_at_the_host(comm, host):
    """It is refused by name between hosts; the ranks of one host have it as ever."""
    with pytest.raises(
        InputError,
        match=r"'shared' cannot send numpy arrays .*: the ranks are on several hosts; choose auto, ",
    ):
        StarForest(comm, 1, None, [0], [0], transport="shared").bcast(np.ones(1))
    with pytest.raises(TransportError, match="symmetric memory needs all 4 on one"):
        comm.symmetric(3, engine="numpy")
    assert possible_transports(host, engine()) == ["shared", "mpi"]
    other = 1 - host.rank
    forest = StarForest(host, 1, None, [other], [0], transport="shared")
    assert forest.bcast(np.array([comm.rank])).tolist() == [comm.rank - host.rank + other]
    with host.symmetric(1, "int64", engine="numpy") as memory:
        memory.put(np.array([comm.rank]), other)
        host.barrier()
        assert memory.local.tolist() == [comm.rank - host.rank + other]


def test_processes_of_two_hosts_may_have_the_same_number(comm):
    numbers = comm.allgather_metadata(os.getpid())
    assert sorted(numbers[:2]) == sorted(numbers[2:])
