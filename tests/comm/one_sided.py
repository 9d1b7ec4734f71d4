"""What symmetric memory must do, as functions of a communicator and an engine: run on hosts and on devices."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from collops.backend import engine


def host(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)


def documented_kernels():
    """The kernels of the documentation that call NVSHMEM, as one source."""
    text = (Path(__file__).parents[2] / "docs/symmetric.md").read_text(encoding="utf-8")
    return "".join(
        source for source in re.findall(r'^source = """$(.*?)^"""$', text, re.M | re.S) if "nvshmem.h" in source
    )


def check_peers(comm, name):
    """Zeros at first; then what others wrote, directly and through views kept from before."""
    with comm.symmetric((2, 5), "float32", engine=name) as memory:
        assert not host(memory.local).any()
        assert memory.shape == (2, 5)
        views = [memory.peer(rank) for rank in range(comm.size)]
        memory.barrier()
        views[(comm.rank + 1) % comm.size][1] = comm.rank + 1
        memory.barrier()
        before = (comm.rank - 1) % comm.size
        np.testing.assert_array_equal(host(memory.local), [[0] * 5, [before + 1] * 5])
        for rank, view in enumerate(views):
            assert host(view)[1, 0] == (rank - 1) % comm.size + 1
        memory.barrier()


def check_put_and_get(comm, name, dtype):
    """Rows, columns and all of it, to every rank in turn."""
    xp = engine(name).xp
    with comm.symmetric((4, 6), dtype, engine=name) as memory:
        for shift in range(comm.size):
            there, here = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
            memory.put(xp.full(6, comm.rank + 1, dtype), there, np.s_[1])
            memory.put(xp.full((4, 1), comm.rank + 2, dtype), there, np.s_[:, 2:3])
            memory.barrier()
            expected = np.zeros((4, 6), dtype)
            expected[1] = here + 1
            expected[:, 2] = here + 2
            np.testing.assert_array_equal(host(memory.local), expected)
            row, column = xp.zeros(6, dtype), xp.zeros((4, 1), dtype)
            assert memory.get(there, np.s_[1], out=row) is row
            memory.get(there, np.s_[:, 2:3], out=column)
            np.testing.assert_array_equal(host(column)[:, 0], np.full(4, comm.rank + 2, dtype))
            assert host(row)[0] == comm.rank + 1
            memory.barrier()
            memory.local.fill(0)
            memory.barrier()
        memory.put(xp.full((4, 6), 3, dtype), (comm.rank + 1) % comm.size)
        memory.barrier()
        assert (host(memory.local) == 3).all()


def check_signals(comm, name, rounds):
    """A number goes round the ring, each rank adding one: nobody may see it before it is there."""
    xp = engine(name).xp
    after = (comm.rank + 1) % comm.size
    size = 1000
    with comm.symmetric((2, size), "int64", engine=name, signals=3) as memory:
        given = xp.zeros(size, "int64")
        for turn in range(1, rounds + 1):
            if comm.rank > 0 or turn > 1:
                # Rank 0 begins; its neighbour's number of the turn before arrives later.
                memory.wait_signal(2, turn if comm.rank else turn - 1)
                given[...] = memory.local[(turn if comm.rank else turn - 1) % 2]
            given += 1
            memory.put_signal(given, after, np.s_[turn % 2], 2, turn)
        memory.barrier()
        # The rank before has added its one in the last turn.
        laps = (rounds - 1) * comm.size + (comm.rank or comm.size)
        assert (host(memory.local)[rounds % 2] == laps).all()
        memory.barrier()


def check_late_values(comm, name, delayed):
    """Values that a processor or a network delivers late, at the next fence, come before the signal all the same."""
    xp = engine(name).xp
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.symmetric((3, 4), "int64", engine=name, signals=1) as memory, delayed(memory):
        for turn, where in enumerate((np.s_[1], np.s_[:, 2], ...), 1):
            shape = memory.local[where].shape
            memory.put_signal(xp.full(shape, 10 * turn + comm.rank, "int64"), after, where, 0, turn)
            memory.wait_signal(0, turn)
            np.testing.assert_array_equal(host(memory.local[where]), np.full(shape, 10 * turn + before))
            memory.barrier()


def check_empty(comm, name):
    """Nothing at all is an array, too."""
    with comm.symmetric((0, 3), "float64", engine=name, signals=1) as memory:
        assert memory.local.shape == (0, 3)
        memory.put_signal(memory.local.copy(), (comm.rank + 1) % comm.size, ..., 0, 5)
        memory.wait_signal(0, 5)
        memory.barrier()


def check_compare_and_swap(comm, name, dtype):
    """Ranks count up one number of the last rank by turns that fail if another was faster: no turn is lost."""
    xp = engine(name).xp
    rounds = 20
    with comm.symmetric((3, 4), dtype, engine=name) as memory:
        last, out = comm.size - 1, xp.zeros(1, dtype)
        seen, made = np.zeros(1, dtype), 0
        while made < rounds:
            memory.compare_and_swap(xp.asarray(seen), xp.asarray(seen + 1), last, np.s_[1, 2:3], out=out)
            before = host(out).copy()
            made += int(before[0] == seen[0])
            seen = before
        memory.barrier()
        want = np.zeros((3, 4), dtype)
        if comm.rank == last:
            want[1, 2] = rounds * comm.size
        np.testing.assert_array_equal(host(memory.local), want)
        memory.barrier()
        # Several elements in one call, of which some are as expected; a strided result.
        memory.local[...] = xp.arange(12, dtype=dtype).reshape(3, 4)
        memory.barrier()
        expected = np.array([[4, 0, 6, 0], [8, 0, 0, 11]], dtype)
        fetched = xp.zeros((2, 8), dtype)[:, ::2]
        if comm.rank == 0:
            new = np.arange(100, 108, dtype=dtype).reshape(2, 4)
            got = memory.compare_and_swap(xp.asarray(expected), xp.asarray(new), last, np.s_[1:], out=fetched)
            assert got is fetched
            np.testing.assert_array_equal(host(fetched), [[4, 5, 6, 7], [8, 9, 10, 11]])
        memory.barrier()
        want = np.arange(12, dtype=dtype).reshape(3, 4)
        if comm.rank == last:
            want[1:] = [[100, 5, 102, 7], [104, 9, 10, 107]]
        np.testing.assert_array_equal(host(memory.local), want)
        memory.barrier()


def check_atomics(comm, name, dtype):
    """All ranks add to one row of the first rank at once: no addition is lost, and no two ranks fetch the same."""
    xp = engine(name).xp
    rounds = 30
    with comm.symmetric((3, 4), dtype, engine=name) as memory:
        ones = xp.ones(4, dtype)
        fetched = xp.zeros((4, rounds), dtype)
        for turn in range(rounds):
            memory.fetch_add(ones, 0, np.s_[1], out=fetched[:, turn])
            memory.atomic_add(xp.full((), -1, "int64").astype(dtype), comm.size - 1, (2, 3))
        assert memory.fetch_add(ones[:0], 0, np.s_[1, :0], out=ones[:0]).size == 0
        memory.barrier()
        want = np.zeros((3, 4), dtype)
        if comm.rank == 0:
            want[1] = rounds * comm.size
        if comm.rank == comm.size - 1:
            want[2, 3] = np.array(-rounds * comm.size).astype(dtype)
        np.testing.assert_array_equal(host(memory.local), want)
        of_all = np.concatenate([np.array(rows) for rows in comm.allgather_metadata(host(fetched).tolist())], axis=1)
        np.testing.assert_array_equal(np.sort(of_all, axis=1), [range(rounds * comm.size)] * 4)
        memory.barrier()
