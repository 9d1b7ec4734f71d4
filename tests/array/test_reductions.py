"""Reductions against NumPy on the global array, and the messages that they may send."""

from __future__ import annotations

import numpy as np
import pytest

import collops.array as ca
from collops import profile
from collops.array import Layout, StackedArray
from collops.errors import LayoutError, UnsupportedTypeError
from tests.array.cases import HALF, INEXACT, WHOLE, dtype_of, layouts, masks, tolerance, values

ORDERS = [None, 0, 1, 2, 3, 0.5, -1, np.inf, -np.inf]


@pytest.mark.parametrize("name", [*INEXACT, *WHOLE])
def test_sum_and_mean(comm, name):
    for axis in [None, 0, 1, -1, (0, 1), ()]:
        a = values((5, 4), name)
        for layout in layouts(a.shape, comm.size):
            x = ca.from_global(a, layout, comm=comm)
            for function in ("sum", "mean"):
                expected = getattr(a, function)(axis=axis)
                result = getattr(x, function)(axis=axis)
                assert result.dtype == expected.dtype
                if np.ndim(expected):
                    assert result.shape == expected.shape
                    result = result.gather()
                else:
                    assert result.ndim == 0
                np.testing.assert_allclose(result, expected, **tolerance(expected.dtype))
            assert x.sum(dtype=np.complex128).dtype == np.complex128


@pytest.mark.parametrize("name", HALF)
def test_half_types_accumulate_in_single_precision(comm, name):
    dtype = dtype_of(name)
    x = ca.full(Layout.split(5000, comm.size), 1, dtype=dtype, comm=comm)
    assert x.sum().dtype == dtype
    assert float(x.sum()) == float(dtype.type(5000))
    assert float(x.mean()) == 1
    assert float(x.dot(x)) == 5000  # more than either type can count one by one
    assert x.dot(x).dtype == x.norm().dtype == np.float32
    assert float(x.norm(1)) == 5000
    assert float(x.max()) == 1


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bool", "int8", "uint16", "int64"])
def test_extremes(comm, name):
    for axis in [None, 0, 1, (0, 1)]:
        a = values((5, 4), name) - (0 if name in ("bool", "uint16") else 2)
        a = a.astype(name)
        for layout in layouts(a.shape, comm.size):
            x = ca.from_global(a, layout, comm=comm)
            for function in ("min", "max"):
                expected = getattr(a, function)(axis=axis)
                result = getattr(x, function)(axis=axis)
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result.gather() if np.ndim(expected) else result, expected)


@pytest.mark.parametrize("name", ["float32", "bool", "int8", "uint16"])
def test_ranks_without_elements_have_no_part_in_extremes(comm, name):
    dtype = np.dtype(name)
    ends = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (False, True)
    for end in ends if dtype.kind != "f" else (-np.inf, np.inf):
        x = ca.full(Layout.split((comm.size, 2), comm.size, sizes=[comm.size, *[0] * (comm.size - 1)]), end, dtype=name)
        for axis in (None, 0, 1):
            for result in (x.min(axis), x.max(axis)):
                result = result.gather() if axis is not None else result
                np.testing.assert_array_equal(result, np.full(result.shape, end, dtype))


@pytest.mark.filterwarnings("ignore:invalid value")  # of inf - inf
def test_nan_wins(comm):
    for axis in [None, 0, 1]:
        a = values((6, 3))
        a[-1, 0], a[0, 1], a[2, 2] = np.nan, -np.inf, np.inf
        for layout in layouts(a.shape, comm.size):
            x = ca.from_global(a, layout, comm=comm)
            for function in ("min", "max", "sum"):
                expected = getattr(a, function)(axis=axis)
                result = getattr(x, function)(axis=axis)
                np.testing.assert_array_equal(result.gather() if np.ndim(expected) else result, expected)
            assert np.isnan(float(x.norm(np.inf)))
            assert np.isnan(float(x.norm(-np.inf)))


