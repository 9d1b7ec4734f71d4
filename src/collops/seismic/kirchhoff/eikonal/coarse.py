"""First arrivals from a coarser grid: the model at its points, the times between them, and an estimate of their error.

Between the points, the difference from the time along a straight ray is interpolated linearly, as tables on coarser
nodes are: it is smooth, also around the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, engine_of
from collops.seismic.kirchhoff.eikonal.anisotropy import group_slowness
from collops.seismic.kirchhoff.eikonal.medium import Source
from collops.seismic.kirchhoff.geometry import ImageGrid, in_memory_of
from collops.seismic.kirchhoff.nodes import Nodes


@dataclass(frozen=True)
class CoarseGrid:
    """Every `factor`-th point of a grid along each axis; the last points may lie beyond it, so that all are uniform."""

    points: ImageGrid
    factor: int

    @property
    def nodes(self) -> Nodes:
        """The points of the fine grid whose values the points of this one have."""
        return Nodes(self.points.shape, self.factor)

    @property
    def grid(self) -> ImageGrid:
        """The points of this grid."""
        spacing = tuple(self.factor * step for step in self.points.spacing)
        described = zip(self.points.axes, spacing, self.nodes.counts, strict=True)
        return ImageGrid(tuple(axis[0] + step * np.arange(count) for axis, step, count in described), spacing)

    def sampled(self, values: np.ndarray) -> np.ndarray:
        """Return the values, of shape (*points, …), at the points of this grid."""
        return values[np.ix_(*self.nodes.along)]

    def interpolation(
        self, indices: tuple[np.ndarray, ...], engine: Engine, dtype: np.dtype
    ) -> Callable[[Source, LocalArray], LocalArray]:
        """Return a function of a source and its times at all points of this grid, for times at points of the fine grid.

        `indices` select the points, in the form that `numpy.ix_` returns, none negative. Times are in the memory of the
        engine.
        """
        counts, numbers = self.nodes.counts, [part.ravel() for part in indices]
        extended = Nodes(tuple(self.factor * (count - 1) + 1 for count in counts), self.factor)
        cells, along = extended.cells_at(engine, numbers), [self.factor * np.arange(count) for count in counts]

        def straight(source: Source, numbers: Sequence[np.ndarray]) -> LocalArray:
            offsets = [part.astype(dtype) for part in self._offsets(source, numbers)]
            return source.straight_times(in_memory_of(engine, offsets)).reshape(tuple(map(len, numbers)))

        def interpolated(source: Source, times: LocalArray) -> LocalArray:
            remainders = times - straight(source, along)
            refined = extended.refine(remainders.ravel(), cells).reshape(tuple(map(len, numbers)))
            refined = refined + straight(source, numbers)
            return np.maximum(refined, 0).astype(dtype)  # interpolation may precede the source by a little

        return interpolated

    def _offsets(self, source: Source, numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return coordinates relative to the source along three axes, of points with these numbers along each axis."""
        parts = [np.zeros(1)] * (3 - len(numbers))
        parts += [step * number for step, number in zip(self.points.spacing, numbers, strict=True)]
        return np.ix_(*(part + start for part, start in zip(parts, source.offset, strict=True)))

    def line_error(self, slowness: LocalArray, anisotropy: LocalArray | None) -> float:
        """Return the root mean square error of times along the lines of the grid through the points, in seconds.

        The slowness, in s/m, and the anisotropy, from `parameters_of`, of all points, on a host or a device. A layer
        between two points changes no other times of this grid.
        """
        from_host, errors = engine_of(slowness).from_host, [0.0]
        along = self.nodes.along
        for axis, (step, numbers) in enumerate(zip(self.points.spacing, along, strict=True)):
            every = np.ix_(*along[:axis], np.arange(slowness.shape[axis]), *along[axis + 1 :])
            on_lines = tuple(map(from_host, every))
            lines = slowness[on_lines]
            if anisotropy is not None:
                along_axis = from_host(np.eye(3)[3 - slowness.ndim + axis])
                lines = lines * group_slowness(anisotropy.reshape(*slowness.shape, -1)[on_lines], along_axis)
            lines = np.moveaxis(lines, axis, -1)
            exact = _integrals(lines, step)[..., from_host(numbers[1:] - 1)]
            sampled = _integrals(lines[..., from_host(numbers)], from_host(step * np.diff(numbers)))
            # The error vanishes at the first point of each line.
            points = exact.size // max(1, len(numbers) - 1) * len(numbers)
            errors.append(math.sqrt(float(((exact - sampled) ** 2).sum()) / max(1, points)))
        return max(errors)


def _integrals(lines: LocalArray, steps: Any) -> LocalArray:
    """Return the integrals along the last axis, from the first point to each other one, by the trapezoidal rule."""
    return ((lines[..., 1:] + lines[..., :-1]) * (0.5 * steps)).cumsum(axis=-1)
