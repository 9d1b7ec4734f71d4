"""Scatters by index between distributed, replicated and private arrays, against NumPy on gathered data."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import collops
from collops import IndexScatter, profile
from collops.array import Layout
from collops.errors import LayoutError, UnsupportedTypeError


def part_of(comm, pairs):
    """This rank's share of a list that all ranks know, in the order of ranks."""
    return np.array_split(pairs, comm.size)[comm.rank]


def layouts(comm):
    yield Layout.split(17, comm.size)
    yield Layout.split(17, comm.size, sizes=[17, *[0] * (comm.size - 1)])


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_parallel_to_parallel(comm, repeated, dtype):
    rng = np.random.default_rng(3)
    for source in layouts(comm):
        for target in (Layout.split(11, comm.size), Layout.replicated(11, comm.size)):
            count = 20 if repeated else 9
            take = rng.integers(0, 17, count)
            put = rng.integers(0, 11, count) if repeated else rng.permutation(11)[:count]
            scatter = IndexScatter(source, part_of(comm, take), target, part_of(comm, put), comm=comm, transport="mpi")
            x = (np.arange(17) + 1).astype(dtype)
            y = np.full(11, 0.5, dtype)
            dx = collops.from_global(x, source, comm=comm)
            for op in ("replace", "sum"):
                want = y.copy()
                if op == "replace":
                    want[put] = x[take]
                else:
                    np.add.at(want, put, x[take])
                got = scatter.forward(dx, collops.from_global(y, target, comm=comm), op)
                np.testing.assert_array_equal(got.gather(), want)
            back = x.copy()
            if target.is_replicated:
                continue
            np.add.at(back, take, y[put])
            got = scatter.reverse(collops.from_global(y, target, comm=comm), dx.copy(), "sum")
            np.testing.assert_array_equal(got.gather(), back)


def test_sequential_and_parallel(comm):
    layout = Layout.split(13, comm.size)
    mine = 3 + comm.rank
    names = (np.arange(mine) * 5 + comm.rank) % 13
    x = np.arange(13.0)
    dx = collops.from_global(x, layout, comm=comm)
    to_own = IndexScatter(layout, names, mine, None, comm=comm)
    np.testing.assert_array_equal(to_own.forward(dx, np.zeros(mine)), names)
    from_own = IndexScatter(mine, None, layout, names, comm=comm)
    total = np.zeros(13)
    for rank in range(comm.size):
        np.add.at(total, (np.arange(3 + rank) * 5 + rank) % 13, rank + 1.0)
    ones = np.full(mine, comm.rank + 1.0)
    added = from_own.forward(ones, collops.zeros(layout, comm=comm), "sum")
    np.testing.assert_array_equal(added.gather(), total)
    np.testing.assert_array_equal(to_own.reverse(ones, collops.zeros(layout, comm=comm), "sum").gather(), total)
    np.testing.assert_array_equal(from_own.reverse(dx, np.zeros(mine)), names)


def test_elements_that_only_the_first_rank_names_twice(comm):
    layout = Layout.split(6, comm.size)
    names = np.array([1, 1, 4] if comm.rank == 0 else [0, 2])
    scatter = IndexScatter(layout, names, 5, names[::-1], comm=comm)
    added = scatter.forward(collops.from_global(np.arange(6.0), layout, comm=comm), np.zeros(5), "sum")
    np.testing.assert_array_equal(added, [0, 4 + 1, 0, 0, 1] if comm.rank == 0 else [2, 0, 0, 0, 0])


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_interleaved_shares_move_as_slices_and_without_temporaries(comm, transport):
    share = 4096 * comm.size
    layout = Layout.split(share * comm.size, comm.size)
    interleaved = np.arange(share) * comm.size + comm.rank
    scatter = IndexScatter(share, None, layout, interleaved, comm=comm, transport=transport)
    pattern = scatter.forest.pattern
    moves = [pattern.local_sources, pattern.local_targets]
    if comm.size <= 2:  # with one other rank
        moves += [pattern.sends.points, pattern.receives.points]
    assert all(points.slice is not None for points in moves)
    x, y = np.arange(share, dtype=float), collops.zeros(layout, comm=comm)
    for _ in range(2):  # prepares the moves of both directions and uses both places
        scatter.reverse(scatter.forward(x, y), x)
    tracemalloc.start()
    try:
        scatter.reverse(scatter.forward(x, y), x)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < x.nbytes // 8
    np.testing.assert_array_equal(x, np.arange(share))


def test_to_all_and_to_zero(comm):
    layout = Layout.split((3, 4), comm.size, axis=1)
    x = np.arange(12.0).reshape(3, 4)
    dx = collops.from_global(x, layout, comm=comm)
    to_all = IndexScatter.to_all(layout, comm=comm)
    everywhere = to_all.forward(dx, collops.zeros(to_all.target, comm=comm))
    np.testing.assert_array_equal(everywhere.local_array, x.reshape(-1))
    to_zero = IndexScatter.to_zero(layout, comm=comm)
    out = np.zeros(12 if comm.rank == 0 else 0)
    to_zero.forward(dx, out)
    np.testing.assert_array_equal(out, x.reshape(-1)[: len(out)])
    to_zero.reverse(out, dx)
    with profile.count_messages() as messages:
        to_zero.reverse(out * 2, dx)
    assert messages.total == (1 if comm.size > 1 else 0)
    np.testing.assert_array_equal(dx.gather(), 2 * x)


def test_wrong_use(comm):
    layout = Layout.split(5, comm.size)
    with pytest.raises(LayoutError, match="source element 5 is out of range"):
        IndexScatter(layout, [5] if comm.rank == comm.size - 1 else [], 1, [0] if comm.rank == comm.size - 1 else [])
    with pytest.raises(LayoutError, match="need as many target_indices"):
        IndexScatter(layout, [0, 1], 3, [0], comm=comm)
    with pytest.raises(LayoutError, match="a layout or a number"):
        IndexScatter("x", [0], 3, [0], comm=comm)  # type: ignore[arg-type]
    scatter = IndexScatter(layout, [0], 2, [1], comm=comm)
    with pytest.raises(UnsupportedTypeError, match="a distributed array"):
        scatter.forward(np.zeros(5), np.zeros(2))
    with pytest.raises(LayoutError, match="shape"):
        scatter.forward(collops.zeros(layout, comm=comm), np.zeros(3))
    with pytest.raises(UnsupportedTypeError, match="expected an array"):
        scatter.forward(collops.zeros(layout, comm=comm), [0.0, 0.0])
    if comm.size > 1:
        same = Layout.replicated(5, comm.size)
        back = IndexScatter(same, [0], 1, [0], comm=comm)
        with pytest.raises(LayoutError, match="copies would differ"):
            back.reverse(np.zeros(1), collops.zeros(same, comm=comm))


def test_values_of_groups_are_refused(comm):
    """Which copy would be the source?"""
    if comm.size == 1:
        pytest.skip("one rank is one group")
    groups = Layout.replicated(4, comm.size, mask=range(comm.size))
    for source, target in [(groups, 4), (4, groups)]:
        with pytest.raises(LayoutError, match="each group of ranks has values of its own"):
            IndexScatter(source, [0], target, [0], comm=comm)
