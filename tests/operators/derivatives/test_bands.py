"""Finite-difference matrices against those of PyLops, of every size, transposed and cut into blocks."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops.errors import InputError, LayoutError
from collops.operators.derivatives.bands import (
    MAX_SPECIAL,
    REACH,
    Band,
    LocalBand,
    first_derivative,
    second_derivative,
)

pytestmark = pytest.mark.serial

FORMULAS = [
    *((1, kind, edge, 3) for kind in ("forward", "backward", "centered") for edge in (False, True)),
    (1, "centered", False, 5),
    (1, "centered", True, 5),
    *((2, kind, edge, 3) for kind in ("forward", "backward", "centered") for edge in (False, True)),
]
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 30]


def band_of(derivative: int, size: int, kind: str, edge: bool, order: int) -> Band:
    """The band with a sampling of 0.5."""
    if derivative == 1:
        return first_derivative(size, 0.5, kind, edge, order)
    return second_derivative(size, 0.5, kind, edge)


def dense(band: Band) -> np.ndarray:
    """The whole matrix; a coefficient where there is no column is an error."""
    matrix = np.zeros((band.size, band.size))
    for number in range(band.size):
        for offset, value in enumerate(band.row(number), -REACH):
            if value:
                assert 0 <= number + offset < band.size
                matrix[number, number + offset] = value
    return matrix


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("formula", FORMULAS)
def test_same_matrices_as_pylops(size, formula):
    derivative, kind, edge, order = formula
    options = {"order": order} if derivative == 1 else {}
    cls = pylops.FirstDerivative if derivative == 1 else pylops.SecondDerivative
    if kind == "centered" and edge and size < derivative + 1:
        with pytest.raises(LayoutError, match="edges"):
            band_of(derivative, size, kind, edge, order)
        return
    band = band_of(derivative, size, kind, edge, order)
    assert len(band.special) == band.head + band.tail <= MAX_SPECIAL
    assert len(band.transposed.special) <= MAX_SPECIAL
    np.testing.assert_array_equal(dense(band.transposed), dense(band).T)
    np.testing.assert_array_equal(dense(band.scaled(-3)), -3 * dense(band))
    if edge and order == 5 and size < 3:  # where PyLops has no answer
        return
    op = cls(size, sampling=0.5, kind=kind, edge=edge, **options)
    expected = np.stack([op.matvec(column) for column in np.eye(size)], axis=1)
    np.testing.assert_allclose(dense(band), expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("size", [3, 5, 9, 12, 17])
@pytest.mark.parametrize("formula", FORMULAS)
def test_blocks(size, formula):
    for band in (band_of(formula[0], size, *formula[1:]), band_of(formula[0], size, *formula[1:]).transposed):
        matrix = dense(band)
        for start in range(size):
            for stop in range(start, size + 1):
                part = LocalBand(band, start, stop - start)
                needed = np.flatnonzero(matrix[start:stop].any(axis=0))
                low = min([start, *needed.tolist()])
                high = max([stop, *[n + 1 for n in needed.tolist()]])
                assert (part.before, part.after) == (start - low, high - stop), (start, stop)
                rows = np.array([part.row(i) for i in range(part.extent)])
                np.testing.assert_array_equal(rows, [band.row(i) for i in range(start, stop)] or rows)
                assert 0 <= part.inner_begin <= part.inner_end <= part.extent
                for i in range(part.inner_begin, part.inner_end):
                    np.testing.assert_array_equal(part.row(i), part.stencil)
                    own = np.flatnonzero(part.stencil) - REACH + i
                    assert not len(own) or 0 <= own[0] <= own[-1] < part.extent


def test_long_bands_have_few_special_rows():
    band = first_derivative(10**12, 1.0, "centered", True, 5)
    assert (band.head, band.tail) == (2, 2)
    assert (band.transposed.head, band.transposed.tail) == (4, 4)
    assert band.columns(10**11, 10**11 + 5) == (10**11 - 2, 10**11 + 7)


def test_refused():
    with pytest.raises(InputError, match="kind"):
        first_derivative(5, 1.0, "central", False)
    with pytest.raises(InputError, match="order"):
        first_derivative(5, 1.0, "centered", False, 4)
    for sampling in (0, np.nan, 1j, 1e300, 1e-200, np.float32(1e-30) ** 6):
        with pytest.raises(InputError, match="sampling"):
            second_derivative(5, sampling, "centered", False)
