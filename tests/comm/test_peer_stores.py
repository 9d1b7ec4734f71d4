"""The kernel of short sums, compiled for the host, between ranks whose memory is a shared window of MPI."""

from __future__ import annotations

import importlib
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from tests.exchange.host_cuda import COMPILER, Array, fake_cupy

FAKED = ("collops.comm.device_launch", "collops.comm.peer_stores")
NCCL_TYPES = {"int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float32": 7, "float64": 8}
WIDTHS = {"complex64": ("float32", 2), "complex128": ("float64", 2)}


class Event:
    """An event of a stream without delay."""

    def __init__(self, disable_timing): ...

    def record(self, stream):
        stream.calls.append("record")


class Stream:
    """A stream that remembers what it was told to wait for."""

    def __init__(self, ptr, capturing=False):
        self.ptr = ptr
        self.capturing = capturing
        self.calls = []

    def is_capturing(self):
        return self.capturing

    def wait_event(self, event):
        self.calls.append("wait")


STREAM = [Stream(9)]  # the current one


class Memory(bytearray):
    """Pinned memory: bytes with an address."""

    @property
    def ptr(self):
        return np.frombuffer(self, np.uint8).ctypes.data


@pytest.fixture(scope="module")
def module(comm, tmp_path_factory):
    """The module with a stand-in for CuPy."""
    if COMPILER is None or comm.control is None or comm.local_size < comm.size:
        pytest.skip("needs a C++ compiler, MPI, and ranks of one host")
    with pytest.MonkeyPatch.context() as patch:
        for name in FAKED:
            patch.delitem(sys.modules, name, raising=False)
        cupy = fake_cupy(tmp_path_factory.mktemp("kernels"))
        cupy.cuda.alloc_pinned_memory, cupy.cuda.Event = Memory, Event
        cupy.cuda.get_current_stream = lambda: STREAM[0]
        patch.setitem(sys.modules, "cupy", cupy)
        found = importlib.import_module("collops.comm.peer_stores")
        # Threads of a block cannot wait for each other here, but blocks and ranks can.
        patch.setattr(found, "wait_while_source", str)  # deadlines of devices
        patch.setattr(found, "_MOST_THREADS", 1)
        yield found
        for name in FAKED:
            sys.modules.pop(name, None)