def test_extremes_of_what_has_none(comm):
    with pytest.raises(ValueError, match="no elements"):
        ca.zeros((0, 3)).min()
    with pytest.raises(ValueError, match="no elements"):
        ca.zeros((0, 3)).max(axis=0)
    assert ca.zeros((0, 3)).max(axis=1).shape == (0,)
    with pytest.raises(ValueError, match="no elements"):
        ca.zeros(0).norm(np.inf)
    with pytest.raises(UnsupportedTypeError, match="order"):
        ca.zeros(3, dtype=complex).max()
    with pytest.raises(LayoutError, match="axis"):
        ca.zeros(3).sum(axis=1)
    with pytest.raises(LayoutError, match="axis"):
        ca.zeros((3, 3)).sum(axis=(0, 0))


def test_nothing_adds_up_to_nothing(comm):
    x = ca.zeros(0, dtype=np.float32)
    assert float(x.sum()) == float(x.dot(x)) == float(x.norm()) == float(x.norm(1)) == 0
    with pytest.warns(RuntimeWarning, match="invalid value"):
        assert np.isnan(float(x.mean()))


@pytest.mark.parametrize("name", ["bool", "int16", "float64", "complex64"])
def test_all_and_any(comm, name):
    for axis in [None, 0, 1]:
        for a in (np.zeros((4, 3), name), np.ones((4, 3), name), values((4, 3), "int64").astype(name)):
            for layout in layouts(a.shape, comm.size):
                x = ca.from_global(a, layout, comm=comm)
                for function in ("all", "any"):
                    expected = getattr(a, function)(axis=axis)
                    result = getattr(x, function)(axis=axis)
                    np.testing.assert_array_equal(result.gather() if np.ndim(expected) else result, expected)


@pytest.mark.parametrize("name", [*INEXACT, "int32", "float16"])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_norms(comm, name):
    for order in ORDERS:
        a = values((5, 4), name)
        wide = a.astype(np.float32) if name == "float16" else a
        for layout in layouts(a.shape, comm.size):
            x = ca.from_global(a, layout, comm=comm)
            expected = np.linalg.norm(wide.ravel(), order)
            result = x.norm(order)
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, **tolerance(expected.dtype))
            for axis in (0, 1, -1):
                expected = np.linalg.norm(wide, order, axis)
                result = x.norm(order, axis)
                assert result.dtype == expected.dtype
                np.testing.assert_allclose(result.gather(), expected, **tolerance(expected.dtype))


@pytest.mark.parametrize("order", [np.nan, 2 + 1j, np.complex64(2 + 1j)])
def test_orders_are_real(comm, order):
    with pytest.raises(UnsupportedTypeError, match="must be a real number"):
        ca.zeros(4 * comm.size, comm=comm).norm(order)


@pytest.mark.parametrize("name", [*INEXACT, "int64", "int8", "bool"])
def test_inner_products(comm, name):
    for shape in [(7,), (5, 4), (0,), (1,), (2, 3, 2)]:
        a, b = values(shape, name), values(shape, name, seed=1)
        for layout in layouts(shape, comm.size):
            x, y = ca.from_global(a, layout, comm=comm), ca.from_global(b, layout, comm=comm)
            pairs = [
                (x.vdot(y), np.vdot(a, b)),
                (x.dot(y), np.dot(a.ravel(), b.ravel())),
                (x.vdot(x), np.vdot(a, a).real),
                (x.dot(x), np.dot(a.ravel(), a.ravel())),
            ]
            for result, expected in pairs:
                assert result.ndim == 0
                assert result.dtype == expected.dtype
                np.testing.assert_allclose(result, expected, **tolerance(expected.dtype))
            other = y.astype(np.complex128)
            np.testing.assert_allclose(x.vdot(other), np.vdot(a, b.astype(complex)), **tolerance(name))


