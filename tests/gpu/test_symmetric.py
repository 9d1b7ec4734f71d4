"""Symmetric memory of devices: what tests/comm/test_symmetric.py asks, and views that kernels use."""

from __future__ import annotations

import os

import numpy as np
import pytest

from collops.comm import missing_for_nvshmem
from collops.errors import InputError, TransportError
from tests.comm import one_sided

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture(autouse=True)
def _device(comm, request):
    if comm.device_transport is None:
        pytest.skip("no device on every rank")
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
