"""Redistribution between every two layouts, and what it may send."""

from __future__ import annotations

import numpy as np
import pytest

import collops.array as ca
from collops import profile
from collops.array import Layout
from collops.errors import InputError, LayoutError
from tests.array.cases import dtype_of, layouts, masks, values


@pytest.mark.parametrize("shape", [(7,), (2,), (0,), (5, 4), (3, 2, 4), (0, 3)])
def test_every_layout_to_every_other(comm, shape):
    a = values(shape)
    for source in layouts(shape, comm.size):
        x = ca.from_global(a, source, comm=comm)
        for target in layouts(shape, comm.size):
            ca.zeros(target, comm=comm)  # the first array on a process grid makes communicators
            for _ in range(2):  # made, then from the cache
                with profile.count_messages() as messages:
                    y = x.redistribute(target)
                assert messages.total == messages["alltoallv"] <= 1
                assert y.layout is target
                assert not np.shares_memory(y.local_array, x.local_array)
                np.testing.assert_array_equal(y.local_array, a[target.slices(comm.rank)])
            if source.is_replicated or source is target:
                assert messages.total == 0


@pytest.mark.parametrize("name", ["bool", "int8", "float16", "bfloat16", "float32", "complex128"])
def test_every_dtype(comm, name):
    a = values((5, 3)).astype(dtype_of(name))
    x = ca.from_global(a, comm=comm)
    y = x.redistribute(Layout.split(a.shape, comm.size, 1))
    assert y.dtype == a.dtype
    np.testing.assert_array_equal(y.gather(), a)


def test_only_overlaps_travel(comm):
    if comm.size == 1:
        pytest.skip("nothing travels in a world of one")
    n = 12 * comm.size
    x = ca.zeros(n, comm=comm)
    sizes = [12] * comm.size
    sizes[0], sizes[1] = 11, 13
    with profile.count_messages() as messages:
        x.redistribute(Layout.split(n, comm.size, sizes=sizes))
    assert messages.records[0].elements == (1 if comm.rank == 0 else 0)


def test_gather_sends_one_message_and_no_metadata(comm):
    for layout in layouts((5, 4), comm.size):
        x = ca.zeros(layout, comm=comm)
        x.gather(), x.gather(root=0)
        for root in (None, 0):
            with profile.count_messages() as messages:
                x.gather(root)
            assert messages.total <= 1
            assert messages["metadata"] == 0
            if layout.is_replicated:
                assert messages.total == 0


def test_gathered_copies_are_the_callers(comm):
    x = ca.ones(Layout.replicated(4, comm.size), comm=comm)
    x.gather()[:] = 5
    assert float(x.sum()) == 4


def test_refusals(comm):
    x = ca.zeros((4, 3), comm=comm)
    for wrong in (Layout.split((3, 4), comm.size), Layout.split((4, 3), comm.size + 1), (4, 3)):
        with pytest.raises(LayoutError, match="cannot be redistributed"):
            x.redistribute(wrong)
    with pytest.raises(InputError, match="must be a rank from 0 to"):
        x.gather(root=comm.size)


def layouts_with_values_of_groups(ranks):
    """Layouts of which each group of ranks holds the whole array, by masks."""
    found = []
    for mask in masks(ranks):
        found.append([Layout.replicated((5, 4), ranks, mask=mask)])
    for groups in range(2, ranks):
        if ranks % groups == 0:
            mask = [rank // (ranks // groups) for rank in range(ranks)]
            grid = groups, ranks // groups
            split = [Layout((5, 4), ranks, grid, axes, None, mask) for axes in ([1, None], [None, 1])]
            found.append([Layout.replicated((5, 4), ranks, mask=mask), *split])
    return found


def test_groups_keep_their_values(comm):
    """Within groups there and back; what would mix the values of several groups is refused on every rank."""
    for chosen in layouts_with_values_of_groups(comm.size):
        mask = chosen[0].mask
        a = values((5, 4), seed=mask[comm.rank])
        for source in chosen:
            assert source.has_group_values
            x = ca.from_local(a[source.slices(comm.rank)].copy(), source, comm=comm)
            np.testing.assert_array_equal(x.gather(), a)
            gathered = x.gather(root=comm.size - 1)
            if comm.rank == comm.size - 1:
                np.testing.assert_array_equal(gathered, a)
            for target in chosen:
                y = x.redistribute(target)
                np.testing.assert_array_equal(y.local_array, a[target.slices(comm.rank)])
                np.testing.assert_array_equal(y.redistribute(source).local_array, x.local_array)
            refused = [
                Layout.split((5, 4), comm.size),
                Layout.split((5, 4), comm.size, mask=mask),
                Layout.replicated((5, 4), comm.size),
            ]
            if mask[-1] in mask[:-1]:  # the last rank leaves its group
                refused.append(Layout.replicated((5, 4), comm.size, mask=[*mask[:-1], max(mask) + 1]))
            for target in refused:
                with pytest.raises(LayoutError, match="each group of ranks has values of its own"):
                    x.redistribute(target)


def test_groups_without_values_of_their_own(comm):
    """A split array is one array of all groups, whatever the mask."""
    a = values((7, 3))
    for mask in masks(comm.size):
        layout = Layout.split(a.shape, comm.size, mask=mask)
        assert not layout.has_group_values
        x = ca.from_global(a, layout, comm=comm)
        for target in (Layout.split(a.shape, comm.size, 1), Layout.replicated(a.shape, comm.size, mask=mask)):
            y = x.redistribute(target)
            np.testing.assert_array_equal(y.local_array, a[target.slices(comm.rank)])
            if not target.has_group_values:
                np.testing.assert_array_equal(y.redistribute(layout).local_array, x.local_array)


@pytest.mark.needs_ranks(4)
def test_an_array_of_which_no_group_has_the_whole(comm):
    """Two arrays in one layout: each of four groups holds half of one of them."""
    if comm.size != 4:
        pytest.skip("the process grid has four ranks")
    layout = Layout((4, 2), 4, (2, 2), [1, None], None, [0, 1, 2, 3])
    x = ca.from_local(np.full((2, 2), float(comm.rank)), layout, comm=comm)
    with pytest.raises(LayoutError, match="values of its own"):
        x.gather()
    with pytest.raises(LayoutError, match="values of its own"):
        x.redistribute(Layout.split((4, 2), 4, mask=[0, 1, 2, 3]))
    assert x.redistribute(layout).local_array.max() == comm.rank
