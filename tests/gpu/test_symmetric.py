"""Symmetric memory of devices: what tests/comm/test_symmetric.py asks, and views that kernels use."""

from __future__ import annotations

import os

import numpy as np
import pytest

from collops.comm import missing_for_nccl, missing_for_nvshmem, symmetric_nccl
from collops.comm.symmetric_nccl import NcclWindow
from collops.errors import InputError, TransportError, UnsupportedTypeError
from tests.comm import one_sided

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(autouse=True)
def _nvshmem(device, comm, request):
    if comm.size > 1:
        pytest.importorskip("nvshmem", reason="nvshmem4py is not installed")
    if len(set(comm.nodes)) > 1 and request.function is not test_refused_where_hosts_cannot_reach_each_other:
        pytest.skip("NVSHMEM between hosts needs adapters")


def test_refused_where_hosts_cannot_reach_each_other(comm):
    if len(set(comm.nodes)) == 1 or os.path.isdir("/sys/class/infiniband"):
        pytest.skip("needs several hosts without InfiniBand: -p tests.gpu.pretended_hosts")
    with pytest.raises(TransportError, match="NVSHMEM reaches other hosts by InfiniBand"):
        comm.symmetric(4, engine="cupy")


def test_peers_see_each_other(comm):
    one_sided.check_peers(comm, "cupy")


@pytest.mark.parametrize("dtype", ["int8", "float32", "complex128"])
def test_put_and_get(comm, dtype):
    one_sided.check_put_and_get(comm, "cupy", dtype)


def test_signals_come_after_values(comm):
    one_sided.check_signals(comm, "cupy", rounds=50)


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_atomic_additions(comm, dtype):
    if comm.size > 1 and (reason := missing_for_nvshmem()):
        pytest.skip(f"linking with NVSHMEM {reason}")
    one_sided.check_atomics(comm, "cupy", dtype)


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_compare_and_swap(comm, dtype):
    if comm.size > 1 and (reason := missing_for_nvshmem()):
        pytest.skip(f"linking with NVSHMEM {reason}")
    one_sided.check_compare_and_swap(comm, "cupy", dtype)


@pytest.fixture
def part(comm):
    """The ranks in another order, which NVSHMEM was not started for: their memory is in windows of NCCL."""
    if comm.device_transport != "nccl" or comm.size == 1:
        pytest.skip("needs several ranks with NCCL")
    if reason := missing_for_nccl():
        pytest.skip(f"compiling with NCCL {reason}")
    comm.symmetric(1, engine="cupy").free()
    return comm.split(0, -comm.rank)


def test_memory_of_a_subcommunicator(part):
    with part.symmetric(1, engine="cupy") as memory:
        assert isinstance(memory, NcclWindow)
        with pytest.raises(UnsupportedTypeError, match="not in a window of NCCL"):
            memory.team(part)
    one_sided.check_peers(part, "cupy")
    one_sided.check_put_and_get(part, "cupy", "float32")
    one_sided.check_signals(part, "cupy", rounds=50)
    one_sided.check_empty(part, "cupy")
    for dtype in ("int32", "uint64"):
        one_sided.check_atomics(part, "cupy", dtype)
        one_sided.check_compare_and_swap(part, "cupy", dtype)


