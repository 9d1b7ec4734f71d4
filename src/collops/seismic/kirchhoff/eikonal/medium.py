"""The medium and the sources of an eikonal equation: slowness, and the times next to a source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.seismic.kirchhoff.eikonal.anisotropy import Reference, group_slowness
from collops.seismic.kirchhoff.geometry import ImageGrid

FAR = 1e30  # seconds: where no wave has arrived
TOLERANCE = 1e-4  # largest change of a converged time, in the time that a wave needs for a cell
# Change, in the same unit, after which the neighbours of a point are computed again: small, since changes add up.
WAKE = TOLERANCE / 30
# Rounds of sweeps after which times only decrease: differences that switch between two forms come to rest.
SETTLING_ROUNDS = 6
MAX_SWEEPS = 2000  # a plausible medium needs 10 to 100

_STRAIGHT_CELLS = 5  # distance from a source, in cells, within which straight rays bound the times
_FIXED_CELLS = 3  # the same, within which straight rays are the times
_POINTS_OF_RAY = 17  # number of points of a straight ray at which the slowness is interpolated


@dataclass(frozen=True)
class Medium:
    """The slowness at the points of a grid with three axes; a plane grid has one point along the first."""

    shape: tuple[int, ...]  # of the image, with two or three axes
    sizes: tuple[int, ...]  # three
    spacing: tuple[float, ...]  # three, in metres
    slowness: np.ndarray  # (points,), s/m, float64; along the symmetry axis of an anisotropic medium
    dtype: np.dtype  # in which devices compute
    anisotropy: np.ndarray | None = None  # (points, 5), from `parameters_of`

    @classmethod
    def of(cls, grid: ImageGrid, velocity: np.ndarray, dtype: np.dtype, anisotropy: np.ndarray | None = None) -> Medium:
        """Return the medium of a velocity model."""
        one, metre = (1,) * (3 - len(grid.shape)), (1.0,) * (3 - len(grid.shape))
        slowness = 1 / np.ascontiguousarray(velocity, np.float64).ravel()
        return cls(grid.shape, (*one, *grid.shape), (*metre, *grid.spacing), slowness, dtype, anisotropy)

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.sizes)

    @property
    def cell(self) -> float:
        """Smallest spacing, in metres."""
        return min(self.spacing[-len(self.shape) :])

    @property
    def corners(self) -> list[int]:
        """Corners at which sweeps begin; the bits of a number say along which axes a sweep goes backwards."""
        return list(range(4 if self.sizes[0] == 1 else 8))

    def not_converged(self) -> InputError:
        """Return the error for times that still change."""
        return InputError(
            f"travel times have not converged in {MAX_SWEEPS} sweeps: smooth the velocity, or pass travel times with "
            "mode 'byot'"
        )


@dataclass(frozen=True)
class Source:
    """A point source, and the times that do not need the scheme."""

    slowness: float  # at the source, s/m
    offset: np.ndarray  # of the first grid point from the source, in metres, along three axes
    near: np.ndarray  # flat numbers of the points within a few cells
    straight: np.ndarray  # their times along straight rays
    fixed: np.ndarray  # whether these are the times
    reference: Reference | None = None  # in an anisotropic medium

    def offsets(self, medium: Medium) -> tuple[np.ndarray, ...]:
        """Return the coordinates of the points relative to the source along three axes, to be broadcast."""
        described = zip(medium.spacing, medium.sizes, self.offset, strict=True)
        return np.ix_(*(step * np.arange(n) + start for step, n, start in described))

    def straight_times(self, offsets: Sequence[Any]) -> Any:
        """Return the times along straight rays in a homogeneous medium with the values at the source.

        `offsets` are coordinates relative to the source along three axes, which are broadcast, on a host or a device.
        """
        if self.reference is not None:
            return self.reference.times(offsets)
        return self.slowness * np.sqrt(sum(part**2 for part in offsets))

    @classmethod
    def at(
        cls, position: np.ndarray, grid: ImageGrid, velocity: np.ndarray, anisotropy: np.ndarray | None = None
    ) -> Source:
        """Return the source at a position, in metres; for the other arguments see `Medium.of`."""
        cell = max(grid.spacing)
        reach = [
            np.flatnonzero(np.abs(axis - place) <= _STRAIGHT_CELLS * cell)
            for axis, place in zip(grid.axes, position, strict=True)
        ]
        box = np.ix_(*reach)
        # A copy of the part around the source: SciPy would copy all of a large model that is a view.
        nearby = ImageGrid(tuple(axis[part] for axis, part in zip(grid.axes, reach, strict=True)), grid.spacing)
        speed = np.ascontiguousarray(velocity[box], np.float64)
        distance = grid.distance(position, box)
        inside = distance <= _STRAIGHT_CELLS * cell
        nodes = np.stack(np.broadcast_arrays(*box), axis=-1)[inside]
        within = nodes - [part[0] for part in reach]
        parameters = None if anisotropy is None else anisotropy.reshape(*grid.shape, -1)[box]
        straight = distance[inside] * _mean_slowness(nearby, position, within, speed, parameters)
        # The largest wavefront within the fixed cells; in very slow velocities the nearest point.
        rim = straight[distance[inside] > _FIXED_CELLS * cell]
        fixed = straight <= max(rim.min(initial=np.inf), straight.min())
        near = np.asarray(np.ravel_multi_index(tuple(nodes.T), grid.shape))
        offset = np.zeros(3)
        offset[3 - len(grid.axes) :] = [axis[0] - place for axis, place in zip(grid.axes, position, strict=True)]
        slowness = 1 / nearby.value_at(speed, position)
        if parameters is None:
            return cls(slowness, offset, near, straight, fixed)
        there = np.array([nearby.value_at(part, position) for part in np.moveaxis(parameters, -1, 0)])
        return cls(slowness, offset, near, straight, fixed, Reference.of(slowness, there))


def _mean_slowness(
    grid: ImageGrid, position: np.ndarray, nodes: np.ndarray, velocity: np.ndarray, parameters: np.ndarray | None
) -> np.ndarray:
    """Return the mean slowness along straight lines from a position to nodes, whose indices are (nodes, axes)."""
    from scipy.ndimage import map_coordinates

    start = (position - [axis[0] for axis in grid.axes]) / np.array(grid.spacing)
    points = np.linspace(start, nodes, _POINTS_OF_RAY)  # (points, nodes, axes)
    where = np.moveaxis(points, -1, 0)
    slowness = 1 / map_coordinates(velocity, where, order=1, mode="nearest")
    if parameters is not None:
        values = [map_coordinates(part, where, order=1, mode="nearest") for part in np.moveaxis(parameters, -1, 0)]
        along = np.zeros((len(nodes), 3))
        along[:, 3 - len(grid.axes) :] = (nodes - start) * grid.spacing
        along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), np.finfo(float).tiny)
        slowness = slowness * group_slowness(np.stack(values, axis=-1), along)
    return np.asarray(np.trapezoid(slowness, dx=1 / (_POINTS_OF_RAY - 1), axis=0))
