"""Ranks without MPI: how they meet and fail to, what they send, and what happens to the others when one is gone."""

from __future__ import annotations

import socket
import time

import pytest

from collops import _launcher as launcher
from collops._launcher import Started, bootstrap_address, started, why_without_mpi
from collops.comm import tcp
from collops.errors import InputError
from tests.comm.without_mpi import WORLD, Processes, meeting, run, run_suite

pytestmark = pytest.mark.serial

MEET = (
    WORLD
    + """
assert comm.allreduce(np.array([1.0, comm.rank])).tolist() == [comm.size, comm.size * (comm.size - 1) / 2]
print(comm.rank, comm.size, comm.local_rank, comm.host_transport)
"""
)


def test_slurm_names_the_ranks_and_splits_follow_the_key():
    """Also with long messages, and from a rank to itself; MPI's own name of a step is preferred to the job's."""
    program = MEET + (
        "half = comm.split(comm.rank % 2, key=-comm.rank)\n"
        "print(half.allgather(np.array(comm.rank)).tolist())\n"
        "nobody = comm.split(None)\n"
        "one = comm.split(0 if comm.rank else None)\n"
        "assert nobody is None and (one is None) == (comm.rank == 0)\n"
        "long = np.arange(1 << 20, dtype='float64') + comm.rank\n"
        "assert np.array_equal(comm.allreduce(long), 3 * np.arange(1 << 20) + 3.0)\n"
        "right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3\n"
        "assert np.array_equal(comm.sendrecv(long, right, np.empty_like(long), left), long - comm.rank + left)\n"
        "assert np.array_equal(comm.sendrecv(long, comm.rank, np.empty_like(long), comm.rank), long)\n"
    )
    environment = {name: value for name, value in meeting(3).items() if name != "WORLD_SIZE"}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "7"}
    with Processes(program, [{**environment, **step, "SLURM_PROCID": str(rank)} for rank in range(3)]) as ranks:
        results = ranks.results()
    for rank, (code, out, err) in enumerate(results):
        assert code == 0, err
        assert out.split("\n")[:2] == [f"{rank} 3 {rank} tcp", str([[2, 0], [1]][rank % 2])]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, Started(1, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, Started(1, 3)),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_the_environment_tells_the_rank(environment, expected):
    assert started({"COLLOPS_BOOTSTRAP": "tcp://node:29600", **environment}) == expected


@pytest.mark.parametrize(
    "text", ["node:5000", "tcp://node", "tcp://node:", "tcp://node:port", "tcp://:5", "tcp://n:0", "tcp://n:65536"]
)
def test_an_address_needs_host_and_port(text):
    with pytest.raises(InputError, match="'alone' or 'tcp://HOST:PORT'"):
        bootstrap_address({"COLLOPS_BOOTSTRAP": text})


def test_addresses():
    assert bootstrap_address({"COLLOPS_BOOTSTRAP": "tcp://10.0.0.1:29600"}) == ("10.0.0.1", 29600)
    assert bootstrap_address({"COLLOPS_BOOTSTRAP": "tcp://[::1]:29600"}) == ("::1", 29600)
    assert bootstrap_address({"COLLOPS_BOOTSTRAP": "alone"}) is bootstrap_address({}) is None


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"COLLOPS_SECRET": ""}, r"openssl rand -hex 32"),
        ({"COLLOPS_SECRET": "fifteen letters"}, "at least 16 secret characters"),
        ({"WORLD_SIZE": ""}, "or set RANK and WORLD_SIZE, not 1 and None"),
        ({"RANK": "2"}, "or set RANK and WORLD_SIZE, not 2 and 2"),
        ({"RANK": "", "WORLD_SIZE": ""}, "or set RANK and WORLD_SIZE$"),
    ],
)
def test_what_the_environment_lacks(monkeypatch, wrong, text):
    for name, value in {**meeting(2), "RANK": "1", **wrong}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PMI_RANK", raising=False)
    monkeypatch.delenv(launcher._MARK, raising=False)
    with pytest.raises(InputError, match=text):
        tcp.join()


