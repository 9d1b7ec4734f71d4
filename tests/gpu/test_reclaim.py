"""Device memory and communicators that nothing refers to any more are freed, by all ranks together."""

from __future__ import annotations

import gc

import pytest

import collops
from collops.comm import from_mpi4py, missing_for_nccl, reclaim
from collops.comm.symmetric_nccl import NcclWindow

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

STEPS = 40
SIZE = 32 << 20  # bytes: a leak of all steps would be seen among the other allocations


@pytest.fixture(autouse=True)
def nothing_left(comm):
    """Begin with what can be freed freed, on all ranks."""
    if comm.device_transport != "nccl" or comm.size == 1:
        pytest.skip("needs several ranks with NCCL")
    for _ in range(2):
        gc.collect()
        comm.split(0)


def used():
    free, total = cupy.cuda.runtime.memGetInfo()
    return total - free


def value_from_the_next(comm, memory, step):
    memory.local.fill(comm.rank + step)
    memory.barrier()
    got = memory.get((comm.rank + 1) % comm.size, out=cupy.empty(memory.shape, memory.dtype))
    memory.barrier()
    return int(got[-1])


@pytest.mark.parametrize("registered", [False, True])
def test_symmetric_memory_that_is_dropped_is_freed(comm, registered):
    if registered:
        if reason := missing_for_nccl():
            pytest.skip(f"compiling with NCCL {reason}")
    else:
        pytest.importorskip("nvshmem", reason="nvshmem4py is not installed")
    gc.disable()
    try:
        count, begin, views = reclaim.in_use(), 0, []
        for step in range(STEPS):
            memory = comm.symmetric(SIZE // 8, "int64", engine="cupy", registered=registered)
            assert isinstance(memory, NcclWindow) == registered
            assert value_from_the_next(comm, memory, step) == (comm.rank + 1) % comm.size + step
            if step == 3:
                views.append(memory.local[:2])  # keeps this one
            del memory
            begin = used() if step == 5 else begin
        assert reclaim.in_use() < count + 5
        assert used() - begin < 4 * SIZE
        assert views[0].get().tolist() == [comm.rank + 3] * 2
    finally:
        gc.enable()


def test_forests_of_device_arrays_use_up_nothing(comm):
    before = most = reclaim.in_use()
    for step in range(60):
        forest = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
        got = forest.bcast(cupy.full(1, comm.rank + step, "float64"))
        assert int(got[0]) == (comm.rank + 1) % comm.size + step
        del forest
        most = max(most, reclaim.in_use())
    assert most < before + reclaim._MIN_COLLECTED + 10


def test_communicators_of_freed_duplicates_are_freed(comm):
    MPI = pytest.importorskip("mpi4py.MPI")
    begin = most = 0
    for step in range(30):
        duplicate = MPI.COMM_WORLD.Dup()
        made = from_mpi4py(duplicate)
        assert int(made.allreduce(cupy.full(3, step))[0]) == step * comm.size
        assert int(made.allreduce(cupy.full(1 << 20, step))[-1]) == step * comm.size
        duplicate.Free()
        del made
        gc.collect()
        most = max(most, reclaim.in_use())
        begin = used() if step == 10 else begin
    assert most < 40
    assert used() - begin < SIZE
    assert int(comm.allreduce(cupy.full(3, 2))[0]) == 2 * comm.size
