"""Travel times from each position to the image points, computed once and shared by the ranks."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.lsm.survey import Grid, shots_of
from collops.apps.stages import local_stage
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["straight", "travel_time", "travel_times"]

# Cells around the source in which rays are straight: the error of the eikonal solver is largest there.
_NEAR = 3.0


def travel_times(
    positions: np.ndarray, velocity: np.ndarray, grid: Grid, mode: str, comm: Communicator, dtype: str
) -> np.ndarray:
    """Compute the travel times of many positions, each rank a share of them. Collective.

    Parameters
    ----------
    positions : numpy.ndarray
        Shape ``(2, n)``, the same on every rank: distance along the line and depth, in metres.
    mode : str
        ``"eikonal"``, or ``"analytic"`` for the constant velocity ``velocity[0, 0]``.

    Returns
    -------
    numpy.ndarray
        Shape ``(n, nx, nz)``, seconds, on every rank.
    """
    count = positions.shape[1]
    shares = [shots_of(rank, count, comm.size) for rank in range(comm.size)]
    with local_stage(comm):
        if mode == "eikonal" and importlib.util.find_spec("skfmm") is None:
            raise InputError("eikonal travel times need scikit-fmm: install collops[eikonal], or use --mode analytic")
        compute = straight if mode == "analytic" else travel_time
        table = np.empty((count, *grid.shape), dtype)
        mine = shares[comm.rank]
        for number in mine:
            table[number] = compute(positions[:, number], velocity, grid)
    if comm.size > 1:
        own = table[mine.start : mine.stop].copy()
        comm.allgatherv(own, [len(share) for share in shares], out=table)
    return table


def straight(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> np.ndarray:
    """Return the times in seconds along straight rays through a constant velocity; shape ``(nx, nz)``."""
    return _distance(position, grid) / velocity[0, 0]


def travel_time(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> np.ndarray:
    """Return first-arrival times in seconds from one position, by fast marching; shape ``(nx, nz)``.

    Within three cells of the position, which may be between grid points, the ray is straight and has the mean slowness
    of its ends. The second-order scheme of scikit-fmm starts from that circle.

    References
    ----------
    Sethian, J. A., *A fast marching level set method for monotonically advancing fronts*, PNAS 93 (1996),
    1591-1595.
    """
    import skfmm

    distance = _distance(position, grid)
    at = _at(position, velocity, grid)
    near = distance * (1 / velocity + 1 / at) / 2
    radius = _NEAR * max(grid.dx, grid.dz)
    inside = distance <= radius
    if inside.all():
        return near
    onward = np.asarray(skfmm.travel_time(distance - radius, velocity, dx=[grid.dx, grid.dz], order=2))
    return np.where(inside, near, onward + radius / at)


def _distance(position: np.ndarray, grid: Grid) -> np.ndarray:
    return np.hypot(grid.x[:, None] - position[0], grid.z[None, :] - position[1])


def _at(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> float:
    """Return the velocity at a position, interpolated between grid points."""
    column = float(np.clip((position[0] - grid.x0) / grid.dx, 0, grid.nx - 1))
    row = float(np.clip(position[1] / grid.dz, 0, grid.nz - 1))
    i, j = min(int(column), grid.nx - 2), min(int(row), grid.nz - 2)
    a, b = column - i, row - j
    cell = velocity[i : i + 2, j : j + 2]
    return float(np.array([1 - a, a]) @ cell @ np.array([1 - b, b]))