def test_a_message_at_most(comm):
    one = 1 if comm.size > 1 else 0
    x = ca.random((6, 4), comm=comm)
    y = ca.random((6, 4), seed=1, comm=comm)
    whole = ca.ones(Layout.replicated(5, comm.size), comm=comm)
    stacked = StackedArray([x, StackedArray([whole, y])])
    for work in (
        lambda: x.dot(y),
        lambda: x.vdot(y),
        x.norm,
        lambda: x.norm(1),
        lambda: x.norm(np.inf),
        x.sum,
        x.max,
        x.mean,
        x.all,
        lambda: x.sum(axis=0),
        lambda: x.norm(2, 0),
        lambda: stacked.dot(stacked),
        stacked.norm,
        lambda: stacked.norm(np.inf),
        stacked.sum,
        lambda: ca.dots((x, y), (x, x), (stacked, stacked), (whole, whole)),
    ):
        with profile.count_messages() as messages:
            work()
        assert messages.total == messages["allreduce"] == one
    for work in (
        lambda: x + y,
        lambda: 2 * x,
        x.copy,
        x.conj,
        lambda: ca.zeros_like(x),
        lambda: ca.axpby(1.0, x, 2.0, y),
        lambda: ca.axpby(1.0, stacked, 2.0, stacked, out=stacked),
        lambda: x.sum(axis=1),
        lambda: x.max(axis=1),
        lambda: x.norm(2, 1),
        lambda: whole.dot(whole),
        whole.sum,
        whole.norm,
        lambda: ca.dots((whole, whole), (whole, whole)),
        lambda: StackedArray([whole, whole]).norm(),
    ):
        with profile.count_messages() as messages:
            work()
        assert messages.total == 0
    with profile.count_messages() as messages:
        ca.dots((x, y), (x, x), (stacked, stacked), (whole, whole))
    assert all(message.elements == 3 for message in messages.records)  # replicated results do not travel


def test_axis_reductions_of_grids_make_no_communicator(comm):
    for layout in layouts((4, 6), comm.size):
        x = ca.ones(layout, comm=comm)
        with profile.count_messages() as messages:
            x.sum(axis=0).sum(), x.sum(axis=1).norm(), x.max(axis=(0, 1))
        assert messages["split"] == messages["metadata"] == 0
        assert messages["allreduce"] <= 5


def test_masks_group_ranks(comm):
    a = values((7, 2))
    for mask in masks(comm.size):
        layout = Layout.split(a.shape, comm.size, mask=mask)
        x = ca.from_global(a, layout, comm=comm)
        np.testing.assert_array_equal(x.gather(), a)
        mine = [r for r in range(comm.size) if layout.mask[r] == layout.mask[comm.rank]]
        part = np.concatenate([a[layout.slices(r)] for r in mine])
        np.testing.assert_allclose(x.dot(x), np.vdot(part, part))
        np.testing.assert_allclose(x.norm(1), np.abs(part).sum())
        np.testing.assert_allclose(x.sum(), part.sum())
        np.testing.assert_allclose(x.sum(axis=1).gather(), a.sum(axis=1))
        columns = x.sum(axis=0)
        assert columns.layout.mask == layout.mask
        np.testing.assert_allclose(columns.local_array, part.sum(axis=0))
        np.testing.assert_allclose(columns.sum(), part.sum())
        if len(part):
            np.testing.assert_allclose(x.mean(), part.mean())
            np.testing.assert_allclose(x.mean(axis=0).local_array, part.mean(axis=0))


@pytest.mark.needs_ranks(4)
def test_masks_of_copies(comm):
    if comm.size != 4:
        pytest.skip("needs a 2 x 2 process grid")
    a = values(5)
    layout = Layout(a.shape, 4, (2, 2), (1,), mask=(0, 0, 1, 1))  # two groups, each with a whole copy
    x = ca.from_global(a, layout, comm=comm)
    np.testing.assert_allclose(x.norm(), np.linalg.norm(a))
    np.testing.assert_allclose(StackedArray([x, x]).norm(), np.sqrt(2) * np.linalg.norm(a))
