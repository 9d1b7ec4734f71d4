"""First arrivals from a coarser grid: the model at its points, the times between them, and an estimate of their error.

Between the points, the difference from the time along a straight ray is interpolated linearly, as tables on coarser
nodes are: it is smooth, also around the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import cumulative_trapezoid

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.kirchhoff.eikonal.anisotropy import group_slowness
from collops.seismic.kirchhoff.eikonal.medium import Source
from collops.seismic.kirchhoff.geometry import ImageGrid
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

    def interpolated(self, source: Source, times: LocalArray, indices: tuple[np.ndarray, ...]) -> LocalArray:
        """Return times at points of the fine grid from times at all points of this grid.

        `indices` select the points, in the form that `numpy.ix_` returns, none negative. Times may be on a device.
        """
        counts, numbers = self.nodes.counts, [part.ravel() for part in indices]
        straight = source.straight_times(self._offsets(source, [self.factor * np.arange(n) for n in counts], times))
        remainders = times - straight.reshape(times.shape)
        extended = Nodes(tuple(self.factor * (count - 1) + 1 for count in counts), self.factor)
        refined = extended.refine(remainders.ravel(), numbers).reshape(tuple(map(len, numbers)))
        refined = refined + source.straight_times(self._offsets(source, numbers, times)).reshape(refined.shape)
        return np.maximum(refined, 0).astype(times.dtype)  # interpolation may precede the source by a little

    def _offsets(self, source: Source, numbers: Sequence[np.ndarray], like: LocalArray) -> list[Any]:
        """Return coordinates relative to the source along three axes, of points with these numbers along each axis.

        They are broadcast, and have the type and the memory of `like`.
        """
        parts = [np.zeros(1)] * (3 - len(numbers))
        parts += [step * number for step, number in zip(self.points.spacing, numbers, strict=True)]
        offsets = np.ix_(*(part + start for part, start in zip(parts, source.offset, strict=True)))
        return [engine_of(like).from_host(part.astype(like.dtype)) for part in offsets]

    def line_error(self, slowness: np.ndarray, anisotropy: np.ndarray | None) -> float:
        """Return the root mean square error of times along the lines of the grid through the points, in seconds.

        The slowness, in s/m, and the anisotropy, from `parameters_of`, of all points. A layer between two points
        changes no other times of this grid.
        """
        along, errors = self.nodes.along, [0.0]
        for axis, (step, numbers) in enumerate(zip(self.points.spacing, along, strict=True)):
            every = [*along[:axis], np.arange(slowness.shape[axis]), *along[axis + 1 :]]
            lines = slowness[np.ix_(*every)]
            if anisotropy is not None:
                along_axis = np.eye(3)[3 - slowness.ndim + axis]
                lines = lines * group_slowness(anisotropy.reshape(*slowness.shape, -1)[np.ix_(*every)], along_axis)
            lines = np.moveaxis(lines, axis, -1)
            exact = cumulative_trapezoid(lines, dx=step, initial=0)[..., numbers]
            sampled = cumulative_trapezoid(lines[..., numbers], x=step * numbers, initial=0)
            errors.append(float(np.sqrt(np.mean((exact - sampled) ** 2))))
        return max(errors)
