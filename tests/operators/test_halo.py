"""The halo operator: forward against padded blocks, adjoint against the transposed matrix, and its messages."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.array import Layout, from_global, random, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag
from collops.operators.halo import Halo
from tests.array.test_halo import HALOS, layouts, padded_block, widths_of


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("halo", HALOS)
def test_forward_and_adjoint(comm, halo, dtype):
    for layout in layouts(comm.size):
        generator = np.random.default_rng(1)
        values = generator.standard_normal(layout.shape).astype(dtype)
        widths = widths_of(halo, layout.ndim)
        op = Halo(layout, [w for pair in widths for w in pair], comm=comm, dtype=dtype)
        assert op.domain is layout and op.widths == widths
        x = from_global(values, layout, comm=comm)
        expected = padded_block(values, layout, comm.rank, widths, "constant")
        out = zeros(op.range, comm=comm, dtype=dtype)
        out.fill(7)
        for given in (None, out):
            result = op.forward(x, given)
            assert given is None or result is given
            assert result.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(result.local_array, expected)
        np.testing.assert_array_equal(result.local_array[op.inner], x.local_array)
        if not layout.is_replicated and layout.process_grid == (comm.size,):
            # Every rank holds its own part of what is summed: of copies, each sums its own.
            back = op.adjoint(result)
            np.testing.assert_allclose(
                back.gather(), values * copies_of(layout, widths), rtol=1e-5 if dtype in ("f4", "c8") else 1e-13
            )
        if layout.mask is None:  # a group's inner products know nothing of the halos from other groups
            op.dottest()


def copies_of(layout, widths):
    """Count in how many extended blocks each element is."""
    counts = np.zeros(layout.shape)
    for rank in range(layout.ranks):
        block = layout.block(rank)
        counts[
            tuple(
                slice(max(0, o - b), max(0, o + n + a))
                for o, n, (b, a) in zip(block.offset, block.shape, widths, strict=True)
            )
        ] += 1
    return counts


def test_between_local_operators(comm):
    """A local product on extended blocks equals the serial one."""
    rows = 4 * comm.size + 1
    op = Halo(rows, 1, comm=comm)
    n = op.range.local_shape(comm.rank)[0]
    smooth = BlockDiag([np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)], comm)
    values = np.random.default_rng(2).standard_normal(rows)
    result = (smooth @ op).forward(from_global(values, op.domain, comm=comm))
    local = result.local_array[op.inner]
    np.testing.assert_allclose(local, np.convolve(values, np.ones(3), "same")[op.domain.slices(comm.rank)])


def test_messages(comm):
    op = Halo((5 * comm.size, 3), (1, 2), comm=comm)
    x, y = random(op.domain, comm=comm), random(op.range, comm=comm)
    for apply, given in ((op.forward, x), (op.adjoint, y)):
        with profile.count_messages() as messages:
            apply(given)
        assert messages.counts() == ({"exchange": 1} if comm.size > 1 else {})
    unsplit = Halo((5 * comm.size, 3), (0, 2), comm=comm)
    with profile.count_messages() as messages:
        unsplit.adjoint(unsplit.forward(x))
    assert messages.total == 0


def test_shape_comm_and_flat(comm):
    op = Halo((6, 2), 1, comm=comm)
    assert op.domain is Layout.split((6, 2), comm.size)
    assert op.flat.dottest()
    assert op.range.shape == (6 + 2 * comm.size, 4)


def test_refused(comm):
    with pytest.raises(InputError, match="halo="):
        Halo((4, 4), (1, 2, 3), comm=comm)
    with pytest.raises(LayoutError, match="ranks"):
        Halo(Layout.split(4, comm.size + 1), 1, comm=comm)
    op = Halo(4, 1, comm=comm, dtype="f4")
    x = random(op.domain, comm=comm, dtype="c8")
    with pytest.raises(UnsupportedTypeError, match="does not fit"):
        op.forward(x, zeros(op.range, comm=comm, dtype="f4"))
    assert op.forward(x).dtype == np.complex64
