"""Identity, Diagonal, Restriction, Sum, Transpose and Zero against serial PyLops, in any layout."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.basic import Diagonal, Identity, Sum, Transpose, Zero
from collops.operators.restriction import Restriction

from .problems import assert_close, vector

DTYPES = ["f4", "f8", "c8", "c16"]
SHAPE = (7, 5, 2)


def layouts(shape, ranks) -> list[Layout]:
    """Return layouts split along each axis, unevenly, over a grid of processes, and not at all."""
    uneven = [shape[0]] + [0] * (ranks - 1)
    grids = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2)}
    grid = grids.get(ranks, (ranks, 1))
    return [
        Layout.split(shape, ranks),
        Layout.split(shape, ranks, -1),
        Layout.split(shape, ranks, sizes=uneven[::-1]),
        Layout.grid(shape, (*grid, *(1,) * (len(shape) - 2))),
        Layout(shape, ranks, grid, (None, 1, *(None,) * (len(shape) - 2))),
        Layout.replicated(shape, ranks),
    ]


def check(op, serial, comm, dtype, forward: int = 0, adjoint: int = 0, kind: str = "allreduce") -> None:
    """Compare an operator with PyLops', both ways, with and without out; run its dot test; count its messages."""
    x, y = vector(op.domain.size, dtype, 1), vector(op.range.size, dtype, 2)
    xd = from_global(x.reshape(op.domain.shape), op.domain, comm=comm)
    yd = from_global(y.reshape(op.range.shape), op.range, comm=comm)
    assert op.shape == serial.shape
    for apply, given, values, back, layout, sends in (
        (op.forward, xd, x, serial.matvec, op.range, forward),
        (op.adjoint, yd, y, serial.rmatvec, op.domain, adjoint),
    ):
        for out in (None, from_global(np.full(layout.shape, np.nan, dtype), layout, comm=comm)):
            with profile.count_messages() as sent:
                result = apply(given, out)
            assert sent.total == sent[kind] <= sends
            assert sends == 0 or comm.size == 1 or kind != "allreduce" or sent.total == sends
            assert out is None or result is out
            assert result.layout is layout and result.dtype == np.dtype(dtype)
            assert_close(result.gather().ravel(), back(values), dtype)
    assert op.dottest()


@pytest.mark.parametrize("dtype", DTYPES)
def test_identity(comm, dtype):
    for layout in layouts(SHAPE, comm.size):
        check(Identity(layout, comm=comm, dtype=dtype), pylops.Identity(layout.size, dtype=dtype), comm, dtype)
        for other in ((4, 5, 1), (9, 6, 2), (0, 5, 2)):
            serial = pylops.Identity(other, SHAPE, dtype=dtype)
            check(Identity(other, layout, comm=comm, dtype=dtype), serial, comm, dtype)
            check(
                Identity(layout, other, comm=comm, dtype=dtype), pylops.Identity(SHAPE, other, dtype=dtype), comm, dtype
            )
            cut = Identity(other, layout, comm=comm).range
            assert Identity(cut, layout, comm=comm).range is cut
    for data, model in ((4, 9), (9, 4), (6, 6)):
        op = Identity(data, model, comm=comm, dtype=dtype)
        assert Layout.split(max(data, model), comm.size) in (op.domain, op.range)
        check(op, pylops.Identity(data, model, dtype=dtype), comm, dtype)


