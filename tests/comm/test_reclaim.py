"""Windows and communicators that nothing refers to any more are freed, by all ranks together and not before."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import collops
from collops.comm import from_mpi4py, parts, reclaim, symmetric
from collops.errors import LayoutError
from collops.exchange.transports.mpi import MpiExchange
from collops.exchange.transports.shared import SharedExchange
from tests.launch import run_ranks

STEPS = 2100  # more than MPICH has communicators
MIN_COLLECTED = reclaim._MIN_COLLECTED if collops.world().size < 3 else 16  # ranks without a core each are slow
SLACK = 3 * MIN_COLLECTED  # resources that may wait for a garbage collection


@pytest.fixture(autouse=True)
def nothing_left(comm, monkeypatch):
    """Begin with what can be freed freed, on all ranks."""
    monkeypatch.setattr(reclaim, "_MIN_COLLECTED", MIN_COLLECTED)
    monkeypatch.setattr(reclaim, "_collect_at", MIN_COLLECTED)
    for _ in range(2):  # memory, and then the communicators that it referred to
        gc.collect()
        comm.split(0)


def mappings():
    return len(Path("/proc/self/maps").read_text().splitlines())


def ring(comm, shift=1, transport="auto"):
    return collops.StarForest(comm, 1, None, [(comm.rank + shift) % comm.size], [0], transport=transport)


def moved(comm, forest, value):
    return float(forest.bcast(np.array([value + comm.rank]))[0])


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_forests_that_are_dropped_use_up_nothing(comm, transport):
    """Some are kept, some refer to themselves, and each rank collects garbage at steps of its own."""
    if comm.size > 1 and comm.host_transport == "tcp" and transport == "mpi":
        pytest.skip("needs MPI")
    kept, most, before = {}, 0, None
    gc.disable()
    try:
        steps = STEPS // comm.size
        for step in range(steps):
            forest = ring(comm, step % comm.size, transport)
            assert moved(comm, forest, step) == step + (comm.rank + step) % comm.size
            if step % 100 == 3:
                kept[step] = forest
            elif step % 5 == 0:
                forest.itself = forest  # pyright: ignore[reportAttributeAccessIssue] - garbage for the collector alone
            if step % (40 + 17 * comm.rank) == 0:
                gc.collect(comm.rank % 3)
            if step % 250 == 7:
                with pytest.raises(LayoutError):
                    collops.StarForest(comm, 1, None, [comm.size], [0])
            if step == steps // 4:
                before = mappings()
            most = max(most, reclaim.in_use())
    finally:
        gc.enable()
    assert most < SLACK + len(kept) + 100
    assert before is not None and mappings() - before < 2 * (SLACK + len(kept))
    for step, forest in kept.items():
        assert moved(comm, forest, step) == step + (comm.rank + step) % comm.size


def test_matrices_of_a_time_stepping_loop_use_up_nothing(comm):
    n = 4 * comm.size + 3
    laplacian = sp.diags([1.0, -2.0, 1.0], [-1, 0, 1], shape=(n, n)).tocsr()  # pyright: ignore[reportArgumentType]
    u, expected = collops.from_global(np.ones(n)), np.ones(n)
    rows = u.layout.slices(comm.rank)[0]
    most = before = 0
    for step in range(300):
        scheme = (sp.identity(n) + 1e-3 * (1 + step / 300) * laplacian).tocsr()
        u, expected = collops.CSRMatrix(scheme[rows]) @ u, scheme @ expected
        most = max(most, reclaim.in_use())
        before = mappings() if step == 50 else before
    np.testing.assert_allclose(u.gather(), expected, rtol=1e-12)
    assert most < SLACK + 50 and mappings() - before < 2 * SLACK


def test_memory_lives_as_long_as_any_rank_can_reach_it(comm, one_host):
    memory = comm.symmetric(3, "int64", engine="numpy")
    memory.local[...] = 7 + comm.rank
    memory.barrier()
    view = memory.peer(0)[1:] if comm.rank == comm.size - 1 else None
    count = reclaim.in_use()
    del memory
    for _ in range(3):
        comm.symmetric(1, engine="numpy").free()
    assert reclaim.in_use() == count  # the last rank still has its view
    if view is not None:
        assert view.tolist() == [7, 7]
    comm.barrier()
    del view
    comm.symmetric(1, engine="numpy").free()
    assert reclaim.in_use() == count - (comm.size > 1)


def test_what_only_some_ranks_have_dropped_is_kept(comm, one_host):
    forest = ring(comm)
    moved(comm, forest, 0)
    count = reclaim.in_use()
    dropped = comm.symmetric(5, engine="numpy") if comm.rank % 2 else [comm.symmetric(5, engine="numpy")]
    if comm.rank % 2:
        del dropped
    comm.symmetric(1, engine="numpy").free()
    assert reclaim.in_use() == count + (comm.size > 1)
    dropped = None
    comm.split(0)
    assert reclaim.in_use() == count
    assert moved(comm, forest, 1) == 1 + (comm.rank + 1) % comm.size


def test_forests_and_matrices_need_no_garbage_collection(comm):
    gc.disable()
    try:
        forest = ring(comm)
        moved(comm, forest, 0)
        forest.start_bcast(np.ones(1)).finish()
        forest.gather(np.ones(1))
        exchanges = [weakref.ref(each) for each in forest._exchanges.values()]
        del forest
        matrix = collops.CSRMatrix(sp.eye_array(comm.size).tocsr()[comm.rank : comm.rank + 1])
        assert (matrix @ collops.ones(comm.size)).gather().tolist() == [1.0] * comm.size
        exchanges += [weakref.ref(each) for each in matrix.forest._exchanges.values()]
        del matrix
        assert [each() for each in exchanges] == [None] * len(exchanges)
    finally:
        gc.enable()


def test_freed_memory_is_not_freed_again(comm, one_host):
    count = reclaim.in_use()
    for _ in range(5):
        memory = comm.symmetric(4, engine="numpy")
        memory.free()
        memory.free()
        del memory
        comm.split(0)
    assert reclaim.in_use() == count


def test_notes_travel_in_the_messages_of_a_creation(comm, one_host):
    def messages_of_a_creation():
        with collops.profile.count_messages() as messages:
            memory = comm.symmetric(4, engine="numpy")
        memory.free()
        return [record.operation for record in messages.records]

    expected = messages_of_a_creation()
    kept = [comm.symmetric(4, engine="numpy") for _ in range(3)]
    count = reclaim.in_use()
    kept.clear()
    assert messages_of_a_creation() == expected
    assert reclaim.in_use() == count - 3 * (comm.size > 1)
    with collops.profile.count_messages() as messages:
        for _ in range(3):
            comm.allreduce(np.ones(3))
    assert messages["allreduce"] == len(messages.records) == 3


def test_automatic_exchanges_take_messages_before_windows_run_out(comm, one_host, monkeypatch):
    """The limit of one rank holds for all."""
    if comm.size == 1:
        pytest.skip("a single rank needs no windows")
    monkeypatch.setattr(parts, "_SHARED", 0)  # a window for each exchange
    moved(comm, ring(comm), 0)  # makes the communicator of all windows
    for _ in range(2):  # frees the exchange, and then its window
        comm.split(0)
    limits = [symmetric._MAX_IN_USE] * comm.size
    limits[-1] = reclaim.in_use() + 3
    monkeypatch.setattr(symmetric, "_MAX_IN_USE", limits[comm.rank])
    forests = [ring(comm) for _ in range(6)]
    for number in range(len(forests)):
        assert moved(comm, forests[number], number) == number + (comm.rank + 1) % comm.size
    kinds = [type(exchange) for forest in forests for exchange in forest._exchanges.values()]
    assert kinds == [SharedExchange] * 3 + [MpiExchange] * 3
    with pytest.raises(MemoryError, match=r"shared windows .* free"):
        comm.symmetric(1, engine="numpy")
    with pytest.raises(MemoryError, match="shared windows"):
        moved(comm, ring(comm, transport="shared"), 0)
    del forests[0]
    assert moved(comm, ring(comm, transport="shared"), 5) == 5 + (comm.rank + 1) % comm.size


def test_communicators_of_freed_duplicates_are_freed(comm):
    """On two ranks, their number is more than MPICH has communicators; some loops use memory, which refers to them."""
    MPI = pytest.importorskip("mpi4py.MPI")
    if comm.host_transport == "tcp":
        pytest.skip("needs MPI")
    most = 0
    for step in range(600 if comm.device_transport is None else 20):
        duplicate = MPI.COMM_WORLD.Dup()
        made = from_mpi4py(duplicate)
        if step % 10 == 0 and made.local_size == made.size:
            assert moved(made, ring(made), step) == step + (comm.rank + 1) % comm.size
        assert int(made.allreduce(np.array(step))) == step * comm.size
        duplicate.Free()
        most = max(most, reclaim.in_use())
    assert most < 5 * SLACK


def test_a_communicator_outlives_the_duplicate_that_it_was_made_of(comm):
    MPI = pytest.importorskip("mpi4py.MPI")
    if comm.host_transport == "tcp":
        pytest.skip("needs MPI")
    duplicate = MPI.COMM_WORLD.Dup()
    made = from_mpi4py(duplicate)
    duplicate.Free()
    gc.collect()
    comm.split(0)
    assert moved(made, ring(made), 3) == 3 + (comm.rank + 1) % comm.size


def test_communicators_of_parts_are_freed_by_the_ranks_of_the_whole(comm):
    MPI = pytest.importorskip("mpi4py.MPI")
    if comm.host_transport == "tcp":
        pytest.skip("needs MPI")
    count = reclaim.in_use()
    half = MPI.COMM_WORLD.Split(comm.rank % 2, -comm.rank)
    part = from_mpi4py(half)
    assert int(part.allreduce(np.array(1))) == half.size
    half.Free()
    del part
    gc.collect()
    comm.split(0)
    assert reclaim.in_use() == count


@pytest.mark.serial
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_program_ends_with_memory_that_some_ranks_have_dropped(ranks):
    """Ranks differ in what they have dropped, and exit while some memory is in a cycle."""
    program = """
import numpy as np
import collops

comm = collops.world()
kept = [comm.symmetric(8, engine="numpy") for _ in range(6)]
if comm.rank % 2:
    del kept[1::2]
else:
    kept.append(kept)
forest = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
forest.bcast(np.ones(1))
print("end", flush=True)
"""
    done = run_ranks(ranks, program, {"COLLOPS_TIMEOUT": "20"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n" * ranks, "")


@pytest.mark.serial
def test_memory_is_not_touched_after_the_program_has_finalised_mpi():
    program = """
from mpi4py import MPI
import collops

memory = collops.world().symmetric(8, engine="numpy")
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
print("end", flush=True)
"""
    done = run_ranks(2, program, {"COLLOPS_TIMEOUT": "20"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n" * 2, "")
