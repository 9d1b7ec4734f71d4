"""Symmetric memory on hosts: the ranks of one node read, write and signal each other's arrays."""

from __future__ import annotations

import ctypes
import os
import types
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from collops.comm import symmetric_device
from collops.errors import CommunicationError, InputError, LayoutError, TransportError, UnsupportedTypeError
from tests.comm import one_sided
from tests.launch import run_ranks

pytestmark = pytest.mark.usefixtures("one_host")


def test_peers_see_each_other(comm):
    one_sided.check_peers(comm, "numpy")


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_put_and_get(comm, dtype):
    one_sided.check_put_and_get(comm, "numpy", dtype)


def test_signals_come_after_values(comm):
    one_sided.check_signals(comm, "numpy", rounds=200)


@pytest.fixture
def delayed(monkeypatch):
    """What delays the values that a memory puts until its fence, as processors with weak ordering may."""

    @contextmanager
    def delay(memory):
        waiting = []
        put, fence = memory._put, memory._fence

        def deliver():
            while waiting:
                put(*waiting.pop(0))
            fence()

        with monkeypatch.context() as patch:
            patch.setattr(memory, "_put", lambda source, *there: waiting.append((source.copy(), *there)))
            patch.setattr(memory, "_fence", deliver)
            yield

    return delay


