"""Layouts and serial operators for the derivatives' tests."""

from __future__ import annotations

import numpy as np

from collops.array import Layout, from_global


def layouts(ranks: int) -> list[Layout]:
    """Any axis, uneven, blocks narrower than the stencil, empty ranks in all places, process grids, copies."""
    found = [
        Layout.split(11, ranks),
        Layout.split(ranks + 5, ranks, sizes=[6, *[1] * (ranks - 1)]),
        Layout.split((7, 5), ranks),
        Layout.split((5, 7), ranks, axis=1),
        Layout.split((5, 3, 4), ranks, axis=1),
        Layout.split((6, 4), ranks, sizes=[*[0] * (ranks - 1), 6]),
        Layout.split((5, 6), ranks, axis=1, sizes=[3, *[0] * (ranks - 2), 3] if ranks > 1 else None),
        Layout.replicated((4, 5), ranks),
    ]
    if ranks % 2 == 0:
        found += [
            Layout.grid((7, 9), (2, ranks // 2)),
            Layout((6, 3, 8), ranks, (ranks // 2, 2), (1, None, 0)),
            Layout((7, 5), ranks, (2, ranks // 2), (1, None)),
        ]
    return found


def values(shape, dtype, seed: int) -> np.ndarray:
    """Random numbers, the same on every rank."""
    generator = np.random.default_rng([seed, *shape])
    found = generator.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        found = found + 1j * generator.standard_normal(shape)
    return found.astype(dtype)


def part(array: np.ndarray, layout: Layout, comm) -> np.ndarray:
    """This rank's part of a global array."""
    return array[layout.slices(comm.rank)]


def distributed(array: np.ndarray, layout: Layout, comm):
    """The array in a layout."""
    return from_global(array, layout, comm=comm)


def assert_same(actual, expected, dtype) -> None:
    """Assert that local arrays agree to a few roundings of their largest element."""
    assert actual.shape == expected.shape
    scale = float(np.abs(expected).max(initial=1.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=16 * np.finfo(dtype).eps * scale)