def test_identity_refuses_what_it_cannot_do(comm):
    with pytest.raises(LayoutError, match="at least as large"):
        Identity((3, 4), (4, 3), comm=comm)
    with pytest.raises(LayoutError, match="at least as large"):
        Identity((3, 4), Layout.split((4, 3), comm.size), comm=comm)
    if comm.size > 1:
        with pytest.raises(LayoutError, match="redistribute"):
            Identity(Layout.split((6, 6), comm.size, 0), Layout.split((6, 6), comm.size, 1), comm=comm)
        with pytest.raises(LayoutError, match="does not fit a communicator"):
            Identity(Layout.split(6, comm.size + 1), comm=comm)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero(comm, dtype):
    for layout in layouts(SHAPE, comm.size):
        check(Zero(layout, comm=comm, dtype=dtype), pylops.Zero(layout.size, dtype=dtype), comm, dtype)
        check(Zero((3, 4), layout, comm=comm, dtype=dtype), pylops.Zero(12, layout.size, dtype=dtype), comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_diagonal(comm, dtype):
    diag = vector(70, dtype, 5).reshape(SHAPE)
    serial = pylops.Diagonal(diag.ravel(), dtype=dtype)
    for layout in layouts(SHAPE, comm.size):
        check(Diagonal(diag, layout, comm=comm), serial, comm, dtype)
        check(Diagonal(from_global(diag, layout, comm=comm)), serial, comm, dtype)
        copies = from_global(diag, Layout.replicated(SHAPE, comm.size), comm=comm)
        check(Diagonal(copies, layout), serial, comm, dtype)
        for axis in range(3):
            along = vector(SHAPE[axis], dtype, 6)
            expected = pylops.Diagonal(along, SHAPE, axis=axis, dtype=dtype)
            check(Diagonal(along, layout, axis, comm=comm), expected, comm, dtype)
    split = from_global(vector(7, dtype, 6), comm=comm)
    expected = pylops.Diagonal(vector(7, dtype, 6), SHAPE, axis=0, dtype=dtype)
    check(Diagonal(split, SHAPE, axis=0), expected, comm, dtype)
    check(Diagonal(diag[:, 0, 0], comm=comm), pylops.Diagonal(diag[:, 0, 0].copy(), dtype=dtype), comm, dtype)
    assert Diagonal([1, 2], dtype=dtype, comm=comm).dtype == np.dtype(dtype)


def test_diagonal_refuses_what_does_not_fit(comm):
    with pytest.raises(LayoutError, match="fits neither"):
        Diagonal(np.ones(4), (3, 5), comm=comm)
    with pytest.raises(UnsupportedTypeError, match="complex128"):
        Diagonal(np.ones(4) * 1j, dtype="f8", comm=comm)
    with pytest.raises(UnsupportedTypeError, match="expected an array"):
        Diagonal("diagonal", comm=comm)
    if comm.size > 1:
        with pytest.raises(LayoutError, match="redistribute"):
            Diagonal(from_global(np.ones((4, 6)), Layout.split((4, 6), comm.size, 1), comm=comm), (4, 6))
    op = Diagonal(np.ones(4) * 1j, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(zeros(4, comm=comm), zeros(4, comm=comm))


INDICES = {
    "sorted": [0, 2, 3, 6],
    "every second": [1, 3, 5],
    "repeated": [0, 2, 2, 2, 6, -1],
    "last": [6],
    "none": [],
}
UNSORTED = {"backwards": [6, 5, 4, 2, 0], "mixed": [3, 0, 6, 3, 1, -1, 2, 2, 0, 5, 4]}


@pytest.mark.parametrize(("name", "dtype"), list(zip(INDICES, [*DTYPES, "f8"], strict=True)))
def test_restriction(comm, name, dtype):
    for layout in layouts(SHAPE, comm.size):
        for axis, extent in enumerate(SHAPE):
            indices = np.asarray([index for index in INDICES[name] if index < extent], int)
            if not len(indices):
                op = Restriction(layout, indices, axis, comm=comm, dtype=dtype)
                assert op.range.shape[axis] == 0 and op.range.axes == layout.axes
                assert not op.adjoint(random(op.range, comm=comm, dtype=dtype)).local_array.any()
                continue
            serial = pylops.Restriction(SHAPE, indices, axis=axis, dtype=dtype)
            check(Restriction(layout, indices, axis, comm=comm, dtype=dtype), serial, comm, dtype)
            op = Restriction(layout, indices, axis, rebalance=True, comm=comm, dtype=dtype)
            check(op, serial, comm, dtype, 1, 1, "exchange")
            held = op.range.sizes[axis]
            assert max(held) - min(held) <= 1


@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize("name", UNSORTED)
def test_restriction_in_any_order(comm, name, dtype):
    for layout in layouts(SHAPE, comm.size):
        serial = pylops.Restriction(SHAPE, UNSORTED[name], axis=0, dtype=dtype)
        op = Restriction(layout, UNSORTED[name], 0, comm=comm, dtype=dtype)
        sends = int(layout.axes[0] is not None)
        check(op, serial, comm, dtype, sends, sends, "exchange")
    assert Restriction(8, [7, 0, 0], comm=comm).repeated
    assert not Restriction(8, [7, 0], comm=comm).repeated


def test_restriction_refuses_what_is_not_there(comm):
    for wrong in ([5], [-6], [[1, 2]], [0.5], np.array([2**64 - 1], np.uint64)):
        with pytest.raises(InputError, match="iava"):
            Restriction(5, wrong, comm=comm)
    op = Restriction(5, [1, 3, 4], comm=comm, dtype="c16")
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.adjoint(random(op.range, comm=comm, dtype="c16"), zeros(5, comm=comm))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum(comm, dtype):
    for layout in layouts(SHAPE, comm.size):
        for axis in (0, 1, 2, -1):
            serial = pylops.Sum(SHAPE, axis=axis % 3, dtype=dtype)
            sends = int(layout.axes[axis] is not None)
            op = Sum(layout, axis, comm=comm, dtype=dtype)
            assert op.range is layout.drop(axis)
            check(op, serial, comm, dtype, sends)
            op.forward(random(layout, comm=comm, dtype=dtype)).check_replicated()
    with pytest.raises(LayoutError, match="two axes"):
        Sum(5, comm=comm)
    op = Sum((5, 3), 0, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(random(op.domain, comm=comm, dtype="c16"), zeros(op.range, comm=comm))


@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(comm, dtype):
    for layout in layouts(SHAPE, comm.size):
        for axes in ((2, 0, 1), (0, 2, 1), (-1, 1, 0)):
            serial = pylops.Transpose(SHAPE, tuple(axis % 3 for axis in axes), dtype=dtype)
            op = Transpose(layout, axes, comm=comm, dtype=dtype)
            assert op.range.axes == tuple(layout.axes[axis] for axis in axes)
            check(op, serial, comm, dtype)
    for wrong in ((0, 0, 1), (0, 1), (0, 1, 3)):
        with pytest.raises(InputError, match="each of 3 axes"):
            Transpose(SHAPE, wrong, comm=comm)


def test_defaults_are_the_world_and_its_first_axis(comm):
    for op in (Identity((5, 4)), Zero((5, 4)), Diagonal(np.ones((5, 4))), Transpose((5, 4), (1, 0))):
        assert op.comm is comm and op.domain is Layout.split((5, 4), comm.size)
    for op in (Sum((5, 4), 0), Restriction((5, 4), [1])):
        assert op.comm is comm and op.domain is Layout.split((5, 4), comm.size)