@pytest.mark.parametrize("size", [2, 1000, 3 << 20])
def test_collectives_on_registered_memory(part, size):
    """Random values, by NumPy in float64; again from a recorded graph, whose values have changed since."""
    ranks, count = part.size, size // part.size * part.size
    stream = cupy.cuda.Stream(non_blocking=True)
    with (
        part.symmetric(count, "float32", engine="cupy", registered=True) as given,
        part.symmetric((ranks, count), "float32", engine="cupy", registered=True, signals=3) as got,
    ):
        rows = got.local.reshape(ranks, ranks, -1)

        def calls():
            part.allreduce(given.local, out=got.local[0])
            summed = got.local[0].copy()
            part.allgather(given.local, out=got.local)
            gathered = got.local.copy()
            part.alltoall(given.local.reshape(ranks, -1), out=rows[0])
            turned = rows[0].copy()
            part.reduce_scatter(given.local.reshape(ranks, -1), out=rows[0, 0])
            return summed, gathered, turned, rows[0, 0].copy()

        def check_results(results, values):
            summed, gathered, turned, scattered = map(cupy.asnumpy, results)
            blocks = values.reshape(ranks, ranks, -1)
            np.testing.assert_allclose(summed, values.sum(0), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(gathered, values.astype("float32"))
            np.testing.assert_array_equal(turned, blocks[:, part.rank].astype("float32"))
            np.testing.assert_allclose(scattered, blocks.sum(0)[part.rank], rtol=1e-5, atol=1e-5)

        first, second = np.random.default_rng(1).standard_normal((2, ranks, count))
        given.local[...] = cupy.asarray(first[part.rank], "float32")
        check_results(calls(), first)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            results = calls()
            graph = stream.end_capture()
        given.local[...] = cupy.asarray(second[part.rank], "float32")
        graph.launch()
        check_results(results, second)
        got.barrier()


def test_what_lacks_windows_is_named(part, monkeypatch):
    monkeypatch.setattr(symmetric_nccl, "missing_for_windows", lambda: "needs NCCL 2.27 or newer, not 2.26.2")
    with pytest.raises(TransportError, match="windows of NCCL needs NCCL 2"):
        part.symmetric(4, engine="cupy", registered=True)


def test_a_kernel_of_the_user_calls_nccl(part):
    with part.symmetric(64, "float32", engine="cupy", registered=True) as memory:
        after, before = (part.rank + 1) % part.size, (part.rank - 1) % part.size
        memory.module(RING_OF_NCCL).get_function("ring")(
            (1,), (64,), (np.uint64(memory.window), np.int32(after), np.float32(part.rank + 1))
        )
        memory.barrier()
        assert (memory.local.get() == before + 1).all()
        with pytest.raises(InputError, match="undefined"):
            memory.module("__device__ int f() { return undefined_name; }")


RING_OF_NCCL = """
extern "C" __global__ void ring(ncclWindow_t window, int after, float value) {
    static_cast<float*>(ncclGetPeerPointer(window, 0, after))[threadIdx.x] = value;
}
"""


def test_a_kernel_of_the_user_calls_nvshmem(comm):
    """Each rank puts its number by threads, by a warp and by a block, and waits for its neighbour's signal."""
    if comm.size == 1:
        pytest.skip("needs several ranks")
    if reason := missing_for_nvshmem():
        pytest.skip(f"linking with NVSHMEM {reason}")
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.symmetric((5, 64), "float32", engine="cupy", signals=1) as memory:
        signals = comm.symmetric(1, "uint64", engine="cupy")
        ring = memory.module(RING).get_function("ring")
        memory.local[4] = comm.rank + 1
        ring((1,), (64,), (memory.local, signals.local, np.int32(after)))
        got, mine = memory.local.get(), cupy.asnumpy(signals.local)
        assert (got[:3] == before + 1).all()
        assert (got[3] == [comm.rank, comm.size] * 32).all()
        assert mine == 7
        memory.barrier()
        signals.free()
        with pytest.raises(InputError, match="undefined"):
            memory.module("__device__ int f() { return undefined_name; }")


RING = """
#include <nvshmem.h>
#include <nvshmemx.h>
extern "C" __global__ void ring(float* memory, uint64_t* signal, int after) {
    float* const mine = memory + 4 * 64;
    nvshmem_float_p(memory + threadIdx.x, mine[threadIdx.x], after);
    if (threadIdx.x < 32) nvshmemx_float_put_warp(memory + 64, mine, 64, after);
    __syncthreads();
    if (threadIdx.x == 0) nvshmem_quiet();
    nvshmemx_float_put_signal_nbi_block(memory + 2 * 64, mine, 64, signal, 7, NVSHMEM_SIGNAL_SET, after);
    if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_EQ, 7);
    __syncthreads();
    memory[3 * 64 + threadIdx.x] = threadIdx.x % 2 ? nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) : nvshmem_my_pe();
}
"""


def test_teams(comm):
    """Ranks, translations, a message between synchronised blocks and sums, by NumPy on the same integers."""
    needs_teams(comm)
    values = np.random.default_rng(1).integers(-99, 99, (comm.size, 1000)).astype("float32")
    with comm.symmetric((3, 1000), "float32", engine="cupy") as memory:
        module = memory.module(one_sided.documented_kernels() + NUMBERS_OF_A_TEAM)
        exchange, numbers = module.get_function("exchange"), module.get_function("numbers")
        members_of: dict = {}
        for part in (
            comm.split(0, -comm.rank),  # reversed
            comm.split(comm.rank),  # single ranks
            comm.split(0),
            comm.split(comm.rank % 2, -comm.rank),
            comm.split(None if comm.rank == comm.size - 1 else 0, -comm.rank),
        ):
            team = memory.team(part)
            assert memory.team(part) == team
            members = [] if part is None else part.allgather(np.array([comm.rank])).ravel().tolist()
            found = cupy.zeros(2 + 2 * comm.size, "int32")
            numbers((1,), (1,), (np.int32(team), found))
            assert found[:2].get().tolist() == ([-1, -1] if part is None else [part.rank, part.size])
            assert found[2 : 2 + len(members)].get().tolist() == members
            assert found[2 + comm.size : 2 + 2 * comm.size].get().tolist() == [
                members.index(rank) if rank in members else -1 for rank in range(comm.size)
            ]
            assert (team == -1) == (part is None)
            assert members_of.setdefault(team, members) == members
            for _ in range(3):
                memory.local[0] = cupy.asarray(values[comm.rank])
                memory.local[1:] = 0
                memory.barrier()
                if part is not None:
                    exchange((1,), (256,), (np.int32(team), memory.local))
                    got = memory.local.get()
                    np.testing.assert_array_equal(got[1], values[members[part.rank - 1]])
                    np.testing.assert_array_equal(got[2], values[members].sum(0))
        memory.barrier()


def test_teams_are_freed_with_the_memory(comm):
    """NVSHMEM has fewer teams than are made here."""
    needs_teams(comm)
    parts = comm.split(0, -comm.rank), comm.split(comm.rank)
    for _ in range(40):
        with comm.symmetric(1, "float32", engine="cupy") as memory:
            for part in parts:
                memory.team(part)


def test_what_is_no_team(comm):
    needs_teams(comm)
    whole, alone = comm.split(0, -comm.rank), comm.split(comm.rank)
    with comm.symmetric(1, "float32", engine="cupy") as memory:
        with pytest.raises(InputError, match="not of 3"):
            memory.team(3)
        with pytest.raises(InputError, match="pass the same part"):
            memory.team(alone if comm.rank else whole)
        assert memory.team(None) == -1
    with pytest.raises(InputError, match="freed"):
        memory.team(whole)


def needs_teams(comm):
    if comm.size == 1:
        pytest.skip("needs several ranks")
    devices = comm.allgather_metadata(cupy.cuda.Device().pci_bus_id)
    if len(set(devices)) < comm.size and "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in os.environ:
        pytest.skip("NVSHMEM makes teams of ranks that share a GPU only under CUDA's Multi-Process Service")
    if reason := missing_for_nvshmem():
        pytest.skip(f"linking with NVSHMEM {reason}")


NUMBERS_OF_A_TEAM = """
extern "C" __global__ void numbers(nvshmem_team_t team, int* found) {
    const int size = nvshmem_team_n_pes(team), all = nvshmem_n_pes();
    found[0] = nvshmem_team_my_pe(team);
    found[1] = size;
    for (int i = 0; i < size; ++i) found[2 + i] = nvshmem_team_translate_pe(team, i, NVSHMEM_TEAM_WORLD);
    for (int i = 0; i < all; ++i) found[2 + all + i] = nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, i, team);
}
"""


def test_empty_and_strided(comm):
    one_sided.check_empty(comm, "cupy")


def test_a_kernel_writes_to_the_neighbour(comm):
    kernel = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "twice")
    with comm.symmetric(1000, "float32", engine="cupy") as memory:
        memory.local.fill(comm.rank)
        memory.barrier()
        target = memory.peer((comm.rank + 1) % comm.size)
        kernel(cupy.full(1000, comm.rank + 1, cupy.float32), target)
        memory.barrier()
        before = (comm.rank - 1) % comm.size
        assert (memory.local.get() == 2 * (before + 1)).all()
        memory.barrier()


def test_memory_that_no_machine_has(comm):
    with pytest.raises(InputError, match="more than this machine has"):
        comm.symmetric(1 << 45, "int8", engine="cupy")


def test_many_in_a_row(comm):
    """The barrier at the end of one allocation is still on the stream when the next one begins."""
    for _ in range(40):
        kept = [comm.symmetric(1 << 24, "float32", engine="cupy", signals=2) for _ in range(3)]
        for memory in kept:
            memory.local.fill(1)
            memory.barrier()
        for memory in kept:
            memory.free()
