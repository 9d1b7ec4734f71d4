"""Derivatives on a staggered grid, and the recursions of memory variables in layers: what its operators share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.stencil import staggered_derivative
from collops.seismic.waves.steps.host import HostSteps


class Recursion(NamedTuple):
    """Coefficients of a memory variable, which vary along an axis, and the first of its points in an array."""

    axis: int
    a: np.ndarray
    b: np.ndarray
    start: tuple[int, ...]


class Layer(NamedTuple):
    """A layer across an axis, with the recursions at half points of a flux and at points of the tile."""

    axis: int
    half: Recursion
    full: Recursion


class StaggeredSteps(HostSteps):
    """The parts of steps on a staggered grid, in NumPy.

    Parameters
    ----------
    tile : Tile
        The tile.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.
    """

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype) -> None:
        super().__init__(tile, dtype)
        self._slabs, self._half = slabs, tile.grid.order // 2
        coefficients = staggered_derivative(tile.grid.order)
        spacings = zip(tile.axes, tile.grid.spacing, strict=True)
        self._weights = {axis: (coefficients / h).astype(dtype) for axis, h in spacings}
        self._layers = [self._layer(slab) for slab in slabs]

    def _difference(self, x: LocalArray, start: Sequence[int], shape: Sequence[int], axis: int) -> LocalArray:
        """Return the staggered derivative; the n-th result is between the elements start + n - 1 and start + n."""
        total = None
        for k, weight in enumerate(self._weights[axis]):
            after, before = (x[_box([s + by * (a == axis) for a, s in enumerate(start)], shape)] for by in (k, -k - 1))
            term = weight * (after - before)
            total = term if total is None else total + term
        return total

    def _decayed(
        self, own: LocalArray, recursion: Recursion, drive: LocalArray, begin: Sequence[int], target: LocalArray
    ) -> tuple[LocalArray, LocalArray]:
        """Return the next memory variable, driven by values from `begin` on, and the target plus this variable."""
        read, index = (_box(first, own.shape) for first in (begin, recursion.start))
        value = recursion.b * own + recursion.a * drive[read]
        return self._replaced(own, (...,), value), self._replaced(target, index, target[index] + value)

    def _padded(self, x: LocalArray, widths: list[tuple[int, int]]) -> LocalArray:
        return np.pad(x, widths)

    def _replaced(self, x: LocalArray, index: tuple, values: LocalArray) -> LocalArray:
        """Return an array with other values at an index, in place."""
        x[index] = values
        return x

    def _layer(self, slab: Slab) -> Layer:
        axis, width, half = slab.axis, self._tile.grid.layers.width, self._half
        low = slab.a[half] != 0  # of the first point of the axis
        first = 0 if low else self._tile.inner[axis] - width
        own = slice(half, half + width) if low else slice(-half - width, -half)
        recursions = []
        for values, begin in ((slab.staggered, first + half - 1), ((slab.a[own], slab.b[own]), first)):
            a, b = (np.expand_dims(x, _others(axis)) for x in values)
            recursions.append(Recursion(axis, a, b, tuple(begin * (other == axis) for other in range(3))))
        return Layer(axis, *recursions)


def _others(axis: int) -> tuple[int, ...]:
    return tuple(other for other in range(3) if other != axis)


def _box(start: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(first, first + n) for first, n in zip(start, shape, strict=True))
