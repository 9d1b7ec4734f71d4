"""The kernels of short calls, compiled for the host, between ranks whose memory is a shared window of MPI.

Those of exchanges also run between ranks that are threads of one process.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import SimpleNamespace

import numpy as np
import pytest

from collops.comm.transport import KnownExchange
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
def module(tmp_path_factory):
    """The module with a stand-in for CuPy."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
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
        patch.setattr(found, "_MAX_THREADS", 1)
        yield found
        for name in FAKED:
            sys.modules.pop(name, None)


@pytest.fixture
def sums(comm, module):
    """The short sums of all ranks, and the memory of this one in 32-bit words."""
    if comm.control is None or comm.local_size < comm.size:
        pytest.skip("needs MPI, and ranks of one host")
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
    stamps = words[1 : module.memory_bytes(comm.size) // 4 : 2].reshape(2 * comm.size, -1, 2)
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
        timer = threading.Timer(0.2, short.abort)
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


POOL = np.random.default_rng(0).integers(1, 256, 1 << 17).astype(np.uint8)  # values of messages


class Ranks:
    """Ranks that are threads of this process."""

    def __init__(self, module, size):
        self.memory = [np.zeros(module.memory_bytes(size) // 4, np.uint32) for _ in range(size)]
        addresses = [memory.ctypes.data for memory in self.memory]
        STREAM[0] = Stream(9)
        self.stores = [module.PeerStores(rank, addresses) for rank in range(size)]
        self.size = size

    def calls(self, rank):
        """How many calls each block of each pair has had: a view by block and other rank."""
        return self.stores[rank]._link[4 + 8 + 64 :].reshape(-1, 8)

    def run(self, program):
        """Run ``program(rank)`` on all ranks at once. Kernels that wait for each other for ever are an error."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(program, rank) for rank in range(self.size)]
            done, late = wait(futures, timeout=60, return_when=FIRST_EXCEPTION)
            for store in self.stores if late else ():
                store.abort()
            for future in done:
                future.result()
            assert not late

    def exchange(self, rank, lengths, call, stream=None):
        """Exchange bytes as ``lengths[from, to]`` says, -1 for no message, and compare all that arrive.

        Their addresses are multiples of 1, 2 or 4, differently at both ends.
        """
        sends, receives, expected, kept = [], [], [], []
        for other in range(self.size):
            if (count := int(lengths[rank, other])) >= 0:
                source = np.zeros(count + 8, np.uint8)
                begin = (call + rank) % 5
                source[begin : begin + count] = POOL[place_of(call, rank, other) :][:count]
                sends.append((other, source.ctypes.data + begin, count))
                kept.append(source)
            if (count := int(lengths[other, rank])) >= 0:
                target = np.zeros(count + 8, np.uint8)
                begin = (call + other) % 3
                receives.append((other, target.ctypes.data + begin, count))
                wanted = np.zeros_like(target)  # nothing is written beside the message
                wanted[begin : begin + count] = POOL[place_of(call, other, rank) :][:count]
                expected.append((target, wanted))
        assert not any(self.stores[rank].exchange(sends, receives, stream or STREAM[0], KnownExchange()))
        for target, wanted in expected:
            np.testing.assert_array_equal(target, wanted)


def place_of(call, sender, receiver):
    return (call * 97 + sender * 13 + receiver) % (1 << 16)


def drawn_lengths(rng, module, size):
    """The lengths of the messages of an exchange: most are short, some none or empty, few have several blocks."""
    short, long = rng.integers(0, 50, (size, size)), rng.integers(0, module.MESSAGE_LIMIT + 1, (size, size))
    lengths = np.where(rng.random((size, size)) < 0.05, long, short)
    lengths[rng.random((size, size)) < rng.random()] = -1
    np.fill_diagonal(lengths, -1)
    return lengths


@pytest.mark.serial
@pytest.mark.parametrize("size", [2, 3, 4])
def test_exchanges_of_drawn_pairs(module, size):
    """Each exchange has other pairs, lengths and directions; sums come in between, and ranks fall behind."""
    ranks, count = Ranks(module, size), 2000 // size
    for rank in range(size):
        ranks.calls(rank)[...] = 2**32 - 100  # epochs begin anew meanwhile

    def program(rank):
        drawn, own = np.random.default_rng(size), np.random.default_rng([size, rank])
        for call in range(count):
            ranks.exchange(rank, drawn_lengths(drawn, module, size), call)
            if drawn.random() < 0.1:
                numbers = np.full(int(drawn.integers(1, 600)), float(rank)).view(Array)
                assert ranks.stores[rank].add_up(numbers, numbers, 8, STREAM[0].ptr)
                assert (numbers == size * (size - 1) / 2).all()
            if own.random() < 0.02:
                time.sleep(0.002)

    ranks.run(program)
    for rank in range(size):
        for other in range(size):
            assert (ranks.calls(rank)[:, other] == ranks.calls(other)[:, rank]).all()


@pytest.mark.serial
def test_a_rank_that_only_sends_does_not_get_ahead(module):
    ranks, lengths = Ranks(module, 2), np.array([[-1, 12], [-1, -1]])

    def program(rank):
        for call in range(50):
            if rank == 1:
                time.sleep(0.001)
            ranks.exchange(rank, lengths, call)

    ranks.run(program)


@pytest.mark.serial
def test_blocks_of_pairs_have_epochs_of_their_own(module):
    """Also those that only long messages have, which one end alone may send; all their packets are sent at times."""
    ranks = Ranks(module, 3)
    for rank in range(3):
        ranks.calls(rank)[...] = 2**30 - 1
    lengths = np.full((3, 3), -1)
    lengths[0, 1] = 1

    def program(rank):
        for call in range(2):
            ranks.exchange(rank, lengths, call)

    ranks.run(program)
    lengths[1, 0] = module.MESSAGE_LIMIT
    ranks.run(program)
    assert ranks.calls(0)[:, 1].tolist() == [2**30 + 3] + [2**30 + 1] * 15
    assert (ranks.calls(0)[:, 2] == 2**30 - 1).all()
    stamps = ranks.memory[1][1::2].reshape(2, 3, -1, 256, 2)[:, 0, 64:]  # of packets from rank 0, by block
    assert set(stamps[:, 1:].ravel().tolist()) == {2**30, 2**30 + 1}
    assert set(stamps[:, 0].ravel().tolist()) == {2**30, 2**30 + 1, 2**30 + 2, 2**30 + 3}


def test_other_messages_are_left_to_nccl(module):
    """Long ones, several of a pair, and to oneself: both ends of a pair decide alike, whatever their addresses."""
    limit = module.MESSAGE_LIMIT
    for rank, store in enumerate(Ranks(module, 4).stores):
        for sends, receives in (
            ([(1, 0, limit + 1)], [(1, 0, 4)]),
            ([(1, 0, 4)], [(1, 0, limit + 1)]),
            ([(1, 0, 4), (1, 4, 4)], []),
            ([(1, 0, 4)], [(1, 0, 4), (1, 8, 4)]),
        ):
            if rank == 0:
                assert store.exchange(sends, receives, Stream(3), KnownExchange()) == (sends, receives)
        own = [(rank, 0, 4)], [(rank, 8, 4)]
        assert store.exchange(*own, Stream(3), KnownExchange()) == own
        assert not store._link[4 + 8 :].any() and store._stream == STREAM[0].ptr


@pytest.mark.serial
def test_short_and_long_messages_of_one_exchange(module):
    ranks, limit = Ranks(module, 3), module.MESSAGE_LIMIT

    def program(rank):
        source, target = np.full(limit, rank + 1, np.uint8), np.zeros(limit, np.uint8)
        here, there = source.ctypes.data, target.ctypes.data
        sends = {0: [(2, here, 2 * limit), (1, here, limit)], 1: [(0, here, 7)], 2: [(0, here, 4)]}[rank]
        receives = {0: [(1, there, 7), (2, there, 4)], 1: [(0, there, limit)], 2: [(0, there, 2 * limit)]}[rank]
        left = ranks.stores[rank].exchange(sends, receives, STREAM[0], KnownExchange())
        assert left == {0: (sends[:1], receives[1:]), 1: ((), ()), 2: (sends, receives)}[rank]
        expected = {0: [2] * 7 + [0] * (limit - 7), 1: [1] * limit, 2: [0] * limit}[rank]
        assert target.tolist() == expected

    ranks.run(program)


@pytest.mark.serial
def test_exchanges_end_when_the_host_gives_up(module):
    ranks, target = Ranks(module, 2), np.zeros(3000, np.uint8)
    receives = [(1, target.ctypes.data, 3000)]
    timer = threading.Timer(0.2, ranks.stores[0].abort)  # rank 1 never comes
    timer.start()
    ranks.stores[0].exchange([], receives, STREAM[0], KnownExchange())
    timer.join()
    ranks.stores[0].exchange([], receives, STREAM[0], KnownExchange())  # ends at once


@pytest.mark.serial
def test_exchanges_have_their_turn_among_the_launches_of_other_streams(module):
    ranks, lengths = Ranks(module, 2), np.array([[-1, 8], [8, -1]])

    def program(rank):
        main, side = Stream(5), Stream(6)
        for call, stream in enumerate((main, side, side, main)):
            ranks.exchange(rank, lengths, call, stream)
        assert main.calls == ["wait", "record", "wait"] and side.calls == ["wait", "record"]

    ranks.run(program)


def test_exchanges_between_processes(comm, module, sums):
    """Rings with longer messages to the right than to the left, each of four lengths ten times."""
    if comm.size == 1:
        pytest.skip("a single rank has no neighbours")
    known = defaultdict(KnownExchange)
    for turn, length in enumerate([1, 600, 3, 5000] * 10):
        lengths = {1: length, -1: length // 2}
        if comm.size == 2:
            lengths = {1: length}  # both neighbours are the same rank
        source = [POOL[turn + comm.rank :][:count].copy() for count in lengths.values()]
        target = [np.zeros(count, np.uint8) for count in lengths.values()]
        sends = [((comm.rank + way) % comm.size, x.ctypes.data, x.size) for way, x in zip(lengths, source, strict=True)]
        receives = [
            ((comm.rank - way) % comm.size, x.ctypes.data, x.size) for way, x in zip(lengths, target, strict=True)
        ]
        assert not any(sums[0].exchange(sends, receives, STREAM[0], known[length]))
        for way, x in zip(lengths, target, strict=True):
            np.testing.assert_array_equal(x, POOL[turn + (comm.rank - way) % comm.size :][: x.size])
        added(sums[0], comm, "float64", 3, turn)


def test_where_there_are_none(module, monkeypatch):
    """On several hosts, with too many ranks, and on AMD's GPUs."""
    control = SimpleNamespace(size=2, rank=0)
    assert module.connected(control, (0, 1))[0] is None
    control.size = 9
    assert module.connected(control, (0,) * 9)[0] is None
    control.size = 2
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "is_hip", True)
    assert module.connected(control, (0, 0))[0] is None


@pytest.mark.serial
@pytest.mark.parametrize(("failing", "kept"), [("malloc", 0), ("map", 1), ("", 1)])
def test_memory_is_kept_only_where_other_ranks_may_have_mapped_it(module, monkeypatch, failing, kept):
    """Rank 0 of two; rank 1 has no memory left, or cannot map that of rank 0."""

    def allgather(mine):
        if isinstance(mine, tuple):
            return [mine, ("", "out of memory") if failing == "malloc" else ("02", "")]
        return [mine, "cannot map" if failing == "map" else ""]

    memory = SimpleNamespace(ptr=4096, size=1 << 21)
    runtime = SimpleNamespace(
        CUDARuntimeError=OSError,
        memsetAsync=lambda *_: None,
        ipcGetMemHandle=lambda address: b"\x01",
        ipcOpenMemHandle=lambda handle: 4096 + handle[0],
    )
    monkeypatch.setattr(module, "_retained", [])
    monkeypatch.setattr(module.cupy.cuda, "runtime", runtime)
    monkeypatch.setattr(module.cupy.cuda, "Memory", lambda nbytes: memory, raising=False)
    monkeypatch.setattr(module.cupy.cuda, "Stream", lambda non_blocking: FillingStream(), raising=False)
    addresses, problem = module.map_memory(SimpleNamespace(rank=0, allgather=allgather), 1)
    assert module._retained == [memory] * kept
    assert problem == {"malloc": "rank 1: out of memory", "map": "rank 1: cannot map", "": ""}[failing]
    assert failing or addresses == [4096, 4098]


class FillingStream:
    """A stream that only fills memory with zeros."""

    ptr = 0

    def __enter__(self):
        return self

    def __exit__(self, *error): ...

    def synchronize(self): ...
