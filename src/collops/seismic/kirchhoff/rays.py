"""Amplitude, direction and spreading of the rays of one station, from its table of travel times.

Times are split into times of straight rays, whose singularity at the station is known, and a smooth remainder. Upwind
differences carry the remainder, the amplitude and the spreading along the rays; in the order of the travel times these
are triangular systems.

References
----------
.. [1] Vidale, J. E., and Houston, H., "Rapid calculation of seismic amplitudes", Geophysics, 55(11), pp. 1504-1507,
   1990: amplitudes from finite-difference travel times.
.. [2] Luo, S., and Qian, J., "Factored singularities and high-order Lax-Friedrichs sweeping schemes for point-source
   traveltimes and amplitudes", Journal of Computational Physics, 230(12), pp. 4742-4755, 2011: the transport equation,
   and factors that remove the singularity at the source.
.. [3] Bleistein, N., "Two-and-one-half dimensional in-plane wave propagation", Geophysical Prospecting, 34(5),
   pp. 686-703, 1986: the out-of-plane spreading.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collops.seismic.kirchhoff.geometry import ImageGrid

_NEAR = 1.5  # cells around the station in which rays are straight
_CORRECTIONS = 6  # iterations for the remainder; amplitudes in a constant gradient are then accurate to 2 %
_KINK = 0.1  # of the slowness: a larger change of slope within a cell marks crossing wavefronts or an interface
_SIDEWAYS = 1e-3  # of the slowness: minimum weight of an upwind neighbour
_FOCUS = 2.0  # maximum logarithm of the amplitude relative to straight rays; ray theory fails beyond


@dataclass(frozen=True)
class Rays:
    """The rays from a station at every image point; arrays have the shape of the grid."""

    amplitude: np.ndarray  # of the Green's function: sqrt(v / (8 pi r)) or 1 / (4 pi r) along straight rays
    direction: np.ndarray  # unit vectors away from the station, shape (axes, ...)
    spreading: np.ndarray  # integral of the velocity along the ray, m^2/s: v r along straight rays


def trace_rays(times: np.ndarray, grid: ImageGrid, position: np.ndarray, velocity: np.ndarray) -> Rays:
    r"""Return the rays of the first arrivals from one position, in 2-D or 3-D.

    In a constant velocity the rays are straight, and the times are not read. Otherwise the remainder
    :math:`\delta = \tau - r / v_0` is computed again from the eikonal equation with the rays of `times`, since
    fast-marching times are not smooth enough to be differentiated twice. Then the transport equation

    .. math:: 2 \nabla\tau\cdot\nabla A + A \nabla^2\tau = 0, \qquad \nabla\tau\cdot\nabla\sigma = 1

    gives the amplitude relative to straight rays, and the spreading :math:`\sigma`.

    Parameters
    ----------
    times : array
        Seconds, of the shape of the grid, without NaN; a constant may be added to all.
    grid : ImageGrid
        The image points.
    position : array
        Coordinates of the station, one for each axis.
    velocity : array
        Velocity at the points of the grid, m/s.
    """
    spacing, axes = np.array(grid.spacing), len(grid.axes)
    speed = grid.value_at(velocity, position)
    radial = np.stack(np.meshgrid(*(a - p for a, p in zip(grid.axes, position, strict=True)), indexing="ij"))
    distance = np.sqrt((radial**2).sum(axis=0))
    # Within half a cell of the station, use the amplitude at half a cell: about the mean over the cell.
    radius = np.maximum(distance, spacing.min() / 2)
    radial /= radius
    amplitude = np.sqrt(speed / (8 * np.pi * radius)) if axes == 2 else 1 / (4 * np.pi * radius)
    if velocity.min() == velocity.max():
        return Rays(amplitude, radial, speed * radius)

    slowness = 1 / velocity
    near = distance <= _NEAR * spacing.max()
    ring = (distance > 1.9 * spacing.max()) & (distance < 3.1 * spacing.max())
    straight = distance * (slowness - 1 / speed) / 2
    remainder = times - distance / speed
    if ring.any():  # solvers that start at a front around the station add a constant to all times
        remainder -= np.median((remainder - straight)[ring])
    upwind = _Upwind(times, grid.spacing)

    towards = radial / speed + _gradient(remainder, grid)
    towards *= slowness / np.maximum(_norm(towards), np.finfo(float).tiny)
    solved = upwind.solve(towards, slowness**2 - (towards * radial).sum(axis=0) / speed, slowness, near, straight)
    # Where wavefronts cross, or the velocity jumps, the input times are more accurate.
    cell = spacing.min() * slowness
    remainder = np.where(np.abs(solved - remainder) > cell, remainder, solved)
    for _ in range(_CORRECTIONS):
        towards = radial / speed + _gradient(remainder, grid)
        missing = slowness**2 - (towards**2).sum(axis=0)
        missing[_kinks(remainder, grid, slowness)] = 0
        remainder = remainder + np.clip(upwind.solve(2 * towards, missing, slowness, near), -cell, cell)

    slope = _gradient(remainder, grid)
    curvature = sum(_gradient(part, grid)[axis] for axis, part in enumerate(slope))
    outward = (slope * radial).sum(axis=0)
    towards = radial / speed + slope
    smooth = ~_kinks(remainder, grid, slowness)
    logarithm = upwind.solve(towards, smooth * ((axes - 1) / (2 * radius) * outward - curvature / 2), slowness, near)
    spreading = upwind.solve(towards, -speed * outward, slowness, near)
    return Rays(
        amplitude * np.exp(np.clip(logarithm, -_FOCUS, _FOCUS)),
        towards / np.maximum(_norm(towards), np.finfo(float).tiny),
        speed * radius * np.clip(1 + spreading / (speed * radius), np.exp(-_FOCUS), np.exp(_FOCUS)),
    )


class _Upwind:
    """Upwind differences for ``towards . grad u = rate``, at points in the order of their travel times."""

    def __init__(self, times: np.ndarray, spacing: tuple[float, ...]) -> None:
        self._order = np.argsort(times, axis=None, kind="stable")
        self._rank = np.empty(times.size, np.int64)
        self._rank[self._order] = np.arange(times.size)
        rank = self._rank.reshape(times.shape)
        self._sides = []  # for each axis: 1 / spacing, negative if rays come from the larger index, 0 if from neither
        for axis, step in enumerate(spacing):
            padded = np.pad(rank, [(int(a == axis),) * 2 for a in range(times.ndim)], constant_values=times.size)
            before, after = (np.take(padded, range(n, n + times.shape[axis]), axis) for n in (0, 2))
            earlier = np.minimum(before, after)
            sign = np.where(before < after, 1, -1) * (earlier < rank)
            self._sides.append((sign.ravel() / step, earlier.ravel()))

    def solve(
        self,
        towards: np.ndarray,
        rate: np.ndarray,
        slowness: np.ndarray,
        known: np.ndarray,
        values: np.ndarray | float = 0.0,
    ) -> np.ndarray:
        """Return u; it is `values` where it is `known`, and where no neighbour is upwind."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.linalg import spsolve_triangular

        min_share = _SIDEWAYS * slowness.ravel()
        rows, columns, entries, diagonal = [self._rank], [self._rank], [], np.zeros(slowness.size)
        for (side, earlier), part in zip(self._sides, towards, strict=True):
            share = np.maximum(part.ravel() * np.sign(side), min_share) * np.abs(side) * ~known.ravel()
            reached = np.flatnonzero(share)
            diagonal += share
            rows.append(self._rank[reached])
            columns.append(earlier[reached])
            entries.append(-share[reached])
        starts = diagonal == 0
        diagonal[starts] = 1
        right_side = np.where(starts.reshape(rate.shape), values, rate).ravel()
        matrix = csr_matrix(
            (np.concatenate([diagonal, *entries]), (np.concatenate(rows), np.concatenate(columns))),
            shape=(starts.size, starts.size),
        )
        result = np.empty(starts.size)
        result[self._order] = spsolve_triangular(matrix, right_side[self._order])
        return result.reshape(rate.shape)


def _gradient(values: np.ndarray, grid: ImageGrid) -> np.ndarray:
    """Return the gradient, shape (axes, ...)."""
    edge = 1 if min(values.shape) < 3 else 2
    return np.asarray(np.gradient(values, *grid.spacing, edge_order=edge))


def _norm(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt((vectors**2).sum(axis=0))


def _kinks(values: np.ndarray, grid: ImageGrid, slowness: np.ndarray) -> np.ndarray:
    """Return a mask of points where the slope changes by more than _KINK of the slowness between cells."""
    kinks = np.zeros(values.shape, bool)
    for axis, step in enumerate(grid.spacing):
        change = np.zeros(values.shape)
        inner = [slice(None)] * values.ndim
        inner[axis] = slice(1, -1)
        change[tuple(inner)] = np.abs(np.diff(values, 2, axis)) / step
        kinks |= change > _KINK * slowness
    return kinks
