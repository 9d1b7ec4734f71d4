"""Arrays with halos, against slices of the padded global array; and what is sent for them."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.array import Layout, from_global, zeros
from collops.array.halo import halo_widths
from collops.errors import InputError


def layouts(ranks: int) -> list[Layout]:
    """Uneven splits, empty ranks, blocks of one row, process grids of two axes in both orders, copies."""
    found = [
        Layout.split(7, ranks),
        Layout.split((5, 4), ranks),
        Layout.split((3, 6), ranks, axis=1),
        Layout.split((2, 3), ranks),
        Layout.split((ranks + 3, 2), ranks, sizes=[4, *[1] * (ranks - 1)]),
        Layout.split((6, 2), ranks, sizes=[*[0] * (ranks - 1), 6]),
        Layout.replicated((3, 2), ranks),
        Layout.split((4, 3), ranks, mask=[rank % 2 for rank in range(ranks)]),
    ]
    if ranks % 2 == 0:
        found += [
            Layout.grid((5, 7), (2, ranks // 2)),
            Layout((4, 5, 3), ranks, (ranks // 2, 2), (1, None, 0)),
            Layout((5, 2), ranks, (2, ranks // 2), (1, None)),
        ]
    return found


HALOS = [0, 1, 3, "uneven"]


def widths_of(halo, ndim):
    """Widths before and after, per axis."""
    return halo_widths([k % 3 for k in range(1, 2 * ndim + 1)] if halo == "uneven" else halo, ndim)


def padded_block(values, layout, rank, widths, mode):
    """Cut the extended block of a rank out of the padded array."""
    padded = np.pad(values, widths, mode=mode)
    block = layout.block(rank)
    return padded[tuple(slice(o, o + n + sum(w)) for o, n, w in zip(block.offset, block.shape, widths, strict=True))]


@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize("halo", HALOS)
def test_blocks_with_their_halos(comm, halo, boundary):
    for layout in layouts(comm.size):
        values = np.random.default_rng(0).standard_normal(layout.shape)
        widths = widths_of(halo, layout.ndim)
        x = from_global(values, layout, comm=comm)
        extended = x.halo([w for pair in widths for w in pair], boundary)
        expected = padded_block(values, layout, comm.rank, widths, "constant" if boundary == "zero" else "wrap")
        np.testing.assert_array_equal(extended.local_array, expected)
        assert extended.layout.local_shape(comm.rank) == expected.shape
        assert extended.layout.mask == layout.mask


@pytest.mark.parametrize(("axis", "exchanges"), [(0, 1), (1, 0)])
def test_one_exchange_where_the_halo_is_split(comm, axis, exchanges):
    x = zeros(Layout.split((3 * comm.size, 4), comm.size), comm=comm)
    widths = [0, 0, 0, 0]
    widths[2 * axis] = widths[2 * axis + 1] = 2
    x.halo(widths)
    with profile.count_messages() as messages:
        x.halo(widths)
    assert messages.counts() == ({"exchange": 1} if exchanges and comm.size > 1 else {})
    if comm.size > 1 and exchanges:
        neighbours = 1 if comm.rank in (0, comm.size - 1) else 2
        assert messages.records[0].elements == neighbours * 2 * 4


def test_corners_come_with_the_same_exchange(comm):
    if comm.size % 2:
        pytest.skip("needs an even number of ranks")
    x = zeros(Layout.grid((4, 2 * comm.size), (2, comm.size // 2)), comm=comm)
    with profile.count_messages() as messages:
        x.halo(1)
    assert messages.counts() == {"exchange": 1}


def test_widths():
    assert halo_widths(2, 2) == ((2, 2), (2, 2))
    assert halo_widths((1, 2), 2) == ((1, 1), (2, 2))
    assert halo_widths((1, 0, 2, 3), 2) == ((1, 0), (2, 3))
    assert halo_widths(np.int64(1), 1) == ((1, 1),)
    for wrong in ((1, 2, 3), -1, (1, -1), ()):
        with pytest.raises(InputError, match="halo="):
            halo_widths(wrong, 2)


def test_other_boundaries_are_refused(comm):
    with pytest.raises(InputError, match="periodic"):
        zeros(4, comm=comm).halo(1, "reflect")
