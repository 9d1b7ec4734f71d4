"""Where boxes lie in memory, which is what exchanges by address go by."""

from __future__ import annotations

import numpy as np
import pytest

from collops.exchange.boxes import _place

pytestmark = pytest.mark.serial


def box(*bounds):
    return tuple(slice(*pair) for pair in bounds)


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
            place = _place(wanted, array)
            assert (place is not None) == view.flags.c_contiguous
            if place is not None:
                found += 1
                assert view.__array_interface__["data"][0] == array.__array_interface__["data"][0] + place
    assert found


def test_steps_are_not_contiguous():
    array = np.zeros(8)
    assert _place((slice(2, 6, 2),), array) is None
    assert _place((slice(2, 6),), array) == 16