def test_one_rank_needs_nobody():
    environment = meeting(1, COLLOPS_BOOTSTRAP="tcp://127.0.0.1:1", COLLOPS_SECRET="")
    ((code, out, err),) = run(MEET, environment, [0])
    assert (code, out) == (0, "0 1 0 serial\n"), err


def last_lines(results):
    assert all(code == 1 for code, _, _ in results), results
    return [err.splitlines()[-1] for _, _, err in results]


def test_ranks_that_do_not_come():
    """A rank that is missing is named on all others, and a rank whose secret differs counts as missing."""
    environment = meeting(4, COLLOPS_TIMEOUT="3")
    environments = [{**environment, "RANK": str(rank)} for rank in (0, 2, 3)]
    environments[1]["COLLOPS_SECRET"] = "quite another secret"
    with Processes(WORLD, environments) as ranks:
        first, wrong, other = last_lines(ranks.results())
    assert "TransportError: rank 2 and the process at the address of rank 0 do not accept each other" in wrong
    assert "COLLOPS_SECRET differs" in wrong
    for line in (first, other):
        assert "CommunicationTimeout: ranks 1-2 of 4 did not connect to rank 0 at 127.0.0.1:" in line
        assert "within 3 s (COLLOPS_TIMEOUT); 1 connections did not prove that they know COLLOPS_SECRET" in line


def test_rank_0_does_not_come():
    (line,) = last_lines(run(WORLD, meeting(2, COLLOPS_TIMEOUT="1"), [1]))
    assert "CommunicationTimeout: rank 1 did not reach rank 0 at 127.0.0.1:" in line and "refused" in line


@pytest.mark.parametrize(
    ("numbers", "sizes", "text"),
    [
        ((0, 1, 1), (3, 3, 3), "InputError: two processes were started as rank 1 of 3"),
        ((0, 1, 2), (3, 3, 4), "InputError: rank 2 was started as one of 4 ranks, rank 0 of 3"),
    ],
)
def test_ranks_that_disagree_about_themselves(numbers, sizes, text):
    environment = meeting(3)
    environments = [
        {**environment, "RANK": str(number), "WORLD_SIZE": str(size)}
        for number, size in zip(numbers, sizes, strict=True)
    ]
    with Processes(WORLD, environments) as ranks:
        for line in last_lines(ranks.results(30)):
            assert text in line


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"220 mail.example.org ESMTP\r\n", "its greeting differs"),
        (b"collops tcp 2\n" + bytes(42), "its proof is wrong"),
    ],
    ids=["mail", "impostor"],
)
def test_a_port_that_another_program_has(greeting, reason):
    """One that knows what to say, but not the secret, sends the proof of rank 1 back."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment = meeting(2, COLLOPS_BOOTSTRAP=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        with Processes(WORLD, [{**environment, "RANK": str(rank)} for rank in range(2)]) as ranks:
            there, _ = taken.accept()
            there.sendall(greeting)
            if greeting.startswith(b"collops"):
                there.settimeout(30)
                said = b""
                while len(said) < len(greeting) + 32:
                    said += there.recv(100)
                there.sendall(said[-32:])
            first, other = last_lines(ranks.results())
            there.close()
    assert "TransportError: rank 0 cannot listen at 127.0.0.1:" in first and "in use" in first
    error = "TransportError: rank 1 and the process at the address of rank 0 do not accept each other"
    assert f"{error} ({reason})" in other


def test_strangers_at_the_only_address():
    """One says too much, one leaves, one says nothing for a while; no other address of the host is open."""
    environment = meeting(2)
    port = int(environment["COLLOPS_BOOTSTRAP"].rpartition(":")[2])
    environment["COLLOPS_BOOTSTRAP"] = f"tcp://127.0.0.2:{port}"
    with Processes(MEET, [{**environment, "RANK": "0"}]) as first:
        end = time.monotonic() + 60
        while True:
            try:
                silent = socket.create_connection(("127.0.0.2", port), 1)
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.05)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        talkative = socket.create_connection(("127.0.0.2", port), 5)
        talkative.sendall(b"GET / HTTP/1.1\r\nHost: collops\r\n\r\n" + 200 * b"x")
        socket.create_connection(("127.0.0.2", port), 5).close()
        assert silent.recv(100).startswith(b"collops tcp")
        silent.close()
        with Processes(MEET, [{**environment, "RANK": "1"}]) as second:
            results = first.results() + second.results()
        talkative.close()
    assert [code for code, _, _ in results] == [0, 0], results


GONE = (
    WORLD
    + """
