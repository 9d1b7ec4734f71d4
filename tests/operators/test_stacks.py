"""Stacks of local operators against the one matrix that they are, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
import scipy.linalg

from collops import profile
from collops.array import Layout, StackedArray, StackedLayout, from_global, random, zeros
from collops.comm import alone
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import (
    FFT,
    BlockDiag,
    HStack,
    StackedBlockDiag,
    StackedHStack,
    StackedVStack,
    VStack,
)

from .problems import assert_close, blocks, joined, matrix, vector

DTYPES = ["f4", "f8", "c8", "c16"]
COLUMNS = 6


def check(op, whole, comm, dtype) -> None:
    """Compare an operator with its matrix, both ways, with and without out, and run its dot test."""
    x, y = vector(op.domain.size, dtype, 1), vector(op.range.size, dtype, 2)
    xd, yd = (
        from_global(x.reshape(op.domain.shape), op.domain, comm=comm),
        from_global(y.reshape(op.range.shape), op.range, comm=comm),
    )
    for out in (None, zeros(op.range, comm=comm, dtype=dtype)):
        result = op.forward(xd, out)
        assert out is None or result is out
        assert result.layout is op.range and result.dtype == np.dtype(dtype)
        assert_close(result.gather().ravel(), whole @ x, dtype)
    for out in (None, zeros(op.domain, comm=comm, dtype=dtype)):
        result = op.adjoint(yd, out)
        assert out is None or result is out
        assert result.layout is op.domain and result.dtype == np.dtype(dtype)
        assert_close(result.gather().ravel(), whole.conj().T @ y, dtype)
    assert op.shape == whole.shape
    assert op.dottest()
    if np.dtype(dtype).kind == "f":
        assert op.dottest(complex_vectors=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vstack(comm, dtype):
    every = blocks(comm, COLUMNS, dtype)
    op = VStack([pylops.MatrixMult(block, dtype=dtype) for block in every[comm.rank]], comm)
    check(op, np.vstack(joined(every)), comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hstack(comm, dtype):
    every = [[block.T.copy() for block in entries] for entries in blocks(comm, COLUMNS, dtype)]
    op = HStack(every[comm.rank], comm)
    check(op, np.hstack(joined(every)), comm, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_block_diag(comm, dtype):
    every = blocks(comm, COLUMNS, dtype)
    op = BlockDiag([pylops.MatrixMult(block, dtype=dtype) for block in every[comm.rank]], comm)
    check(op, scipy.linalg.block_diag(*joined(every)), comm, dtype)


def test_block_diag_of_one_rank_only(comm):
    ops = [matrix(3, 4, "f8", 0)] if comm.rank == comm.size - 1 else []
    check(BlockDiag(ops, comm), matrix(3, 4, "f8", 0), comm, "f8")


def test_images_keep_their_shape(comm):
    every = blocks(comm, 6, "f8")
    whole = np.vstack(joined(every))
    op = VStack(every[comm.rank], comm, dims=(2, 3))
    assert op.domain is Layout.replicated((2, 3), comm.size)
    check(op, whole, comm, "f8")
    check(HStack([block.T for block in every[comm.rank]], comm, dims=(3, 2)), whole.T, comm, "f8")


def test_messages(comm):
    every = blocks(comm, COLUMNS, "f8")
    allreduce = 1 if comm.size > 1 else 0
    vstack, hstack = VStack(every[comm.rank], comm), HStack([block.T for block in every[comm.rank]], comm)
    diagonal = BlockDiag(every[comm.rank], comm)
    for op, forward, adjoint in ((vstack, 0, allreduce), (hstack, allreduce, 0), (diagonal, 0, 0)):
        x, y = random(op.domain, comm=comm), random(op.range, comm=comm)
        with profile.count_messages() as sent:
            op.forward(x)
        assert sent.total == sent["allreduce"] == forward
        with profile.count_messages() as sent:
            op.adjoint(y)
        assert sent.total == sent["allreduce"] == adjoint
        elements = op.range.size if forward else op.domain.size
        assert all(message.elements == elements for message in sent.records)


def test_stacks_of_operators_send_the_messages_of_their_parts(comm):
    every = blocks(comm, COLUMNS, "f8")
    v, h = VStack(every[comm.rank], comm), HStack([block.T for block in every[comm.rank]], comm)
    for op, forward, adjoint in (
        (StackedVStack([v, 2.0 * v]), 0, 2),
        (StackedHStack([h, 2.0 * h]), 2, 0),
        (StackedBlockDiag([v, h]), 1, 1),
    ):
        x, y = random(op.domain, comm=comm), random(op.range, comm=comm)
        for apply, operand, expected in ((op.forward, x, forward), (op.adjoint, y, adjoint)):
            with profile.count_messages() as sent:
                apply(operand)
            assert sent.total == sent["allreduce"] == (expected if comm.size > 1 else 0)


def test_masks_keep_groups_apart(comm):
    mask = [rank // 2 for rank in range(comm.size)]
    mine = matrix(3 + comm.rank, 4, "f8", comm.rank)
    op = VStack([mine], comm, mask=mask)
    members = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    whole = np.vstack([matrix(3 + rank, 4, "f8", rank) for rank in members])
    local = vector(3 + comm.rank, "f8", comm.rank)
    y = zeros(op.range, comm=comm)
    y.local_array[...] = local
    with profile.count_messages() as sent:
        x = op.adjoint(y)
    assert sent["split"] == 0 and sent.total == sent["allreduce"]
    assert_close(x.local_array, whole.T @ np.concatenate([vector(3 + rank, "f8", rank) for rank in members]))


def test_stacked_forms(comm):
    every = blocks(comm, COLUMNS, "f8")
    whole = np.vstack(joined(every))
    a = VStack(every[comm.rank], comm)
    b = VStack([2 * block for block in every[comm.rank]], comm)
    c = HStack([block.T for block in every[comm.rank]], comm)
    x = vector(COLUMNS, "f8", 3)
    y = vector(len(whole), "f8", 4)
    xd, yd = from_global(x, a.domain, comm=comm), from_global(y, a.range, comm=comm)

    vertical = StackedVStack([a, b])
    assert vertical.range is StackedLayout([a.range, b.range])
    data = vertical.forward(xd)
    assert_close(data.arrays[0].gather(), whole @ x)
    assert_close(data.arrays[1].gather(), 2 * (whole @ x))
    assert_close(vertical.adjoint(data).gather(), 5 * whole.T @ (whole @ x))
    assert vertical.dottest()

    horizontal = StackedHStack([c, c])
    assert_close(horizontal.forward(StackedArray([yd, 3 * yd])).gather(), 4 * whole.T @ y)
    assert_close(horizontal.adjoint(xd).arrays[1].gather(), whole @ x)
    assert horizontal.dottest()

    diagonal = StackedBlockDiag([a, c])
    result = diagonal.forward(StackedArray([xd, yd]))
    assert_close(result.arrays[0].gather(), whole @ x)
    assert_close(result.arrays[1].gather(), whole.T @ y)
    assert diagonal.dottest()


@pytest.mark.parametrize("stack", [BlockDiag, VStack, HStack])
@pytest.mark.parametrize(
    "make",
    [
        lambda: pylops.signalprocessing.FFT(6, real=True),
        lambda: pylops.Imag(4, dtype="complex128"),
        lambda: FFT(6, real=True, comm=alone()),
    ],
)
def test_what_takes_real_parts_is_linear_over_the_reals(comm, stack, make):
    """A complex multiple is applied before the adjoint takes the real part."""
    op = stack([make()] if comm.rank == 0 else [pylops.MatrixMult(np.eye(*make().shape))], comm)
    assert not op.clinear
    scaled = (1 + 2j) * op
    assert scaled.dottest() and scaled.conj().dottest() and (op + scaled).H.dottest()
    y = from_global(vector(op.range.size, "c16", 1), op.range, comm=comm)
    assert_close(scaled.adjoint(y).gather(), op.adjoint((1 - 2j) * y).gather())


def test_stacks_nest(comm):
    every = blocks(comm, COLUMNS, "c16")
    whole = np.vstack(joined(every))
    a = VStack(every[comm.rank], comm)
    inner = StackedVStack([a, a * 2])
    outer = StackedVStack([inner, a.conj()])
    assert outer.range is StackedLayout([StackedLayout([a.range, a.range]), a.range])
    assert outer.dottest()
    x = vector(COLUMNS, "c16", 5)
    data = outer.forward(from_global(x, a.domain, comm=comm))
    assert_close(data.arrays[0].arrays[1].gather(), 2 * whole @ x)
    assert_close(data.arrays[1].gather(), whole.conj() @ x)
    normal = outer.H @ outer
    expected = 5 * whole.conj().T @ (whole @ x) + whole.T @ (whole.conj() @ x)
    assert_close(normal.forward(from_global(x, a.domain, comm=comm)).gather(), expected, factor=10)


def test_errors_are_the_same_on_every_rank(comm):
    odd = 5 if comm.rank == comm.size - 1 else 4
    if comm.size > 1:
        with pytest.raises(LayoutError, match="one number of columns, not 4, 5"):
            VStack([np.ones((2, odd))], comm)
        with pytest.raises(LayoutError, match="one number of rows, not 4, 5"):
            HStack([np.ones((odd, 2))], comm)
    with pytest.raises(InputError, match="no rank has a local operator"):
        BlockDiag([], comm)
    with pytest.raises(UnsupportedTypeError, match="not a local operator"):
        VStack([object()] if comm.rank == 0 else [np.ones((2, 4))], comm)
    with pytest.raises(LayoutError, match="two axes"):
        VStack([np.ones(3)] if comm.rank == 0 else [], comm)
    with pytest.raises(LayoutError, match="dims"):
        VStack([np.ones((2, 4))], comm, dims=(3, 2))
    op = VStack([np.ones((2, 4))], comm)
    if comm.size > 1:
        with pytest.raises(UnsupportedTypeError, match="distributed operators"):
            VStack([op], comm)
    with pytest.raises(UnsupportedTypeError, match="VStack"):
        StackedVStack([op, np.ones((2, 4))])  # type: ignore[list-item]
    with pytest.raises(LayoutError, match="one domain"):
        StackedVStack([op, VStack([np.ones((2, 3))], comm)])
    with pytest.raises(InputError, match="at least one"):
        StackedBlockDiag([])


def test_wrong_operands_are_refused(comm):
    op = VStack([np.ones((2, 4))], comm)
    x = zeros(op.domain, comm=comm)
    with pytest.raises(LayoutError, match="different numbers of elements"):
        op.forward(zeros(Layout.replicated(5, comm.size), comm=comm))
    with pytest.raises(LayoutError, match="out is an array"):
        op.forward(x, zeros(Layout.replicated(5, comm.size), comm=comm))
    with pytest.raises(UnsupportedTypeError, match="from_global"):
        op.forward(np.ones(4))
    square = BlockDiag([np.eye(3)], comm)
    y = zeros(square.domain, comm=comm)
    for same in (y, y.reshape(y.size)):
        with pytest.raises(InputError, match="in place"):
            square.forward(y, same)


def test_strided_input(comm):
    op = BlockDiag([matrix(3, 3, "f8", comm.rank)], comm)
    wide = np.arange(6.0)
    x = zeros(op.domain, comm=comm)
    x.local_array = wide[::2]
    assert_close(op.forward(x).local_array, matrix(3, 3, "f8", comm.rank) @ wide[::2])
    with pytest.raises(LayoutError, match="contiguous"):
        op.forward(zeros(op.domain, comm=comm), x)
    x.local_array = np.zeros(3)
    x.local_array.flags.writeable = False
    with pytest.raises(InputError, match="read-only array"):
        op.forward(zeros(op.domain, comm=comm), x)


@pytest.mark.parametrize("kind", ["f4", "f8", "c8"])
def test_a_shared_sum_of_results_of_another_dtype(comm, kind):
    """An operator of single precision may compute in double precision; the ranks add up what fits into the result."""

    class Rounded:
        """A matrix that returns its results in dtype `kind`."""

        def __init__(self, dense):
            self.dense, self.shape, self.dtype = dense, dense.shape, np.dtype("c8" if kind == "c8" else "f4")

        def matvec(self, x):
            return (self.dense @ x).astype(kind)

        def rmatvec(self, y):
            return (self.dense.conj().T @ y).astype(kind)

    parts = [np.arange(1.0, 1 + 3 * (2 + rank)).reshape(2 + rank, 3) for rank in range(comm.size)]
    A = VStack([Rounded(parts[comm.rank])], comm=comm)
    whole, y = np.vstack(parts), np.arange(1.0, 1 + A.shape[0])
    data = from_global(y.astype(A.dtype), A.range)
    for result in (A.H @ data, A.adjoint(data, zeros(A.domain, comm=comm, dtype=A.dtype))):
        assert result.dtype == A.dtype and result.local_array.dtype == A.dtype
        np.testing.assert_allclose(result.local_array, whole.T @ y, rtol=1e-6)
