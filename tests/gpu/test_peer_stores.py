"""Short calls between GPUs of one host by stores into each other's memory, against NumPy, in all bits."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

import collops
import collops.array as ca
from collops import profile
from tests.launch import run_ranks

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
peer_stores = pytest.importorskip("collops.comm.peer_stores", reason="needs CuPy")

LIMIT = peer_stores.LIMIT
ENDED = """
import sys, cupy, collops
comm = collops.world("nccl")
x = cupy.ones(1000, "float32")
comm.allreduce(x, out=x)
cupy.cuda.Device().synchronize()
if comm.rank == 1:
    sys.exit(0)
comm.allreduce(x, out=x)
try:
    comm.wait(cupy.cuda.get_current_stream().record(), "the sum")
except collops.errors.CommunicationError as error:
    print("ERROR", str(error).splitlines()[0], flush=True)
cupy.cuda.Device().synchronize()
print("IDLE", flush=True)
"""


@pytest.fixture
def nccl(comm):
    """A communicator whose short calls go by stores into peers' memory."""
    if comm.size == 1 or comm.device_transport is None:
        pytest.skip("needs a GPU on each of several ranks")
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


@pytest.mark.serial
def test_the_end_of_a_rank_frees_the_device_of_another():
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    done = run_ranks(2, ENDED, {"COLLOPS_TIMEOUT": "20"})
    assert "ERROR" in done.stdout and "IDLE" in done.stdout, done
