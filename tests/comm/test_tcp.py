"""Ranks without MPI: how they meet and fail to, what they send, and what becomes of the others when one is gone."""

from __future__ import annotations

import socket
import time

import pytest

from tests.comm.tcp_ranks import Ranks, free_port, meeting, plain_environment, run_tcp_ranks

pytestmark = pytest.mark.serial

WORLD = "import collops\ncomm = collops.world()\n"
MEET = (
    WORLD
    + """
import numpy as np
total = comm.allreduce(np.array([1.0, comm.rank]))
assert total.tolist() == [comm.size, comm.size * (comm.size - 1) / 2], total
half = comm.split(comm.rank % 2, key=-comm.rank)
mine = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
assert half.allgather(np.array(comm.rank)).tolist() == mine[::-1]
print(comm.rank, comm.size, comm.local_rank, comm.host_transport)
"""
)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_meet_without_mpi(size):
    for rank, (code, out, err) in enumerate(run_tcp_ranks(MEET, meeting(size), range(size))):
        assert (code, out.split()) == (0, [str(rank), str(size), str(rank), "tcp"]), err


def test_slurm_names_the_ranks():
    environment = {name: value for name, value in meeting(2).items() if name != "WORLD_SIZE"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "7"}
    environments = [
        {**environment, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(1 - rank)} for rank in range(2)
    ]
    with Ranks(MEET, environments) as ranks:
        outs = [out.split() for _, out, _ in ranks.results()]
    assert outs == [["0", "2", "1", "tcp"], ["1", "2", "0", "tcp"]]


def test_one_rank_needs_nobody():
    environment = plain_environment(COLLOPS_BOOTSTRAP="tcp://127.0.0.1:1", RANK="0", WORLD_SIZE="1")
    with Ranks(WORLD + "print(comm.describe())", [environment]) as ranks:
        ((code, out, err),) = ranks.results()
    assert code == 0 and "rank 0 of 1" in out, err


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"COLLOPS_SECRET": ""}, "export COLLOPS_SECRET=$(openssl rand -hex 32)"),
        ({"COLLOPS_SECRET": "short"}, "16 characters or more"),
        ({"COLLOPS_BOOTSTRAP": "127.0.0.1:5000"}, "give tcp://HOST:PORT"),
        ({"COLLOPS_BOOTSTRAP": "tcp://127.0.0.1"}, "give tcp://HOST:PORT"),
        ({"COLLOPS_BOOTSTRAP": "tcp://127.0.0.1:port"}, "give tcp://HOST:PORT"),
        ({"WORLD_SIZE": ""}, "set RANK and WORLD_SIZE"),
        ({"RANK": "2"}, "set RANK and WORLD_SIZE, not 2 and 2"),
        ({"COLLOPS_TIMEOUT": "-1"}, "COLLOPS_TIMEOUT='-1'"),
    ],
)
def test_what_the_environment_lacks(wrong, text):
    with Ranks(WORLD, [{**meeting(2), "RANK": "1", **wrong}]) as ranks:
        ((code, _, err),) = ranks.results()
    assert code == 1 and "InputError: " in err and text in err.splitlines()[-1]


def last_lines(results):
    assert all(code == 1 for code, _, _ in results), results
    return [err.splitlines()[-1] for _, _, err in results]


def test_a_rank_that_does_not_come():
    lines = last_lines(run_tcp_ranks(WORLD, meeting(3, COLLOPS_TIMEOUT="4"), (0, 2)))
    for line in lines:
        assert "CommunicationTimeout: rank 1 of 3 did not come to rank 0 at 127.0.0.1:" in line


def test_rank_0_does_not_come():
    (line,) = last_lines(run_tcp_ranks(WORLD, meeting(2, COLLOPS_TIMEOUT="2"), (1,)))
    assert "CommunicationTimeout: rank 1 found nobody at 127.0.0.1:" in line and "refused" in line


