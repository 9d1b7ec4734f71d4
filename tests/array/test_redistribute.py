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


def test_groups_keep_their_own_copies(comm):
    for mask in masks(comm.size):
        layout = Layout.replicated(6, comm.size, mask=mask)
        x = ca.DistributedArray(layout, comm, np.full(6, float(mask[comm.rank])))
        y = x.redistribute(Layout.split(6, comm.size))
        np.testing.assert_array_equal(y.local_array, mask[comm.rank])


def test_refusals(comm):
    x = ca.zeros((4, 3), comm=comm)
    for wrong in (Layout.split((3, 4), comm.size), Layout.split((4, 3), comm.size + 1), (4, 3)):
        with pytest.raises(LayoutError, match="cannot be redistributed"):
            x.redistribute(wrong)
    with pytest.raises(InputError, match="no rank"):
        x.gather(root=comm.size)