@pytest.fixture
def sums(comm, module):
    """The short sums of all ranks, and the memory of this one in 32-bit words."""
    with comm.symmetric(-(-module.memory_bytes(comm.size) // 8), np.uint64, engine="numpy") as window:
        addresses = [window.peer(rank).ctypes.data for rank in range(comm.size)]
        STREAM[0] = Stream(9)
        yield module.PeerStores(comm.rank, addresses), window.local.view(np.uint32)


def drawn(rank, dtype, size, turn):
    """Values with rounding errors, different on every rank and in every turn."""
    numbers = np.random.default_rng([rank, size, turn]).standard_normal((2, size)) * 1e3
    return (numbers[0] + 1j * numbers[1] if dtype.kind == "c" else numbers[0]).astype(dtype)


def added(sums, comm, dtype, size, turn, in_place=False):
    """Add up values of all ranks, compare with NumPy's sum in the order of ranks, and return this rank's result."""
    parts = [drawn(rank, np.dtype(dtype), size, turn) for rank in range(comm.size)]
    source = parts[comm.rank].copy().view(Array)
    target = source if in_place else np.zeros_like(source)
    kind = NCCL_TYPES[WIDTHS.get(dtype, (dtype, 1))[0]]
    assert sums.add_up(source, target, kind, STREAM[0].ptr)
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    assert target.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [*NCCL_TYPES, *WIDTHS])
@pytest.mark.parametrize("size", [1, 2, 7, 511, 512, 513])
def test_sums(comm, sums, dtype, size):
    for turn in range(5):
        added(sums[0], comm, dtype, size, turn, in_place=turn % 2 == 1)


@pytest.mark.parametrize("width", [1, 3, 512, 1030])
def test_alltoall(comm, sums, width):
    for turn in range(3):
        blocks = [
            drawn(rank, np.dtype("f4"), width * comm.size, turn).reshape(comm.size, -1) for rank in range(comm.size)
        ]
        source = blocks[comm.rank].view(Array)
        target = np.zeros_like(source)
        assert sums[0].alltoall(source, target, 9)
        np.testing.assert_array_equal(target, [block[comm.rank] for block in blocks])
        added(sums[0], comm, "float32", 5, turn)


def test_many_sums_of_all_lengths(comm, module, sums):
    """Blocks count their calls for themselves: a long array after short ones."""
    rng = np.random.default_rng(3)
    for turn, size in enumerate([*rng.integers(1, module.LIMIT // 4, 20), module.LIMIT // 4, 1, 513]):
        added(sums[0], comm, "float32", int(size), turn)


def test_limits(module, sums):
    short, _ = sums
    for size, dtype, kind in ((0, "f4", 7), (module.LIMIT // 4 + 1, "f4", 7), (3, "f2", 6), (3, "i1", 0)):
        array = np.zeros(size, dtype).view(Array)
        assert not short.add_up(array, array, kind, 0)


def test_epochs_begin_anew(comm, module, sums):
    """No packet of 2^32 calls ago is taken for one of now, not even where no call has sent one since."""
    short, words = sums
    epochs = short._link[4 + 8 :]
    for turn in range(3):
        added(short, comm, "float64", 100, turn)
    assert epochs[0] == 3
    comm.barrier()
    epochs[0] = 2**30 - 1
    comm.barrier()
    for turn in range(2):  # these send all packets of the block
        added(short, comm, "float64", 1, turn)
    stamps = words[1 : 4 * comm.size * module.LIMIT // 8 * 2 : 2].reshape(2 * comm.size, -1, 2)
    assert set(stamps[:, :256].ravel().tolist()) == {2**30, 2**30 + 1}
    comm.barrier()
    epochs[0] = 2**32 - 2
    comm.barrier()
    for turn in range(4):
        added(short, comm, "float64", 1 + 20 * turn, turn)
    assert epochs[0] == 2


def test_kernels_end_when_the_host_gives_up(comm, sums):
    if comm.size == 1:
        pytest.skip("a single rank waits for nobody")
    short, _ = sums
    array = np.zeros(3000, np.float32).view(Array)
    if comm.rank == 0:  # the others never come
        timer = threading.Timer(0.2, short.give_up)
        timer.start()
        short.add_up(array, array, 7, 0)
        timer.join()
        short.add_up(array, array, 7, 0)  # ends at once
    comm.barrier()


@pytest.mark.parametrize(
    ("last", "current", "ordered"),
    [
        (Stream(5), Stream(6), True),
        (Stream(0), Stream(6), True),
        (Stream(5, capturing=True), Stream(6, capturing=True), True),
        # An event must not cross the border of what is recorded.
        (Stream(5), Stream(6, capturing=True), False),
        (Stream(5, capturing=True), Stream(6), False),
        (Stream(0, capturing=True), Stream(6, capturing=True), False),
    ],
)
def test_launches_on_another_stream_are_ordered_after_earlier_ones(comm, sums, last, current, ordered):
    short, _ = sums
    for turn, stream in enumerate((last, current, current)):
        STREAM[0] = stream
        added(short, comm, "int64", 2, turn)
        if turn == 0:
            last.calls.clear()
    assert last.calls == (["record"] if ordered else []) and current.calls == (["wait"] if ordered else [])


def test_where_there_are_none(module, monkeypatch):
    """On several hosts, with too many ranks, and on AMD's GPUs."""
    control = SimpleNamespace(size=2, rank=0)
    assert module.connected(control, (0, 1))[0] is None
    control.size = 9
    assert module.connected(control, (0,) * 9)[0] is None
    control.size = 2
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "is_hip", True)
    assert module.connected(control, (0, 0))[0] is None
