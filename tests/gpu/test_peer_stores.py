"""Short calls and exchanges between GPUs of one host by stores into each other's memory, against NumPy, in all bits."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

import collops
import collops.array as ca
from collops import profile
from collops.array import Layout
from collops.operators import Laplacian
from tests.launch import run_ranks

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
peer_stores = pytest.importorskip("collops.comm.peer_stores", reason="needs CuPy")

LIMIT, MESSAGE_LIMIT = peer_stores.LIMIT, peer_stores.MESSAGE_LIMIT
ENDED = """
import sys, cupy, collops
comm = collops.world("nccl")
x, y = cupy.ones(1000, "float32"), cupy.ones(1000, "float32")
other, box = 1 - comm.rank, (slice(0, 1000),)
plan = collops.ExchangePlan(comm, [(other, box)], [(other, box)])
call = (lambda: comm.allreduce(x, out=x)) if "{call}" == "sum" else (lambda: plan(x, y))
call()
cupy.cuda.Device().synchronize()
if comm.rank == 1:
    sys.exit(0)
call()
try:
    comm.wait(cupy.cuda.get_current_stream().record(), "the {call}")
except collops.errors.CommunicationError as error:
    print("ERROR", str(error).splitlines()[0], flush=True)
cupy.cuda.Device().synchronize()
print("IDLE", flush=True)
"""


@pytest.fixture
def nccl(device, comm):
    """A communicator whose short calls go by stores into peers' memory."""
    if comm.size == 1:
        pytest.skip("needs several ranks")
    found = collops.world("nccl")
    if found.transport_of(cupy.empty(1)).short is None:
        pytest.skip(found.reasons[-1])
    return found


def drawn(rank, dtype, size, seed=0):
    """Values with rounding errors, different on every rank."""
    numbers = np.random.default_rng([rank, size, seed]).standard_normal((2, size)) * 1e3
    return (numbers[0] + 1j * numbers[1] if dtype.startswith("c") else abs(numbers[0])).astype(dtype)


