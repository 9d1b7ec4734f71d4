"""The grid of a model with its layers, and the tile of it that a rank computes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops import Layout
from collops.errors import InputError, LayoutError
from collops.extend.arrays import LocalArray
from collops.seismic.waves.layers import Absorption, Layers, profile
from collops.seismic.waves.stencil import ORDERS, checked_time_order, first_derivative, largest_step, second_derivative

RADIUS = 4
"""Grid points on each side of a source or a receiver that its interpolation uses."""


@dataclass(frozen=True)
class Grid:
    r"""A uniform grid of model points in one to three dimensions, and how derivatives on it are computed.

    Parameters
    ----------
    shape : sequence of int
        Model points along each axis; the last axis is the depth, and contiguous in memory.
    spacing : sequence of float
        Distance of points along each axis, in metres. The first point is at the coordinates 0.
    order : int
        Order of accuracy in space: 2, 4, ..., 16.
    layers : Layers
        The absorbing layers, outside the model.
    free_surface : bool
        Whether the pressure vanishes at depth 0, where there is then no layer: the field above is the mirror image of
        the field below, with the opposite sign. In elastic media the vertical stresses vanish there.
    time_order : {2, 4}
        Order of accuracy in time. A step of order 4 computes two Laplacians, and may be :math:`\sqrt{3/2}` times as
        long.

    Raises
    ------
    InputError
        If an argument cannot be used.

    Examples
    --------
    >>> from collops.seismic.waves import Grid, Layers
    >>> grid = Grid((50, 40), (10.0, 10.0), layers=Layers(15), free_surface=True)
    >>> grid.padded
    (80, 55)
    """

    shape: Sequence[int]
    spacing: Sequence[float]
    order: int = 8
    layers: Layers = field(default_factory=Layers)
    free_surface: bool = False
    time_order: int = 2

    def __post_init__(self) -> None:
        try:
            shape = tuple(map(operator.index, self.shape))
            spacing = tuple(map(float, self.spacing))
        except (TypeError, ValueError) as error:
            raise InputError(f"a grid needs a sequence of integers and a sequence of numbers: {error}") from error
        if not 1 <= len(shape) <= 3 or len(spacing) != len(shape):
            raise InputError(f"a grid has one to three axes with a spacing each, not {shape} and {spacing}")
        if min(shape) < 2 or not all(math.isfinite(h) and h > 0 for h in spacing):
            raise InputError(f"a grid has at least 2 points along each axis and positive spacings: {shape}, {spacing}")
        if self.order not in ORDERS:
            raise InputError(f"the order of accuracy in space must be 2, 4, ... or {ORDERS[-1]}, not {self.order!r}")
        checked_time_order(self.time_order)
        if not isinstance(self.layers, Layers):
            raise InputError(f"layers must be Layers, not {self.layers!r}: for example Layers(20)")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "spacing", spacing)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """Points of the layers before and after the model, per axis."""
        width, last = self.layers.width, len(self.shape) - 1
        return tuple((0 if self.free_surface and axis == last else width, width) for axis in range(last + 1))

    @property
    def padded(self) -> tuple[int, ...]:
        """Points along each axis with the layers."""
        return tuple(n + sum(pair) for n, pair in zip(self.shape, self.padding, strict=True))

    def largest_step(self, velocity: float) -> float:
        """Return the longest stable time step in seconds for a largest velocity in metres per second.

        With constant density: a variable one, VTI anisotropy, elastic media and attenuation may need a shorter step,
        which the error states.
        """
        return largest_step(self.order, self.spacing, velocity, self.time_order)


@dataclass(frozen=True)
class Slab:
    """The memory variables of one layer in a tile, which are zero outside the layer.

    All indices are of the tile without halo. Derivatives of the memory variables across the layer differ from zero in
    the `zone`: the layer, and half a stencil beside it. Memory variables are advanced there; beside the layer, where
    their coefficients are zero, they stay zero.

    Attributes
    ----------
    axis : int
        The axis across the layer, of three.
    zone : tuple of int
        First index and index after the last, along the axis.
    begin : int
        Index along the axis of the first stored point; there is half a stencil of zeros at both ends.
    shape : tuple of int
        Of a stored variable.
    offset : int
        Index of its first element in the memory of all slabs.
    a, b : numpy.ndarray
        Coefficients of the recursion at the stored points along the axis, zero outside the layer.
    staggered : pair of numpy.ndarray
        The same at the half points on both sides of the points of the layer.
    """

    axis: int
    zone: tuple[int, int]
    begin: int
    shape: tuple[int, ...]
    offset: int
    a: np.ndarray
    b: np.ndarray
    staggered: tuple[np.ndarray, np.ndarray]


class Tile:
    """The part of a padded grid that one rank computes, in arrays with halos. Sends nothing.

    Arrays have three axes; those that the grid does not have are the first ones and have one point.

    Parameters
    ----------
    grid : Grid
        The grid.
    layout : Layout
        Layout of the model. A rank's tile has its block and, at the ends of the grid, the layers beyond it.
    rank : int
        The rank.
    reach : int
        Points on each side from which a step takes values.

    Attributes
    ----------
    inner : tuple of int
        Points of the tile.
    halo : tuple of int
        Points before and after the tile, per axis.
    shape : tuple of int
        Points with the halo.
    box : tuple of slice
        The tile in an array with halo.
    begin : tuple of int
        Index of the first point of the tile in the padded grid, per axis of the grid.
    beside : tuple of pair of bool
        Whether there are tiles before and after this one, per axis.
    surface : bool
        Whether the tile begins at a free surface.

    Raises
    ------
    LayoutError
        If a tile along a split axis has fewer points than a halo.
    """

    def __init__(self, grid: Grid, layout: Layout, rank: int, reach: int) -> None:
        block, ndim = layout.block(rank), len(grid.shape)
        self.grid, self.block = grid, block.slices
        self.dims = block.shape
        self.ends = tuple(
            (before if own.start == 0 else 0, after if own.stop == n else 0)
            for own, n, (before, after) in zip(block.slices, grid.shape, grid.padding, strict=True)
        )
        self.begin = tuple(
            0 if own.start == 0 else own.start + before
            for own, (before, _) in zip(block.slices, grid.padding, strict=True)
        )
        half = grid.order // 2
        widths = [max(reach, RADIUS) if axis in layout.split_axes else half for axis in range(ndim)]
        for axis in layout.split_axes:
            smallest = min(layout.sizes[axis])
            if smallest < widths[axis]:
                raise LayoutError(
                    f"a tile has {smallest} points along axis {axis}, but needs at least {widths[axis]}, the width of "
                    "a halo: use fewer tiles"
                )
        fill = (1,) * (3 - ndim)
        self.inner = (*fill, *(n + sum(pair) for n, pair in zip(block.shape, self.ends, strict=True)))
        self.halo = (*(0 for _ in fill), *widths)
        self.shape = tuple(n + 2 * width for n, width in zip(self.inner, self.halo, strict=True))
        self.box = tuple(slice(width, width + n) for n, width in zip(self.inner, self.halo, strict=True))
        self.axes = tuple(range(3 - ndim, 3))
        before_and_after = ((own.start > 0, own.stop < n) for own, n in zip(block.slices, grid.shape, strict=True))
        self.beside = (*((False, False) for _ in fill), *before_and_after)
        self.surface = grid.free_surface and block.slices[-1].start == 0

    def extend(self, values: LocalArray, xp: Any = np) -> LocalArray:
        """Return values of this rank's block on its tile: edge values continue into the layers."""
        return xp.pad(values, self.ends, mode="edge").reshape(self.inner)

    def values(self, values: np.ndarray, axis: int | None = None, width: int = 0) -> np.ndarray:
        """Return values of the model on this tile, with `width` more points on each side along an axis of three or all.

        Edge values of the model continue.
        """
        return self._values(values, [width if axis in (a, None) else 0 for a in self.axes])

    def with_halo(self, values: np.ndarray) -> np.ndarray:
        """Return values of the model on this tile and its halo. Edge values of the model continue."""
        return self._values(values, [self.halo[axis] for axis in self.axes])

    def _values(self, values: np.ndarray, widths: Sequence[int]) -> np.ndarray:
        indices = []
        for more, own, (before, after), n in zip(widths, self.block, self.ends, self.grid.shape, strict=True):
            indices.append(np.clip(np.arange(own.start - before - more, own.stop + after + more), 0, n - 1))
        values = values[np.ix_(*indices)]
        return values.reshape((1,) * (3 - values.ndim) + values.shape)

    def fold(self, values: LocalArray, xp: Any = np) -> LocalArray:
        """Return values on the tile added to this rank's block: the transpose of :meth:`extend`."""
        values = values.reshape(self.inner[3 - len(self.dims) :])
        for axis, (before, after) in enumerate(self.ends):
            values = xp.moveaxis(values, axis, 0)
            inner = values[before : len(values) - after].copy()
            # One after the other: the order of a sum is up to the engine.
            for row in values[:before]:
                inner[0] += row
            for row in values[len(values) - after :]:
                inner[-1] += row
            values = xp.moveaxis(inner, 0, axis)
        return values

    def stencils(self, dtype: np.dtype, axes: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return coefficients in `dtype`: of the centre of the Laplacian, and of the sides of both derivatives.

        The sides have shape (axes, half the order): of the second and of the first derivative. `axes` are of three, and
        by default all of the grid.
        """
        spacing = np.array([self.grid.spacing[axis - 3] for axis in (self.axes if axes is None else axes)])
        second = second_derivative(self.grid.order) / spacing[:, np.newaxis] ** 2
        first = first_derivative(self.grid.order) / spacing[:, np.newaxis]
        return second[:, 0].astype(dtype), second[:, 1:].astype(dtype), first.astype(dtype)

    def slabs(self, absorption: Absorption, dtype: np.dtype) -> list[Slab]:
        """Return the slabs of this tile."""
        half, slabs, offset = self.grid.order // 2, [], 0
        for axis, spacing, ends in zip(self.axes, self.grid.spacing, self.ends, strict=True):
            n = self.inner[axis]
            for width, low in zip(ends, (True, False), strict=True):
                if width == 0:
                    continue
                layer = (0, width) if low else (n - width, n)
                zone = (0, min(n, width + half)) if low else (max(0, n - width - half), n)
                begin, end = zone[0] - half, zone[1] + half
                a, b = np.zeros((2, end - begin), dtype)
                stored = slice(layer[0] - begin, layer[1] - begin)
                outwards = -1 if low else 1
                a[stored], b[stored] = (x[::outwards] for x in profile(width, spacing, absorption))
                one, two = (x[::outwards].astype(dtype) for x in profile(width, spacing, absorption, staggered=True))
                shape = tuple(end - begin if a_ == axis else m for a_, m in enumerate(self.inner))
                slabs.append(Slab(axis, zone, begin, shape, offset, a, b, (one, two)))
                offset += math.prod(shape)
        return slabs
