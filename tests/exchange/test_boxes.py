"""Exchanges of boxes: where boxes lie in memory, and how received values are combined."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange import ExchangePlan
from collops.exchange.boxes import _offset


def box(*bounds):
    return tuple(slice(*pair) for pair in bounds)


@pytest.mark.serial
@pytest.mark.parametrize("order", ["C", "F"])
def test_places_are_where_contiguous_boxes_begin(order):
    array = np.zeros((4, 3, 5), "f4", order=order)
    found = 0
    for begin in np.ndindex(4, 3, 5):
        for extent in np.ndindex(2, 4, 6):
            wanted = box(*((b, b + n) for b, n in zip(begin, extent, strict=True)))
            if any(s.stop > n for s, n in zip(wanted, array.shape, strict=True)) or 0 in extent:
                continue
            view = array[wanted]
            place = _offset(wanted, array)
            assert (place is not None) == view.flags.c_contiguous
            if place is not None:
                found += 1
                assert view.__array_interface__["data"][0] == array.__array_interface__["data"][0] + place
    assert found


@pytest.mark.serial
def test_steps_are_not_contiguous():
    array = np.zeros(8)
    assert _offset((slice(2, 6, 2),), array) is None
    assert _offset((slice(2, 6),), array) == 16


def test_arrays_in_another_order_of_memory_have_their_boxes_elsewhere(comm):
    """What a plan keeps for arrays of one shape must not be taken for others."""
    box, peer = (slice(1, 2), slice(0, 4)), (comm.rank + 1) % comm.size
    plan = ExchangePlan(comm, [(peer, box)], [((comm.rank - 1) % comm.size, box)])
    rows, columns = np.zeros((3, 4)), np.zeros((3, 4), order="F")
    for source, target in ((rows, rows), (columns, rows), (rows, columns), (columns, columns)):
        offsets = plan._offsets_in((source,), target)
        inside = [32 if array is rows else None for array in (source, target)]
        assert [*offsets.sent_from, *offsets.received_at] == (inside if comm.size > 1 else [])


def test_elements_of_another_size_lie_elsewhere(comm):
    """Strides that are contiguous for one dtype are not for another, and a plan takes arrays of both."""
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    plan = ExchangePlan(comm, [(following, box((1, 4)))], [(before, box((1, 4)))])
    for array, place in ((np.zeros(5), 8), (np.zeros(10, "f4")[::2], None)):
        offsets = plan._offsets_in((array,), array)
        assert offsets.sent_from == offsets.received_at == [place] * (comm.size > 1)


def test_sums_add_local_and_received_boxes_that_overlap(comm):
    following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    source, halves = (slice(0, 3),), [(slice(0, 3),), (slice(1, 4),)]
    plan = ExchangePlan(comm, [(comm.rank, source), (following, source)], [(comm.rank, halves[0]), (before, halves[1])])
    for wait_between in (False, True):
        started = plan.start(np.full(3, comm.rank + 1.0), np.full(5, 100.0), op="sum")
        if wait_between:
            comm.barrier()
        got = started.finish()
        own, other = comm.rank + 1, before + 1
        np.testing.assert_array_equal(got, [100 + own, 100 + own + other, 100 + own + other, 100 + other, 100])


def test_a_plan_by_which_nothing_travels_sends_and_counts_nothing(comm):
    plan = ExchangePlan(comm, [(comm.rank, (slice(0, 2),))], [(comm.rank, (slice(1, 3),))], travels=False)
    with profile.count_messages() as messages:
        got = plan(np.arange(1.0, 3), np.zeros(4))
    assert got.tolist() == [0, 1, 2, 0] and messages.total == 0


def test_an_unknown_operation_is_refused(comm):
    plan = ExchangePlan(comm, [], [])
    with pytest.raises(UnsupportedTypeError, match="'replace' or 'sum', not 'max'"):
        plan(np.zeros(1), np.zeros(1), op="max")


def test_an_array_that_lacks_a_box_is_an_error_on_all_ranks(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    plan = ExchangePlan(comm, [(right, box((2, 4)))], [(left, box((0, 2)))])
    with pytest.raises(LayoutError, match="cannot move the box"):
        plan(np.zeros(3), np.zeros(4))
    with pytest.raises(LayoutError, match="cannot move the box"):
        plan(np.zeros(4), np.zeros((4, 1)))
    np.testing.assert_array_equal(plan(np.arange(4.0), np.zeros(4)), [2, 3, 0, 0])