def check_same_bits(comm, result):
    digests = comm.allgather_metadata(hashlib.sha256(result.get().tobytes()).hexdigest())
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    "dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128"]
)
@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 3000, "longest", "longer"])
def test_sums(nccl, dtype, size):
    width = np.dtype(dtype).itemsize
    size = {"longest": LIMIT // width, "longer": LIMIT // width + 1}.get(size, size)
    for seed in range(4):
        parts = [drawn(rank, dtype, size, seed) for rank in range(nccl.size)]
        x = cupy.asarray(parts[nccl.rank])
        total = nccl.allreduce(x, out=x if seed % 2 else None)
        check_same_bits(nccl, total)
        if size * width <= LIMIT:
            expected = parts[0]
            for part in parts[1:]:
                expected = expected + part
            assert total.get().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("width", [1, 4, 7, 1000, 5000])
def test_alltoall(nccl, dtype, width):
    parts = [drawn(rank, dtype, width * nccl.size).reshape(nccl.size, width) for rank in range(nccl.size)]
    x = cupy.asarray(parts[nccl.rank])
    for out in (None, x):
        result = nccl.alltoall(x, out=out)
        np.testing.assert_array_equal(result.get(), [part[nccl.rank] for part in parts])


def test_replayed_graphs(nccl):
    """Two sums and an all-to-all a replay, a thousand times, and launches in between."""
    stream = cupy.cuda.Stream(non_blocking=True)
    size = nccl.size
    with stream:
        vector, numbers, total = cupy.ones(3000, "float32"), cupy.full(3, nccl.rank + 1.0), cupy.zeros(3)
        blocks, arrived = cupy.full((size, 5), float(nccl.rank)), cupy.zeros((size, 5))

        def step():
            nccl.allreduce(vector, out=vector)
            cupy.multiply(vector, np.float32(1 / size), out=vector)
            nccl.allreduce(numbers, out=total)
            nccl.alltoall(blocks, out=arrived)

        step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        for turn in range(1000):
            graph.launch(stream)
            if turn % 100 == 0:
                step()
    stream.synchronize()
    np.testing.assert_allclose(vector.get(), 1, rtol=1e-3)
    assert float(total[2]) == size * (size + 1) / 2
    np.testing.assert_array_equal(arrived.get(), np.repeat(np.arange(size), 5).reshape(size, 5))


def test_streams_take_turns(nccl):
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    arrays = [cupy.full(700, float(nccl.rank + number)) for number in range(3)]
    cupy.cuda.Device().synchronize()
    results = []
    for _ in range(100):
        for stream, array in zip(streams, arrays, strict=True):
            with stream:
                results.append(nccl.allreduce(array))
    cupy.cuda.Device().synchronize()
    for number, result in enumerate(results):
        expected = sum(range(nccl.size)) + nccl.size * (number % 3)
        assert float(result.min()) == float(result.max()) == expected


def test_a_fork_inside_a_graph(nccl):
    """Streams that join a capture are ordered inside it."""
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with first:
        x, y = cupy.ones(500), cupy.ones(500)
        nccl.allreduce(x, out=x)
        x.fill(1)
        first.begin_capture()
        second.wait_event(first.record())
        for _ in range(3):
            nccl.allreduce(x, out=x)
            with second:
                nccl.allreduce(y, out=y)
        first.wait_event(second.record())
        graph = first.end_capture()
        graph.launch(first)
    first.synchronize()
    assert float(x.min()) == float(x.max()) == float(y.min()) == float(y.max()) == nccl.size**3


def test_a_late_rank_is_waited_for(nccl):
    x = cupy.full(100, nccl.rank + 1.0)
    nccl.barrier()
    if nccl.rank == nccl.size - 1:
        time.sleep(1)
    assert float(nccl.allreduce(x)[0]) == nccl.size * (nccl.size + 1) / 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("size", [1, 37, 40_001])
def test_inner_products_are_one_launch(nccl, dtype, size):
    layout = ca.Layout.split((size,), nccl.size)
    begin, count = layout.offset(nccl.rank)[0], layout.local_shape(nccl.rank)[0]
    a, b = ((drawn(9, dtype, size, seed) / 1000).astype(dtype) for seed in range(2))
    x, y = (ca.DistributedArray(layout, nccl, cupy.asarray(v[begin : begin + count])) for v in (a, b))
    a, b = (v.astype("complex128" if dtype.startswith("c") else "float64") for v in (a, b))
    scale = np.linalg.norm(a) * np.linalg.norm(b) + np.linalg.norm(a) ** 2
    tolerance = (1e-13 if dtype in ("float64", "complex128") else 1e-6) * scale
    with profile.count_messages() as messages:
        results = [x.dot(y), x.vdot(x), *ca.dots((x, y), (x, x))]
    assert (messages["allreduce"], messages.total) == (3, 3)
    for result, expected in zip(results, [(a * b).sum(), np.vdot(a, a), np.vdot(a, b), np.vdot(a, a)], strict=True):
        check_same_bits(nccl, result)
        assert abs(complex(result.get()) - expected) <= tolerance


@pytest.fixture
def left(nccl, monkeypatch):
    """Whether NCCL had to send anything, for each exchange."""
    found, exchange = [], nccl.transport_of(cupy.empty(1)).short.exchange

    def watched(*arguments):
        rest = exchange(*arguments)
        found.append(any(rest))
        return rest

    monkeypatch.setattr(nccl.transport_of(cupy.empty(1)).short, "exchange", watched)
    return found


class Line:
    """Each rank sends the last rows of its array to the next rank, and the first half as many to the one before."""

    def __init__(self, comm, rows, axis=0):
        self.rank, self.size, self.axis = comm.rank, comm.size, axis
        self.up, self.down = (rows + 1) // 2, rows
        n, both = rows, slice(0, 3)
        boxes = [slice(n, 2 * n), slice(0, self.up), slice(0, n), slice(n, n + self.up)]  # sent and received
        last, first, before, after = ((b, both) if axis == 0 else (both, b) for b in boxes)
        neighbours = [rank for rank in (comm.rank + 1, comm.rank - 1) if 0 <= rank < comm.size]
        self.plan = collops.ExchangePlan(
            comm,
            [(rank, last if rank > comm.rank else first) for rank in neighbours],
            [(rank, after if rank > comm.rank else before) for rank in neighbours],
        )
        self.shape = (2 * n, 3) if axis == 0 else (3, 2 * n)

    def source(self, rank, dtype, seed=0):
        return drawn(rank, dtype, 6 * self.down, seed).reshape(self.shape)

    def expected(self, dtype, seed=0):
        """What :attr:`plan` makes of a target of zeros."""
        n, target = self.down, np.zeros(self.shape, dtype).swapaxes(0, self.axis)
        if self.rank > 0:
            target[:n] = self.source(self.rank - 1, dtype, seed).swapaxes(0, self.axis)[n:]
        if self.rank < self.size - 1:
            target[n : n + self.up] = self.source(self.rank + 1, dtype, seed).swapaxes(0, self.axis)[: self.up]
        return target.swapaxes(0, self.axis)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("rows", [1, 5, 171, 1000, "longest", "longer"])
@pytest.mark.parametrize("axis", [0, 1])
def test_exchanges(nccl, left, dtype, rows, axis):
    """Contiguous boxes and strided ones, which are packed, of different lengths and alignments both ways."""
    most = MESSAGE_LIMIT // (3 * np.dtype(dtype).itemsize)
    line = Line(nccl, {"longest": most, "longer": most + 1}.get(rows, rows), axis)
    for seed in range(3):
        source = cupy.asarray(line.source(nccl.rank, dtype, seed))
        for aside in (False, True):
            target = cupy.zeros(line.shape, dtype)
            line.plan.start(source, target, on_side_stream=aside).finish()
            np.testing.assert_array_equal(target.get(), line.expected(dtype, seed))
            line.plan(source, target, op="sum")
            np.testing.assert_array_equal(target.get(), 2 * line.expected(dtype, seed))
    assert set(left) == {line.down > most}


def test_short_and_long_messages_of_one_exchange(nccl, left):
    """The last rank has long messages with all others, which have short ones with each other."""
    n, last = 1000, nccl.size - 1

    def length(rank, other):
        return 100 * n if last in (rank, other) else n + 10 * rank + other

    others = [rank for rank in range(nccl.size) if rank != nccl.rank]
    sends = [(rank, (slice(0, length(nccl.rank, rank)),)) for rank in others]
    receives = [(rank, (slice(rank, rank + 1), slice(0, length(rank, nccl.rank)))) for rank in others]
    source = cupy.asarray(drawn(nccl.rank, "float32", 100 * n))
    target = cupy.zeros((nccl.size, 100 * n), "float32")
    plan = collops.ExchangePlan(nccl, [(rank, (slice(0, 1), *box)) for rank, box in sends], receives)
    for _ in range(3):
        plan(source[None], target)
    for rank in others:
        count = length(rank, nccl.rank)
        np.testing.assert_array_equal(target[rank, :count].get(), drawn(rank, "float32", 100 * n)[:count])
        assert not target[rank, count:].any()
    assert set(left) == {True}


@pytest.mark.parametrize("aside", [False, True])
def test_replayed_exchanges(nccl, left, aside):
    """Exchanges, and sums while they are under way, a thousand times, and launches in between."""
    line = Line(nccl, 700)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        source, target = cupy.full(line.shape, nccl.rank, "int32"), cupy.zeros(line.shape, "int32")
        seen, number, total, sums = cupy.zeros(line.shape, "int64"), cupy.full(1, nccl.rank), *cupy.zeros((2, 1), int)

        def step():
            started = line.plan.start(source, target, on_side_stream=aside)
            nccl.allreduce(number, out=total)
            started.finish()
            cupy.add(seen, target, out=seen)
            cupy.add(source, 10, out=source)
            cupy.add(number, 1, out=number)
            cupy.add(sums, total, out=sums)

        step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        steps = 1
        for turn in range(1000):
            graph.launch(stream)
            steps += 1
            if turn % 100 == 0:
                step()
                steps += 1
    stream.synchronize()
    wanted, n, earlier = np.zeros(line.shape, "int64"), line.down, steps * (steps - 1) // 2
    if nccl.rank > 0:
        wanted[:n] = 10 * earlier + (nccl.rank - 1) * steps
    if nccl.rank < nccl.size - 1:
        wanted[n : n + line.up] = 10 * earlier + (nccl.rank + 1) * steps
    np.testing.assert_array_equal(seen.get(), wanted)
    assert int(sums[0]) == nccl.size * earlier + steps * sum(range(nccl.size))
    assert set(left) == {False}


def test_exchanges_on_streams_that_take_turns(nccl, left):
    line = Line(nccl, 300)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    sources = [cupy.asarray(line.source(nccl.rank, "float64", seed)) for seed in range(3)]
    targets = [cupy.zeros(line.shape) for _ in range(3)]
    cupy.cuda.Device().synchronize()
    for turn in range(100):
        if turn == 50 and nccl.rank == 0:
            time.sleep(0.5)
        for number, stream in enumerate(streams):
            with stream:
                line.plan.start(sources[number], targets[number], on_side_stream=(turn + number) % 2 == 0).finish()
    cupy.cuda.Device().synchronize()
    for seed, target in enumerate(targets):
        np.testing.assert_array_equal(target.get(), line.expected("float64", seed))
    assert set(left) == {False}


def test_halos_of_a_laplacian(nccl, left):
    """Against NumPy, from CuPy's default stream and in the graph of a solver."""
    layout = Layout.split((40 * nccl.size + 1, 33), nccl.size)
    op = Laplacian(layout, comm=nccl, dtype="float64")
    values = drawn(0, "float64", 33 * (40 * nccl.size + 1)).reshape(-1, 33)
    x = collops.from_global(values, layout, comm=nccl, engine="cupy")
    wanted = np.zeros_like(values)
    wanted[1:-1] += values[:-2] - 2 * values[1:-1] + values[2:]
    wanted[:, 1:-1] += values[:, :-2] - 2 * values[:, 1:-1] + values[:, 2:]
    for _ in range(3):
        np.testing.assert_allclose(op.forward(x).gather().get(), wanted, rtol=1e-12, atol=1e-9)
    assert left and not any(left)


def test_star_forests(nccl, left):
    """The next rank's roots in reverse, and sums of leaves."""
    following = (nccl.rank + 1) % nccl.size
    forest = collops.StarForest(nccl, 99, None, [following] * 99, np.arange(99)[::-1], transport="nccl")
    for turn in range(10):
        leaves = forest.bcast(cupy.arange(99, dtype="float32") * turn + nccl.rank)
        np.testing.assert_array_equal(leaves.get(), np.arange(99)[::-1] * turn + following)
        sums = forest.reduce(leaves, cupy.zeros(99, "float32"))
        np.testing.assert_array_equal(sums.get(), np.arange(99) * turn + nccl.rank)
    forest.free()
    assert left and not any(left)


def test_messages_of_users_go_by_nccl(nccl, left):
    """Their two ends need not be one call on each rank."""
    x, y = cupy.full(9, float(nccl.rank)), cupy.zeros(9)
    before, following = ((nccl.rank + step) % nccl.size for step in (-1, 1))
    nccl.sendrecv(x, dest=following, out=y, source=before)
    assert float(y.min()) == float(y.max()) == before
    assert not left


@pytest.mark.serial
@pytest.mark.parametrize("call", ["sum", "exchange"])
def test_the_end_of_a_rank_frees_the_device_of_another(call):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    done = run_ranks(2, ENDED.replace("{call}", call), {"COLLOPS_TIMEOUT": "20"})
    assert "ERROR" in done.stdout and "IDLE" in done.stdout, done
