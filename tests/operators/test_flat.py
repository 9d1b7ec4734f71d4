"""Operators on ravelled arrays: the same values through views, in stacks beside operators whose layouts are flat."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

from collops import profile
from collops.array import Layout, StackedArray, StackedLayout, from_global, zeros
from collops.errors import LayoutError
from collops.operators import (
    BlockDiag,
    FirstDerivative,
    Laplacian,
    LinearOperator,
    StackedHStack,
    StackedVStack,
    VStack,
)

from .problems import assert_close, blocks, joined, matrix, vector


class Scale(LinearOperator):
    """Two times the array, in any layout; remembers the memory that it was given."""

    def __init__(self, layout, comm, dtype="f8"):
        super().__init__(layout, layout, dtype, comm)
        self.seen = None

    def _forward(self, x, out):
        self.seen = x.local_array, None if out is None else out.local_array
        out = self._new(self.range, x) if out is None else out
        np.multiply(x.local_array, 2, out=out.local_array)
        return out

    _adjoint = _forward


@pytest.mark.parametrize("shape", [(7, 3), (2, 4), (5, 2, 3)])
def test_same_values_through_views(comm, shape):
    layout = Layout.split(shape, comm.size)
    op = Scale(layout, comm)
    assert op.flat.domain is op.flat.range is layout.reshape(layout.size)
    x = from_global(vector(layout.size, "f8", 0), op.flat.domain, comm=comm)
    out = zeros(op.flat.range, comm=comm)
    with profile.count_messages() as messages:
        for apply in (op.flat.forward, op.flat.adjoint):
            assert apply(x, out) is out
            for given, shown in zip(op.seen, (x, out), strict=True):
                assert given.shape == layout.local_shape(comm.rank)
                assert given.size == 0 or np.shares_memory(given, shown.local_array)
            fresh = apply(x)
            assert fresh.layout is op.flat.range
            np.testing.assert_array_equal(fresh.local_array, 2 * x.local_array)
            np.testing.assert_array_equal(out.local_array, 2 * x.local_array)
    assert messages.total == 0
    assert op.flat.dottest()


def test_flat_of_flat_is_itself(comm):
    op = Scale(Layout.split(9, comm.size), comm)
    assert op.flat is op
    image = Scale(Layout.split((4, 3), comm.size), comm).flat
    assert image.flat is image


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize("shape", [(7, 3), (2, 4)])
def test_derivatives_add_to_what_stands_before_them(comm, shape, dtype):
    """Flat derivatives behind another operator in a stack, both ways, beside their matrices."""
    layout = Layout.split(shape, comm.size)
    parts = [Scale(layout, comm, dtype).flat, Laplacian(layout, comm=comm, dtype=dtype).flat]
    parts.append(FirstDerivative(layout, edge=True, comm=comm, dtype=dtype).flat)
    serial = [pylops.Laplacian(shape, dtype=dtype), pylops.FirstDerivative(shape, axis=0, edge=True, dtype=dtype)]
    matrices = [2 * np.eye(layout.size), *[op.todense() for op in serial]]
    vectors = [vector(layout.size, dtype, seed) for seed in range(len(parts))]
    given = StackedArray([from_global(x, parts[0].domain, comm=comm) for x in vectors])
    over, beside = StackedVStack(parts), StackedHStack(parts)
    for _ in range(2):  # into memory that has been used
        expected = sum(matrix.conj().T @ x for matrix, x in zip(matrices, vectors, strict=True))
        assert_close(over.adjoint(given).gather(), expected, dtype)
        assert_close(beside.forward(given).gather(), sum(m @ x for m, x in zip(matrices, vectors, strict=True)), dtype)
    assert over.dottest()
    assert beside.dottest()


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_beside_flat_operators(comm, dtype):
    every = blocks(comm, 6, dtype)
    whole = np.vstack(joined(every))
    images, vectors = VStack(every[comm.rank], comm, dims=(2, 3)), VStack(every[comm.rank], comm)
    stack = StackedVStack([images.flat, vectors])
    x = from_global(vector(6, dtype, 1), stack.domain, comm=comm)
    for part in stack.forward(x).arrays:
        assert_close(part.gather(), whole @ vector(6, dtype, 1), dtype)
    assert stack.dottest()


def test_stacked_arrays_are_ravelled_part_by_part(comm):
    whole = matrix(8, 6, "f8", 3)
    wide = VStack([whole] if comm.rank == 0 else [], comm, dims=(2, 3))
    op = StackedHStack([wide, wide])
    assert op.flat.domain is StackedLayout([Layout.replicated(6, comm.size)] * 2)
    assert op.flat.range is op.range
    y = from_global(vector(8, "f8", 4), op.range, comm=comm)
    for out in (None, zeros(op.flat.domain, comm=comm)):
        result = op.flat.adjoint(y, out)
        assert out is None or result is out
        for part in result.arrays:
            assert_close(part.gather(), whole.T @ vector(8, "f8", 4))
    assert op.flat.dottest()


def test_what_cannot_be_ravelled(comm):
    op = Scale(Layout.split((4, 3), comm.size, axis=1), comm)
    if comm.size == 1:
        assert op.flat.shape == op.shape
        return
    with pytest.raises(LayoutError, match="without moving data"):
        _ = op.flat


def test_captured_as_the_operator_is(comm):
    op = Scale(Layout.split((4, 3), comm.size), comm)
    assert op.flat.capturable
    op.capturable = False
    assert not op.flat.capturable
    assert BlockDiag([np.eye(2)], comm).flat.capturable