import os, signal, time
comm.barrier()
if comm.rank == 1:
    {end}
comm.allreduce(np.ones(3))
"""
)


def test_a_rank_that_is_killed_ends_the_others():
    begin = time.monotonic()
    first, _, third = run(GONE.format(end="os.kill(os.getpid(), signal.SIGKILL)"), meeting(3), range(3))
    assert time.monotonic() - begin < 30  # and not at the deadline
    assert first[0] == third[0] == 1
    for err in (first[2] or third[2], third[2] or first[2]):  # one may end the other before it has written
        assert "CommunicationError: allreduce at " in err and "rank 1 of 3 ended" in err
        assert "  rank 1: its process has exited" in err


def test_a_rank_that_is_killed_ends_those_that_have_ended():
    end = "time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)\nsys.exit(0)"
    ended, _ = run(GONE.format(end=end), meeting(2), range(2))
    assert (ended[0], ended[2]) == (1, "collops: rank 0 ends: the process of rank 1 has exited\n")


def test_a_rank_with_an_error_ends_all_with_its_code():
    program = GONE.format(end="from collops.comm import ending, mpi; ending.abort(mpi.mpi_or_tcp(), 75, 'enough')")
    first, second, third = run(program, meeting(3), range(3))
    assert [each[0] for each in (first, second, third)] == [75, 75, 75]
    assert (first[2], second[2], third[2]) == ("", "enough\n", "")
    other = run(GONE.format(end="raise KeyError('here')"), meeting(2), range(2))
    assert [code for code, _, _ in other] == [1, 1]
    assert "KeyError: 'here'" in other[1][2] and "rank 1 of 2 ends all ranks" in other[1][2]


def test_torchrun_starts_ranks_again():
    """Its names of rank, size and place; and after a failure, for which rank 0 closed connections, the same address."""
    program = MEET + (
        "import os\n"
        "comm.barrier()\n"
        "if comm.rank == 0 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': raise KeyError('the first time')\n"
        "print(os.environ['LOCAL_RANK'], comm.allgather(np.array(comm.rank)).tolist())\n"
    )
    names = "WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE"
    given = {**dict.fromkeys(names.split(), "2"), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    environment = meeting(2, **given, SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_PROCID="0", SLURM_NTASKS="1")
    for restart in range(2):
        own = [dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)) for rank in range(2)]
        again = {"TORCHELASTIC_RESTART_COUNT": str(restart), "TORCHELASTIC_MAX_RESTARTS": "1"}
        with Processes(program, [{**environment, **again, **each} for each in own]) as ranks:
            results = ranks.results()
        for rank, (code, out, err) in enumerate(results):
            assert code == 1 - restart, err
            assert out.splitlines()[0] == f"{rank} 2 {rank} tcp"
            assert restart == 0 or out.splitlines()[1] == f"{rank} [0, 1]"


def test_what_needs_mpi_is_an_error_on_all_ranks():
    program = WORLD + (
        "from collops.exchange import StarForest\n"
        "def attempt(call):\n"
        "    try: call()\n"
        "    except collops.CollopsError as error: print(error)\n"
        "attempt(lambda: comm.symmetric(3, engine='numpy'))\n"
        "attempt(lambda: StarForest(comm, 1, None, [1 - comm.rank], [0], transport='mpi').bcast(np.ones(1)))\n"
        "attempt(lambda: collops.from_mpi4py(3))\n"
        "attempt(lambda: comm.allreduce(np.ones(3 + comm.rank)))\n"  # found by COLLOPS_CHECK
        "assert float(comm.allreduce(1.0)) == comm.size\n"
    )
    for code, out, err in run(program, meeting(2, COLLOPS_CHECK="1"), range(2)):
        assert code == 0, err
        window, forest, given, *differ = out.splitlines()
        assert window == "this needs MPI, but COLLOPS_BOOTSTRAP has started these ranks without it"
        assert (
            "'mpi' cannot send numpy arrays between these ranks: host arrays are sent by tcp; choose auto, tcp"
            in forest
        )
        assert "intracommunicator of mpi4py, not 3" in given
        assert "rank 1: allreduce(sum) of 4 float64" in "\n".join(differ)


def test_a_long_message_to_a_short_array_and_a_child_of_a_rank():
    child = "import collops; print(collops.world().size)"
    program = WORLD + (
        "import subprocess\n"
        f"child = subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True)\n"
        "print(child.stdout, child.stderr)\n"
        "if comm.rank == 0: comm.send(np.ones(9), 1)\n"
        "else:\n"
        "    try: comm.recv(np.ones(3), 0)\n"
        "    except collops.CollopsError as error: print(error)\n"
        "comm.barrier()\n"
    )
    (code, first, err), (other, second, _) = run(program, meeting(2), range(2))
    assert (code, other) == (0, 0), err
    assert first.split() == ["1"] and second.startswith("1\n")
    assert "TCP reports: Message truncated: 72 bytes have arrived for 24" in second


def test_another_address_is_another_job(monkeypatch):
    environment = {"COLLOPS_BOOTSTRAP": "tcp://127.0.0.1:5000", "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launcher.os, "getpid", lambda: 1)
    launcher.mark_rank()
    monkeypatch.undo()
    mark = f"1//{launcher._job(environment)}"
    assert why_without_mpi({**environment, launcher._MARK: mark}) == "a rank started this process"
    assert why_without_mpi({**environment, "COLLOPS_BOOTSTRAP": "tcp://h:5001", launcher._MARK: mark}) == ""


NCCL = """
import types
import collops.comm.nccl as nccl, collops.comm.world
world = sys.modules["collops.comm.world"]
class Binding:
    name, error = "plays", RuntimeError
    def unique_id(self): return bytes(range(128))[::-1]
    def connect(self, size, rank, unique_id):
        print(rank, size, unique_id == self.unique_id())
        return 1
