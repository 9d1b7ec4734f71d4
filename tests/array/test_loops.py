"""The loops that Numba compiles for long vectors, in several pieces, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import collops.array as ca
from collops.array import Layout, kernels
from collops.array.kernels import numpy_kernels
from tests.array.cases import tolerance, values

pytest.importorskip("numba")
from collops.array.kernels import numba_kernels

REAL = ["float32", "float64"]
LENGTH = 2 * numba_kernels.PIECE + 5


def rows_of(count, dtype):
    return np.stack([values(LENGTH, dtype, seed=seed) for seed in range(count)])


@pytest.mark.serial
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("count", [2, 3, 6, 11])
def test_products_with_two_rows(comm, count, dtype):
    rows = rows_of(count, dtype)
    found = numpy_kernels.products_with_two(rows, rows[-2:])
    assert found is not None and found.dtype == dtype
    wide = rows.astype("float64")
    lengths = np.linalg.norm(wide, axis=1)
    error = (found - wide @ wide[-2:].T) / np.outer(lengths, lengths[-2:])
    assert abs(error).max() < 10 * np.finfo(dtype).eps


@pytest.mark.serial
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("count", [2, 3, 6, 11])
def test_combinations_replace_two_rows(comm, count, dtype):
    rows, matrix = rows_of(count, dtype), values((2, count), dtype)
    expected = np.concatenate([rows[:-2], matrix @ rows])
    assert numpy_kernels.combine_into_two(rows, matrix)
    np.testing.assert_allclose(rows, expected, atol=20 * np.finfo(dtype).eps)


@pytest.mark.serial
def test_rows_that_the_loops_do_not_suit(comm):
    rows = rows_of(3, "float64")
    for unsuitable in (rows.astype(complex), rows[:, :100], rows[:, ::2], rows.astype(int)):
        assert numpy_kernels.products_with_two(unsuitable, unsuitable[-2:]) is None
        before = unsuitable.copy()
        assert not numpy_kernels.combine_into_two(unsuitable, np.eye(2, 3).astype(unsuitable.dtype))
        np.testing.assert_array_equal(unsuitable, before)
    assert numpy_kernels.products_with_two(rows, rows[-1:]) is None


@pytest.mark.parametrize("dtype", REAL)
def test_dots_of_several_pieces(comm, dtype):
    size = LENGTH * comm.size + 1
    a, b = values(size, dtype), values(size, dtype, seed=1)
    x, y = (ca.from_global(each, Layout.split(size, comm.size), comm=comm) for each in (a, b))
    wide = [each.astype("float64") for each in (a, b)]
    expected = [wide[0] @ wide[1], wide[1] @ wide[1], wide[0] @ wide[0]]
    found = ca.dots((x, y), (y, y), (x, x))
    assert all(each.dtype == dtype for each in found)
    np.testing.assert_allclose(
        found, expected, rtol=tolerance(dtype)["rtol"], atol=1e-3 if dtype == "float32" else 1e-9
    )


@pytest.mark.parametrize("dtype", REAL)
def test_inner_products_do_not_depend_on_the_others_of_their_message(comm, dtype):
    x, y = (ca.random(LENGTH * comm.size, seed=seed, comm=comm, dtype=dtype) for seed in range(2))
    expected = float(x.vdot(y)), float(y.vdot(y)), float(x.vdot(x))
    for count in (1, 2, 3):
        assert tuple(map(float, ca.dots(*[(x, y), (y, y), (x, x)][:count]))) == expected[:count]


@pytest.mark.serial
def test_without_numba(comm, monkeypatch):
    """Long arrays do without the loops then."""
    monkeypatch.setattr(kernels, "loops", lambda: None)
    assert not numpy_kernels.suits_loops(np.ones(LENGTH))
    x = ca.ones(LENGTH, comm=comm)
    assert float(ca.axpby(0.5, x, 2.0, x).sum()) == 2.5 * LENGTH
