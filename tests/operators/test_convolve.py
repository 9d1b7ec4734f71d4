"""Non-stationary convolution against serial PyLops: any axis, split or not, with uneven and empty blocks."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import InputError, UnsupportedTypeError
from collops.operators import NonStationaryConvolve1D
from collops.operators.convolve import blocks

from .problems import assert_close, matrix, vector

DTYPES = ["f4", "f8", "c8", "c16"]
SHAPE = (23, 4, 19)


def layouts(ranks: int) -> list[Layout]:
    uneven = [9] + [0] * (ranks - 2) + [14] if ranks > 1 else [23]
    return [
        Layout.split(SHAPE, ranks),
        Layout.split(SHAPE, ranks, sizes=uneven),
        Layout.split(SHAPE, ranks, -1),
        Layout.grid(SHAPE, (2, 1, ranks // 2) if ranks % 2 == 0 else (1, 1, ranks)),
        Layout.replicated(SHAPE, ranks),
    ]


def expected(dims, hs, ih, axis, dtype, values, adjoint):
    """Return what PyLops computes; its adjoint is the transpose, whose conjugate is the adjoint of conjugate data."""
    serial = pylops.signalprocessing.NonStationaryConvolve1D(dims, hs, ih, axis=axis, dtype=dtype)
    if adjoint:
        return serial.rmatvec(values.conj().ravel()).conj().reshape(dims)
    return serial.matvec(values.ravel()).reshape(dims)


def check(layout, hs, ih, axis, dtype, comm) -> None:
    op = NonStationaryConvolve1D(layout, hs, ih, axis, comm=comm, dtype=dtype)
    assert op.domain is op.range
    dims = op.domain.shape
    values = vector(op.domain.size, dtype, 4).reshape(dims)
    x = from_global(values, op.domain, comm=comm)
    for apply, adjoint in ((op.forward, False), (op.adjoint, True)):
        wanted = expected(dims, hs, ih, axis, dtype, values, adjoint)
        for out in (None, from_global(np.full(dims, np.nan, dtype), op.domain, comm=comm)):
            result = apply(x, out)
            assert out is None or result is out
            assert result.layout is op.domain and result.dtype == np.dtype(dtype)
            assert_close(result.gather(), wanted, dtype)
    assert op.dottest()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_axis_of_any_layout(comm, dtype):
    hs = matrix(3, 5, dtype, 1)
    for layout in layouts(comm.size):
        for axis, ih in ((0, (3, 9, 15)), (1, (0, 1, 2)), (-1, (8, 11, 14))):
            check(layout, hs, ih, axis, dtype, comm)


@pytest.mark.parametrize("extent", [1, 31, 32, 33, 150])
@pytest.mark.parametrize("taps", [1, 3, 41])
def test_filters_shorter_and_longer_than_the_axis(comm, taps, extent):
    ih = sorted({0, extent // 3, 2 * (extent // 3)})
    check(extent, matrix(len(ih), taps, "f8", 1), ih, 0, "f8", comm) if len(ih) > 1 else None
    check((extent, 2), matrix(2, taps, "c8", 1), (0, max(1, extent // 2)), 0, "c8", comm) if extent > 1 else None


def test_matrices_that_are_not_kept(comm, monkeypatch):
    monkeypatch.setattr(blocks, "_MAX_KEPT", 0)
    monkeypatch.setattr(blocks, "_MAX_GROUP", 40000)
    for dims in ((300,), (150, 3), (2, 150)):
        axis = int(np.argmax(dims))
        check(dims, matrix(4, 9, "f8", 1), (20, 50, 80, 110), axis, "f8", comm)


def test_a_single_filter_is_an_ordinary_convolution(comm):
    x, h = vector(20, "f8", 1), vector(7, "f8", 2)
    op = NonStationaryConvolve1D(20, h[None], [4], comm=comm)
    assert_close(op.forward(from_global(x, comm=comm)).gather(), np.convolve(x, h, "same"))
    assert op.dottest()


def test_data_of_other_types(comm):
    hs, ih = matrix(3, 5, "f4", 1), (2, 6, 10)
    op = NonStationaryConvolve1D((17, 3), hs, ih, 0, comm=comm, dtype="f4")
    for dtype in ("c8", "f8", "c16"):
        values = matrix(17, 3, dtype, 2)
        result = op.forward(from_global(values, comm=comm))
        assert result.dtype == np.result_type("f4", dtype)
        assert_close(result.gather(), expected((17, 3), hs, ih, 0, dtype, values, False), "f4")
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(random((17, 3), comm=comm, dtype="c8"), zeros((17, 3), comm=comm, dtype="f4"))
    narrow = op.forward(from_global(values, comm=comm), zeros((17, 3), comm=comm, dtype="c8"))
    assert_close(narrow.gather(), expected((17, 3), hs, ih, 0, dtype, values, False), "f4")


def test_messages(comm):
    hs, ih = matrix(3, 5, "f8", 1), (3, 9, 15)
    for layout, sends in ((Layout.split(SHAPE, comm.size), 1), (Layout.split(SHAPE, comm.size, -1), 0)):
        op = NonStationaryConvolve1D(layout, hs, ih, 0, comm=comm)
        x = random(layout, comm=comm)
        for apply in (op.forward, op.adjoint):
            with profile.count_messages() as sent:
                apply(x)
            assert sent.total == sent["exchange"] == (sends if comm.size > 1 else 0)
            neighbours = (comm.rank > 0) + (comm.rank < comm.size - 1)
            assert all(message.elements == neighbours * 2 * 4 * 19 for message in sent.records)


def test_what_cannot_be_done_is_refused(comm):
    def make(hs, ih, **options):
        NonStationaryConvolve1D(20, hs, ih, comm=comm, **options)

    with pytest.raises(InputError, match="odd number of taps"):
        make(np.ones((2, 4)), (2, 6))
    with pytest.raises(InputError, match="regularly spaced"):
        make(np.ones((3, 3)), (2, 6, 11))
    with pytest.raises(InputError, match="regularly spaced"):
        make(np.ones((2, 3)), (6, 2))
    with pytest.raises(InputError, match="20 samples"):
        make(np.ones((2, 3)), (10, 20))
    with pytest.raises(InputError, match="one integer for each"):
        make(np.ones((2, 3)), (1, 2, 3))
    with pytest.raises(UnsupportedTypeError, match="complex"):
        make(np.ones((2, 3)) * 1j, (1, 2))