class Transport(nccl.NcclTransport):
    def __init__(self, binding, size, rank, unique_id): binding.connect(size, rank, unique_id)
    def inspect(self): pass
    def release(self): pass
world.device_count = lambda: 2
world._use_device = lambda local_rank, *_: f"gpu {local_rank}"
world.available_binding, nccl.load_binding, nccl.NcclTransport = (lambda: "plays"), Binding, Transport
sys.modules["collops.comm.peer_stores"] = types.SimpleNamespace(connected=lambda control, nodes: (None, "by NCCL"))
print(collops.world().describe())
assert sys.modules["mpi4py"] is None
"""


def test_nccl_needs_no_mpi():
    """Ranks agree on NCCL and get the name of its communicator; NCCL itself runs in `tests/gpu`."""
    for rank, (code, out, err) in enumerate(run(NCCL, meeting(2), range(2))):
        assert code == 0, err
        assert (
            out.startswith(f"{rank} 2 True\n")
            and "device arrays: nccl" in out
            and "short calls on devices: by NCCL" in out
        )


TESTS = ("tests/comm/test_communicator.py", "tests/comm/test_rejections.py", "tests/array/test_halo.py")
TESTS += ("tests/exchange/test_transports.py",)


def test_the_suite_passes_without_mpi():
    run_suite(2, *TESTS)