def test_a_wrong_secret():
    """The rank that has it learns so at once, the others at their deadline: anybody could send a wrong one."""
    environment = meeting(3, COLLOPS_TIMEOUT="6")
    environments = [{**environment, "RANK": str(rank)} for rank in range(3)]
    environments[1]["COLLOPS_SECRET"] = "quite another secret"
    with Ranks(WORLD, environments) as ranks:
        first, wrong, other = last_lines(ranks.results())
    assert "TransportError: rank 0 at 127.0.0.1:" in wrong and "COLLOPS_SECRET differs" in wrong
    for line in (first, other):
        assert "rank 1 of 3 did not come" in line and "1 connections from 127.0.0.1 did not prove" in line


@pytest.mark.parametrize(
    ("numbers", "sizes", "text"),
    [
        ((0, 1, 1), (3, 3, 3), "two processes were started as rank 1 of 3"),
        ((0, 1, 2), (3, 3, 4), "rank 2 was started as one of 4 ranks, and rank 0 as one of 3"),
    ],
)
def test_ranks_that_disagree_about_themselves(numbers, sizes, text):
    environment = meeting(3)
    with Ranks(
        WORLD,
        [{**environment, "RANK": str(r), "WORLD_SIZE": str(n)} for r, n in zip(numbers, sizes, strict=True)],
    ) as ranks:
        for line in last_lines(ranks.results()):
            assert line.startswith("collops.errors.InputError: ") and text in line


def test_a_port_that_is_taken():
    """By a program that says something else, which rank 1 finds, and rank 0 finds that it cannot listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = meeting(2, COLLOPS_BOOTSTRAP=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with Ranks(WORLD, [{**environment, "RANK": str(rank)} for rank in range(2)]) as ranks:
            there, _ = taken.accept()
            there.sendall(b"220 mail.example.org ESMTP, and enough to be a greeting of this length\r\n")
            first, other = last_lines(ranks.results())
            there.close()
    assert "TransportError: rank 0 cannot listen at 127.0.0.1:" in first and "in use" in first
    assert "TransportError: another program answers rank 1 in the place of rank 0" in other


def test_strangers_hold_up_nobody():
    """One says nothing, one says something else, one leaves: the ranks meet while the first is still there."""
    environment = meeting(2)
    address = "127.0.0.1", int(environment["COLLOPS_BOOTSTRAP"].rpartition(":")[2])
    with Ranks(MEET, [{**environment, "RANK": "0"}]) as first:
        end = time.monotonic() + 60
        while True:
            try:
                silent = socket.create_connection(address, 1)
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert silent.recv(100).startswith(b"collops")
        talkative = socket.create_connection(address, 5)
        talkative.sendall(b"GET / HTTP/1.1\r\nHost: collops\r\n\r\n" + 200 * b"x")
        socket.create_connection(address, 5).close()
        with Ranks(MEET, [{**environment, "RANK": "1"}]) as second:
            results = first.results() + second.results()
        silent.close()
        talkative.close()
    assert [code for code, _, _ in results] == [0, 0], results


def test_only_the_given_address_listens():
    environment = meeting(2)
    port = free_port()
    environment["COLLOPS_BOOTSTRAP"] = f"tcp://127.0.0.2:{port}"
    with Ranks(MEET, [{**environment, "RANK": "0"}]) as first:
        time.sleep(3)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with Ranks(MEET, [{**environment, "RANK": "1"}]) as second:
            assert [code for code, _, _ in first.results() + second.results()] == [0, 0]


GONE = (
    WORLD
    + """
import os, signal, sys
import numpy as np
comm.barrier()
if comm.rank == 1:
    {end}
