"""The image points at which tables have values, and interpolation between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.extend.arrays import LocalArray, extent
from collops.extend.engines import Engine, engine_of

Cells = tuple[Any, Any, Any]
"""The node at or before each of some points of an axis, the next one, and its weight."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of a table: every `factor`-th image point along each axis, and the last one.

    Between nodes tables are interpolated linearly.

    Parameters
    ----------
    shape : tuple of int
        Shape of the image, depth last.
    factor : int
        1 for all image points.

    Examples
    --------
    >>> from collops.seismic.kirchhoff.nodes import Nodes
    >>> nodes = Nodes((6,), 2)
    >>> nodes.coarsen(np.array([0.0, 9, 2, 9, 4, 5]))
    array([0., 2., 4., 5.])
    >>> nodes.refine(np.array([0.0, 2, 4, 5]))
    array([0., 1., 2., 3., 4., 5.])
    """

    shape: tuple[int, ...]
    factor: int = 1

    @property
    def points(self) -> int:
        """Number of image points."""
        return math.prod(self.shape)

    @property
    def counts(self) -> tuple[int, ...]:
        """Nodes along each axis."""
        return tuple(n and 1 + -(-(n - 1) // self.factor) for n in self.shape)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return math.prod(self.counts)

    @property
    def along(self) -> list[np.ndarray]:
        """Indices of the nodes along each axis."""
        return [
            np.minimum(self.factor * np.arange(count), n - 1) for count, n in zip(self.counts, self.shape, strict=True)
        ]

    def with_middles(self) -> list[np.ndarray]:
        """Return the indices along each axis of the nodes and of the points half way between neighbouring nodes."""
        return [np.union1d(nodes, (nodes[:-1] + nodes[1:]) // 2) for nodes in self.along]

    def around(self, box: Sequence[slice]) -> tuple[slice, ...]:
        """Return a box of image points, enlarged to the nodes between which its values are interpolated."""
        starts = [part.start - part.start % self.factor for part in box]
        ends = [1 - (1 - part.stop) // self.factor * self.factor for part in box]
        return tuple(
            slice(start, min(end, n)) if part.start < part.stop else part
            for start, end, n, part in zip(starts, ends, self.shape, box, strict=True)
        )

    def inside(self, box: Sequence[slice]) -> tuple[slice, ...]:
        """Return the nodes of a box from `around`, as slices of the nodes along each axis."""
        counts = Nodes(extent(box), self.factor).counts
        return tuple(
            slice(part.start // self.factor, part.start // self.factor + count)
            for part, count in zip(box, counts, strict=True)
        )

    def cells(self, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each of `size` points of an axis: the node at or before it, the step to the next, its weight.

        The step, in nodes, is 0 for points at a node, so that no node beyond the last one is read.
        """
        node, beyond = np.divmod(np.arange(size), self.factor)
        width = np.minimum(self.factor, size - 1 - node * self.factor)  # the last cell may be smaller
        return node, (beyond > 0).astype(np.int64), beyond / np.maximum(width, 1)

    def coarsen(self, values: np.ndarray) -> np.ndarray:
        """Return values of shape (…, *image) at the nodes, flat: (…, size)."""
        values = np.asarray(values)
        leading = values.shape[: values.ndim - len(self.shape)]
        return values[(..., *np.ix_(*self.along))].reshape(*leading, self.size)

    def cells_at(self, engine: Engine, indices: Sequence[np.ndarray] | None = None) -> list[Cells]:
        """Return `cells` of all image points along each axis, or of those with these indices, in an engine's memory."""
        tables = [self.cells(size) for size in self.shape]
        if indices is not None:
            tables = [tuple(table[part] for table in each) for each, part in zip(tables, indices, strict=True)]
        return [
            (engine.from_host(node), engine.from_host(node + step), engine.from_host(weight))
            for node, step, weight in tables
        ]

    def refine(self, values: LocalArray, cells: Sequence[Cells] | None = None) -> LocalArray:
        """Interpolate values at the nodes, (…, size), to all image points, flat, or to the points of `cells_at`.

        Values may be on a device, and cells are in their memory.
        """
        if self.factor == 1 and cells is None:
            return values
        cells = self.cells_at(engine_of(values)) if cells is None else cells
        values, leading = values.astype(np.float64), values.shape[:-1]
        values = values.reshape(*leading, *self.counts)
        for axis, (node, beyond, weight) in enumerate(cells, len(leading)):
            before, after = (np.take(values, numbers, axis) for numbers in (node, beyond))
            values = before + (after - before) * weight.reshape(-1, *[1] * (values.ndim - 1 - axis))
        return values.reshape(*leading, math.prod(values.shape[len(leading) :]))

    def nearest(self) -> np.ndarray:
        """Return the node nearest to each image point, (points,)."""
        flat = np.zeros((), np.int64)
        for size, count in zip(self.shape, self.counts, strict=True):
            node, step, weight = self.cells(size)
            flat = flat[..., np.newaxis] * count + node + step * (weight > 0.5)
        return flat.ravel()


def checked_factor(factor: int) -> int:
    """Return a factor of `Nodes`; raise InputError unless it is a positive integer."""
    if isinstance(factor, bool) or not isinstance(factor, int | np.integer) or factor < 1:
        raise InputError(f"coarsen must be an integer of at least 1, not {factor!r}")
    return int(factor)
