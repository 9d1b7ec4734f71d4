"""Fast sweeping by NumPy, for hosts without Numba: all points of a plane and all sources of a batch at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collops.seismic.kirchhoff.eikonal.medium import FAR, MAX_SWEEPS, SETTLING_ROUNDS, TOLERANCE, Medium, Source
from collops.seismic.kirchhoff.eikonal.numpy_tilted import arrival

_MARGIN = 2  # points around the grid, which no wave reaches, instead of a test for the edge


def solve(medium: Medium, sources: Sequence[Source]) -> Iterator[np.ndarray]:
    """Yield the times from each source, of the shape of the image, in seconds."""
    sweeps = _Sweeps(medium, sources)
    quiet = number = 0
    while quiet < len(medium.corners):
        if number == MAX_SWEEPS:
            raise medium.not_converged()
        settled = number >= SETTLING_ROUNDS * len(medium.corners)
        changed = sweeps.sweep(medium.corners[number % len(medium.corners)], settled)
        quiet, number = 0 if changed else quiet + 1, number + 1
    for times, source in zip(sweeps.results(), sources, strict=True):
        # Straight rays cannot arrive before the first arrival.
        times[source.near] = np.minimum(times[source.near], source.straight)
        yield times.reshape(medium.shape)


class _Sweeps:
    """Times of all sources, (points with margins, sources), and planes of points that do not depend on each other."""

    def __init__(self, medium: Medium, sources: Sequence[Source]) -> None:
        padded = [n + 2 * _MARGIN for n in medium.sizes]
        self._strides = [padded[1] * padded[2], padded[2], 1]
        coordinates = np.indices(medium.sizes).reshape(3, -1)
        self._inside = np.ravel_multi_index(tuple(coordinates + _MARGIN), padded)
        self._coordinates, self._medium = coordinates, medium
        self._times = np.full((int(np.prod(padded)), len(sources)), FAR)
        self._straight, self._fixed = np.zeros_like(self._times), np.zeros_like(self._times, bool)
        self._square = np.array([source.slowness**2 for source in sources])
        self._offset = np.array([source.offset for source in sources]).T
        everywhere = np.indices(padded).reshape(3, -1) - _MARGIN
        for column, source in enumerate(sources):
            apart = np.array(medium.spacing)[:, np.newaxis] * everywhere + source.offset[:, np.newaxis]
            self._straight[:, column] = source.straight_times(list(apart))
            self._times[self._inside[source.near], column] = source.straight
            self._fixed[self._inside[source.near[source.fixed]], column] = True
        # The slopes of the times along straight rays, (axes, points, sources), in anisotropic media.
        self._slopes = np.zeros((3, medium.points, len(sources) if medium.anisotropy is not None else 0))
        for column, source in enumerate(sources):
            if source.reference is not None:
                slopes = np.broadcast_arrays(*source.reference.slopes(source.offsets(medium)))
                self._slopes[..., column] = [part.ravel() for part in slopes]
        self._planes = {corner: self._planes_from(corner) for corner in medium.corners}

    def _planes_from(self, corner: int) -> list[np.ndarray]:
        """Return the numbers of the points of each plane, in the order of a sweep."""
        steps = [
            n - 1 - numbers if corner & bit else numbers
            for bit, n, numbers in zip((4, 2, 1), self._medium.sizes, self._coordinates, strict=True)
        ]
        level = np.sum(steps, axis=0)
        order = np.argsort(level, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(level[order])) + 1)

    def sweep(self, corner: int, settled: bool) -> bool:
        """Compute all planes from one corner on; return whether any time has changed.

        If `settled`, times only decrease.
        """
        return any([self._compute(plane, settled) for plane in self._planes[corner]])

    def results(self) -> Iterator[np.ndarray]:
        """Yield the times from each source, flat."""
        yield from self._times[self._inside].T.copy()

    def _compute(self, plane: np.ndarray, settled: bool) -> bool:
        """Compute the times of a plane; return whether any has changed."""
        points, slowness = self._inside[plane], self._medium.slowness[plane, np.newaxis]
        before = self._times[points]
        found = self._isotropic(plane, points) if self._medium.anisotropy is None else self._tilted(plane, points)
        reached = found < FAR
        found = np.where(self._fixed[points] | ~reached | (settled & (found >= before)), before, found)
        self._times[points] = found
        return bool((np.abs(found - before) > TOLERANCE * self._medium.cell * slowness).any())

    def _isotropic(self, plane: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the arrivals at points of a plane, (points, sources)."""
        axes = [self._upwind(axis, plane, points) for axis in range(3) if self._medium.sizes[axis] > 1]
        values, inverses = (np.array(parts) for parts in zip(*axes, strict=True))
        order = np.argsort(values, axis=0, kind="stable")
        values, inverses = np.take_along_axis(values, order, 0), np.take_along_axis(inverses, order, 0)
        return np.where(values[0] < FAR, _arrival(values, inverses, self._medium.slowness[plane, np.newaxis]), FAR)

    def _tilted(self, plane: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the arrivals at points of a plane of an anisotropic medium, (points, sources)."""
        assert self._medium.anisotropy is not None
        slowness, slopes = self._medium.slowness[plane, np.newaxis], self._slopes[:, plane]
        sides = [
            self._difference(axis, points, np.full(slopes[0].shape, sign * self._strides[axis]), slopes[axis])
            for sign in (-1, 1)
            for axis in range(3)
        ]
        values, inverses = (np.reshape(part, (2, 3, -1)) for part in zip(*sides, strict=True))
        parameters = np.repeat(self._medium.anisotropy[plane].T, slopes.shape[-1], axis=1)
        unit = np.broadcast_to(slowness, slopes[0].shape).ravel()
        found = arrival(values, inverses / unit, slopes.reshape(3, -1) / unit, parameters)
        return found.reshape(slopes[0].shape)

    def _upwind(self, axis: int, plane: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return value and inverse, so that ``(time - value) * inverse`` is the upwind derivative along an axis.

        Differences are taken of what is left after the straight ray, whose derivative is known.
        """
        stride, straight = self._strides[axis], self._straight[points]
        back = np.where(self._times[points - stride] <= self._times[points + stride], -stride, stride)
        apart = self._medium.spacing[axis] * self._coordinates[axis][plane, np.newaxis] + self._offset[axis]
        slope = np.divide(self._square * apart, straight, out=np.zeros_like(apart), where=straight > 0)
        return self._difference(axis, points, back, slope)

    def _difference(
        self, axis: int, points: np.ndarray, back: np.ndarray, slope: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return value and inverse of `_upwind` for the sides at which neighbours are, `back` flat points away."""
        columns, spacing = np.arange(self._times.shape[1]), self._medium.spacing[axis]
        near, far = points[:, np.newaxis] + back, points[:, np.newaxis] + 2 * back
        time, beyond = self._times[near, columns], self._times[far, columns]
        rest, straight = time - self._straight[near, columns], self._straight[points]
        second = (beyond <= time) & (beyond < FAR)
        rest = np.where(second, (4 * rest - (beyond - self._straight[far, columns])) / 3, rest)
        distance = np.where(second, spacing * 2 / 3, spacing)
        return np.where(time < FAR, straight + rest + np.sign(back) * slope * distance, FAR), 1 / distance


def _arrival(values: np.ndarray, inverses: np.ndarray, slowness: np.ndarray) -> np.ndarray:
    """Return the time at which the squares of the derivatives add up to the squared slowness.

    Axes come first with the smallest values, and count if their value precedes the time.
    """
    first, weights = values[0], inverses**2
    time, squares = slowness / inverses[0], weights[0]
    linear, constant = np.zeros_like(first), -(slowness**2)
    for value, weight in zip(values[1:], weights[1:], strict=True):
        later = value - first
        counts = time > later
        later = np.where(counts, later, 0)
        squares, linear = squares + weight, linear + weight * later
        constant = constant + weight * later**2
        root = np.sqrt(np.maximum(linear**2 - squares * constant, 0))
        time = np.where(counts, (linear + root) / squares, time)
    return first + time