comm.allreduce(np.ones(3))
"""
)


@pytest.mark.parametrize(
    ("end", "own"),
    [("os.kill(os.getpid(), signal.SIGKILL)", ""), ("raise KeyError('here')", "rank 1 of 3 ends all ranks")],
    ids=["killed", "error"],
)
def test_a_rank_that_is_gone_ends_the_others(end, own):
    begin = time.monotonic()
    results = run_tcp_ranks(GONE.format(end=end), meeting(3), range(3))
    assert time.monotonic() - begin < 50  # and not at the deadline
    assert own in results[1][2]
    for code, _, err in (results[0], results[2]):
        assert code == 1
        assert "CommunicationError: allreduce at " in err and "rank 1 of 3 lost the connection" in err


def test_a_long_message_to_a_short_array():
    program = WORLD + (
        "import numpy as np\n"
        "if comm.rank == 0: comm.send(np.ones(9), 1)\n"
        "else:\n"
        "    try: comm.recv(np.ones(3), 0)\n"
        "    except collops.CollopsError as error: print(error)\n"
        "comm.barrier()\n"
    )
    (code, _, err), (other, out, _) = run_tcp_ranks(program, meeting(2), range(2))
    assert (code, other) == (0, 0), err
    assert "TCP reports: Message truncated: 72 bytes have arrived for 24" in out


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("comm.symmetric(3, engine='numpy')", "symmetric memory on hosts needs MPI"),
        ("StarForest(comm, 1, None, [1 - comm.rank], [0], transport='mpi').bcast(np.ones(1))", "choose auto, tcp"),
        ("collops.from_mpi4py(3)", "mpi4py cannot be used here: COLLOPS_BOOTSTRAP has started these ranks without MPI"),
        ("collops.world('nccl')", "needs a GPU and CuPy on every rank"),
    ],
)
def test_what_needs_mpi_is_refused_by_name(call, text):
    program = WORLD + (
        "import numpy as np\n"
        "from collops.exchange import StarForest\n"
        f"try: {call}\n"
        "except collops.CollopsError as error: print(error)\n"
        "assert float(comm.allreduce(1.0)) == comm.size\n"
    )
    for code, out, err in run_tcp_ranks(program, meeting(2), range(2)):
        assert code == 0 and text in out, err


def test_jax_on_hosts_is_refused():
    pytest.importorskip("jax", reason="collops.jax needs JAX")
    program = WORLD + (
        "import collops.jax, jax.numpy as jnp\n"
        "try: collops.jax.allreduce(jnp.ones(3))\n"
        "except Exception as error: print(error)\n"
    )
    for code, out, err in run_tcp_ranks(program, meeting(2), range(2)):
        assert code == 0 and "collops.jax on CPUs needs MPI" in out, err


def test_a_child_of_a_rank_is_alone():
    child = "import collops; print(collops.world().size)"
    program = WORLD + (
        "import subprocess\n"
        f"child = subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True)\n"
        "print(comm.size, child.returncode, child.stdout.strip(), child.stderr)\n"
    )
    assert [out.split() for _, out, _ in run_tcp_ranks(program, meeting(2), range(2))] == [["2", "0", "1"]] * 2


def test_calls_are_checked():
    """COLLOPS_CHECK agrees on calls over the same connections, and finds those that differ."""
    program = WORLD + (
        "import numpy as np\n"
        "try: comm.allreduce(np.ones(3 + comm.rank))\n"
        "except collops.errors.CallMismatch as error: print(error)\n"
    )
    for code, out, err in run_tcp_ranks(program, meeting(2, COLLOPS_CHECK="1"), range(2)):
        assert code == 0 and "rank 1: allreduce(sum) of 4 float64" in out, err


SUITE = """
import pytest
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not serial", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("size", "files"),
    [
        (3, ("tests/comm/test_communicator.py",)),
        (2, ("tests/comm/test_rejections.py", "tests/exchange/test_transports.py", "tests/array/test_halo.py")),
        (2, ("tests/solvers/test_cg.py",)),
    ],
    ids=["communicator", "exchanges", "solvers"],
)
def test_the_suite_passes_without_mpi(size, files):
    environment = meeting(size)
    with Ranks(SUITE, [{**environment, "RANK": str(rank)} for rank in range(size)], files) as ranks:
        results = ranks.results(220)
    assert [code for code, _, _ in results] == [0] * size, "\n".join(out + err for _, out, err in results)
    assert "passed" in results[0][1]