def test_signals_come_after_values_that_are_delivered_late(comm, delayed):
    one_sided.check_late_values(comm, "numpy", delayed)


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_atomic_additions(comm, dtype):
    one_sided.check_atomics(comm, "numpy", dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_compare_and_swap(comm, dtype):
    one_sided.check_compare_and_swap(comm, "numpy", dtype)


def test_memory_of_some_ranks(comm):
    """Subcommunicators in another order of ranks; registered memory is the same on hosts."""
    part = comm.split(comm.rank % 2, -comm.rank)
    one_sided.check_peers(part, "numpy")
    one_sided.check_atomics(part, "numpy", "int64")
    with comm.symmetric(3, "float32", engine="numpy", registered=True) as memory:
        memory.local[...] = comm.rank
        memory.barrier()
        assert [memory.peer(rank)[0] for rank in range(comm.size)] == [*range(comm.size)]
        memory.barrier()


def test_what_is_not_added_atomically(comm):
    with comm.symmetric((2, 3), "float32", engine="numpy") as memory:
        with pytest.raises(UnsupportedTypeError, match="32 or 64 bits"):
            memory.atomic_add(np.ones((2, 3), "float32"), 0)
        with pytest.raises(UnsupportedTypeError, match="several GPUs"):
            memory.module("")
        with pytest.raises(UnsupportedTypeError, match="several GPUs"):
            memory.team(comm)
    with comm.symmetric((2, 3), "int64", engine="numpy") as memory:
        for where in (np.s_[:, 1], np.s_[[0, 1]]):  # strided; a copy
            with pytest.raises(LayoutError, match="contiguous"):
                memory.atomic_add(memory.local[where], 0, where)
        with pytest.raises(LayoutError, match="shape"):
            memory.fetch_add(np.ones(3, "int64"), 0, np.s_[0], out=np.ones(2, "int64"))
        with pytest.raises(InputError, match="rank"):
            memory.atomic_add(np.ones(3, "int64"), -1, np.s_[0])
        with pytest.raises(LayoutError, match="contiguous"):
            memory.compare_and_swap(np.zeros(2, "int64"), np.ones(2, "int64"), 0, np.s_[:, 1], out=np.ones(2, "int64"))
        with pytest.raises(UnsupportedTypeError, match="float64"):
            memory.compare_and_swap(np.zeros(3), np.ones(3, "int64"), 0, np.s_[0], out=np.ones(3, "int64"))
        assert not memory.local.any()


class Teams:
    """What is called of nvshmem4py to make teams. `made` has the arguments, `teams` those that are not destroyed."""

    def __init__(self, rank):
        self.rank = rank
        self.made, self.teams = [], []

    def _add(self, address):
        self.teams.append(7 + len(self.made))
        ctypes.c_int32.from_address(address).value = self.teams[-1]

    def team_get_uniqueid(self, address):
        ctypes.c_uint64.from_address(address).value = (1 << 64) - 2 - self.rank

    def team_split_strided(self, parent, start, stride, size, config, mask, team):
        self.made.append((parent, start, stride, size, config, mask))
        if self.rank in range(start, start + stride * size, stride):
            self._add(team)

    def team_init(self, team, config, mask, size, place):
        version, contexts = (ctypes.c_int32 * 2).from_address(config)
        unique_id = ctypes.c_uint64.from_address(config + 8).value
        self.made.append((version, contexts, unique_id, mask, size, place))
        self._add(team)

    def team_destroy(self, team):
        if team != -1:
            self.teams.remove(team)

    def TeamConfig(self):
        config = type("Config", (ctypes.Structure,), {"_fields_": CONFIG})()
        config.ptr = ctypes.addressof(config)
        return config


CONFIG = [("version", ctypes.c_int32), ("num_contexts", ctypes.c_int32), ("uniqueid", ctypes.c_uint64)]


@pytest.fixture
def heap(comm, monkeypatch):
    """Memory in NVSHMEM's heap as far as teams need it, which have no device here."""
    if comm.control is None:
        pytest.skip("needs ranks of MPI")
    library = types.SimpleNamespace(members=[*range(comm.size)], bindings=Teams(comm.rank), error=KeyError)
    for name in ("unique_id", "new_team"):
        setattr(library, name, types.MethodType(getattr(symmetric_device._Library, name), library))
    memory: Any = object.__new__(symmetric_device.DeviceHeap)
    memory.comm, memory.local, memory._library, memory._teams = comm, np.zeros(1), library, {}
    monkeypatch.setattr(memory, "_wait", lambda what: None)
    return memory


def test_teams_are_made_in_one_order(comm, heap):
    """Ranks in ascending steps by splits, which all ranks make in one order; other ranks by their members only."""
    made = heap._library.bindings.made
    team = heap.team(comm.split(comm.rank % 2))
    half = comm.size // 2
    wanted = [(0, 0, 2 if comm.size > 2 else 1, comm.size - half, 0, 0), (0, 1, 2 if half > 1 else 1, half, 0, 0)]
    assert made == wanted[: 2 if half else 1]
    assert team == heap._library.bindings.teams[0]
    assert heap.team(comm.split(comm.rank % 2)) == team
    assert heap.team(None) == -1
    assert len(made) == len(wanted[: 2 if half else 1])
    if comm.size > 1:
        made.clear()
        other = heap.team(comm.split(0, -comm.rank))
        last = comm.size - 1
        assert made == [((2 << 16) + 64, -1, (1 << 64) - 2 - last, 2, comm.size, last - comm.rank)]
        assert heap._library.bindings.teams == [team, other]


def test_a_team_that_cannot_be_made(comm, heap, monkeypatch):
    """Teams that other ranks have made by then are destroyed."""
    bindings = heap._library.bindings
    split = bindings.team_split_strided

    def split_or_fail(parent, start, *arguments):
        if start == comm.rank == comm.size - 1:
            raise KeyError("none is left")
        split(parent, start, *arguments)

    monkeypatch.setattr(bindings, "team_split_strided", split_or_fail)
    with pytest.raises(TransportError, match="NVSHMEM_MAX_TEAMS"):
        heap.team(comm.split(comm.rank))
    assert bindings.teams == []
    assert heap._teams == {}


def test_what_is_no_team(comm, heap):
    with pytest.raises(InputError, match="not of 3"):
        heap.team(3)
    if comm.size > 1:
        alone = comm.split(comm.rank)
        with pytest.raises(InputError, match="pass the same part"):
            heap.team(alone if comm.rank else comm)
        heap._library.members.pop()
        with pytest.raises(InputError, match="other ranks"):
            heap.team(comm.split(0, -comm.rank))
    assert heap._library.bindings.made == []


def test_empty_and_strided(comm):
    one_sided.check_empty(comm, "numpy")


def test_is_freed_once(comm):
    with comm.symmetric(3, engine="numpy") as memory:
        memory.local[...] = 1
    assert memory.local is None
    memory.free()
    for use in (
        lambda: memory.peer(0),
        lambda: memory.put(np.zeros(3), 0),
        lambda: memory.wait_signal(0, 1),
        lambda: memory.atomic_add(np.zeros(3), 0),
        memory.fence,
        memory.barrier,
    ):
        with pytest.raises(InputError, match="been freed"):
            use()


def test_what_is_rejected(comm):
    with comm.symmetric((2, 3), "float32", engine="numpy", signals=1) as memory:
        with pytest.raises(InputError, match="rank"):
            memory.peer(comm.size)
        with pytest.raises(InputError, match="signal"):
            memory.wait_signal(1, 0)
        with pytest.raises(LayoutError):
            memory.put(np.zeros(4, "float32"), 0, np.s_[0])
        with pytest.raises(UnsupportedTypeError):
            memory.put(np.zeros(3), 0, np.s_[0])
        with pytest.raises(UnsupportedTypeError, match="list"):
            memory.put([0, 0, 0], 0, np.s_[0])
        with pytest.raises(InputError, match="2\\^64"):
            memory.put_signal(np.ones(3, "float32"), 0, np.s_[0], 0, -1)
        assert not memory.local.any()
        with pytest.raises(CommunicationError, match="no other rank") if comm.size == 1 else pytest.raises(InputError):
            memory.wait_signal(0 if comm.size == 1 else 7, 1)
    for shape in ((-1,), {}, {2, 3}, ""):
        with pytest.raises(InputError, match="shape"):
            comm.symmetric(shape, engine="numpy")
    with comm.symmetric((), engine="numpy") as scalar:  # as NumPy has it
        scalar.put(np.array(1.0 + comm.rank), (comm.rank + 1) % comm.size)
        scalar.barrier()
        assert scalar.local == 1.0 + (comm.rank - 1) % comm.size
    with pytest.raises(UnsupportedTypeError):
        comm.symmetric(3, object, engine="numpy")


def test_ranks_must_ask_for_the_same(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(LayoutError, match="one shape"):
        comm.symmetric(3 + comm.rank, engine="numpy")


def test_memory_that_is_not_there_is_rejected_on_all_ranks(comm, monkeypatch):
    """Writing to it would end the program with a signal."""
    if comm.size == 1:
        pytest.skip("one rank shares nothing")
    if comm.rank == comm.size - 1:
        usage = types.SimpleNamespace(free=4096 * comm.size)
        monkeypatch.setattr("collops.comm.symmetric.shutil.disk_usage", lambda _: usage)
    if not os.path.isdir("/dev/shm"):
        pytest.skip("shared memory is elsewhere")
    with pytest.raises(MemoryError, match=f"rank {comm.size - 1}.* free"):
        comm.symmetric(4097, "int8", engine="numpy")
    comm.symmetric(4096, "int8", engine="numpy").free()


LEFT_OVER = """
import collops
comm = collops.world()
kept = comm.symmetric(1000, engine="numpy", signals=1)
other = comm.symmetric(10, "float32", engine="numpy")
other.peer(0)[...] = 1
print("DONE", flush=True)
"""


@pytest.mark.serial
def test_what_is_left_is_freed_at_the_end():
    result = run_ranks(2, LEFT_OVER, {})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("DONE") == 2
    assert not result.stderr
