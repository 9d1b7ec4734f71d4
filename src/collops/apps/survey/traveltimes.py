"""Travel times from each position to the image points, computed once and shared by the ranks."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.stages import local_stage
from collops.apps.survey.geometry import Grid, shots_of
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["analytic", "travel_time", "travel_times"]

# Cells around the source in which rays are straight: the error of the eikonal solver is largest there.
_NEAR = 3.0


def travel_times(
    positions: np.ndarray, velocity: np.ndarray, grid: Grid, mode: str, comm: Communicator, dtype: str
) -> np.ndarray:
    """Compute the travel times of many positions in seconds, each rank a share of them. Collective.

    `positions`, the same on every rank, have shape ``(axes of the grid, n)`` and its order, in metres. `mode` is
    ``"eikonal"`` (`travel_time`) or ``"analytic"`` (`analytic`). The result has the shape ``(n, *grid.shape)`` on every
    rank.
    """
    count = positions.shape[1]
    shares = [shots_of(rank, count, comm.size) for rank in range(comm.size)]
    with local_stage(comm):
        if mode == "eikonal" and importlib.util.find_spec("skfmm") is None:
            raise InputError(
                "eikonal travel times need scikit-fmm: install collops[eikonal], "
                "or give a velocity such as 1500+0.6z, which needs none"
            )
        compute = analytic if mode == "analytic" else travel_time
        table = np.empty((count, *grid.shape), dtype)
        mine = shares[comm.rank]
        for number in mine:
            table[number] = compute(positions[:, number], velocity, grid)
    if comm.size > 1:
        own = table[mine.start : mine.stop].copy()
        comm.allgatherv(own, [len(share) for share in shares], out=table)
    return table


def analytic(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> np.ndarray:
    """Return first-arrival times in seconds in a velocity that is constant or increases linearly with depth.

    The result has the shape of the grid. Rays are straight lines or arcs of circles, and the velocity continues below
    the grid. If v and w are the velocities at the ends of a ray, d is their distance and g the gradient, the time is
    2 / g arsinh(g d / (2 sqrt(v w))).

    References
    ----------
    Slotnick, M. M., *Lessons in Seismic Computing*, Society of Exploration Geophysicists (1959).
    """
    column = velocity.reshape(-1, grid.nz)[0]
    gradient = (column[-1] - column[0]) / (grid.z[-1] - grid.z[0])
    at = column[0] + gradient * (position[-1] - grid.z[0])
    time = _distance(position, grid) / np.sqrt(at * velocity)
    return 2 / gradient * np.arcsinh(gradient / 2 * time) if gradient else time


def travel_time(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> np.ndarray:
    """Return first-arrival times in seconds from one position, by fast marching; the shape is the grid's.

    Within three cells of the position, which may be between grid points, the ray is straight and has the mean slowness
    of its ends. The second-order scheme of scikit-fmm starts from that circle.

    References
    ----------
    Sethian, J. A., *A fast marching level set method for monotonically advancing fronts*, PNAS 93 (1996),
    1591-1595.
    """
    import skfmm
    from scipy.ndimage import map_coordinates

    distance = _distance(position, grid)
    place = [[(p - axis[0]) / d] for p, axis, d in zip(position, grid.axes.values(), grid.spacing, strict=True)]
    at = float(map_coordinates(velocity, place, order=1, mode="nearest")[0])
    near = distance * (1 / velocity + 1 / at) / 2
    radius = _NEAR * max(grid.spacing)
    inside = distance <= radius
    if inside.all():
        return near
    onward = np.asarray(skfmm.travel_time(distance - radius, velocity, dx=list(grid.spacing), order=2))
    return np.where(inside, near, onward + radius / at)


def _distance(position: np.ndarray, grid: Grid) -> np.ndarray:
    apart = [axis - coordinate for axis, coordinate in zip(grid.axes.values(), position, strict=True)]
    return functools.reduce(np.hypot, np.ix_(*apart))
