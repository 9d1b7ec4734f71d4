"""Travel times from a position to the image points."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np

from collops.errors import InputError
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.traveltimes import eikonal
from collops.seismic.survey.geometry import Grid

__all__ = ["seconds_from"]


def seconds_from(
    position: np.ndarray, velocity: np.ndarray, grid: Grid, mode: str, indices: tuple[np.ndarray, ...] | None = None
) -> np.ndarray:
    """Return the travel times from a position in seconds, by `analytic` or by `eikonal`.

    `indices` select image points, in the form that `numpy.ix_` returns; by default all points.
    """
    if mode == "analytic":
        return analytic(position, velocity, grid, indices)
    times = eikonal(ImageGrid.from_axes(*map(grid.axes.get, "zxy")), position, velocity)
    return times if indices is None else times[indices]


def check_mode(mode: str) -> None:
    """Raise `InputError` if travel times need a package that is not installed."""
    if mode == "eikonal" and importlib.util.find_spec("skfmm") is None:
        raise InputError(
            "eikonal travel times need scikit-fmm: install collops[eikonal], "
            "or pass a velocity such as 1500+0.6z, for which a formula exists"
        )


def analytic(
    position: np.ndarray, velocity: np.ndarray, grid: Grid, indices: tuple[np.ndarray, ...] | None = None
) -> np.ndarray:
    """Return first-arrival times in seconds in a velocity that is constant or increases linearly with depth.

    `velocity` has the shape of the grid; for `indices` see `seconds_from`. Rays are straight lines or arcs of
    circles, and the velocity continues below the grid. With the velocities v and w at the ends of a ray, the distance
    d of the ends and the gradient g, the time is 2 / g arsinh(g d / (2 sqrt(v w))).

    References
    ----------
    Slotnick, M. M., *Lessons in Seismic Computing*, Society of Exploration Geophysicists (1959).
    """
    column = velocity.reshape(-1, grid.nz)[0]
    gradient = (column[-1] - column[0]) / (grid.z[-1] - grid.z[0])
    speed = column[0] + gradient * (position[-1] - grid.z[0])
    time = _distance(position, grid, indices) / np.sqrt(speed * (velocity if indices is None else velocity[indices]))
    return 2 / gradient * np.arcsinh(gradient / 2 * time) if gradient else time


def _distance(position: np.ndarray, grid: Grid, indices: tuple[np.ndarray, ...] | None = None) -> np.ndarray:
    indices = np.ix_(*map(np.arange, grid.shape)) if indices is None else indices
    offsets = (
        axis[index] - coordinate for axis, index, coordinate in zip(grid.axes.values(), indices, position, strict=True)
    )
    return functools.reduce(np.hypot, offsets)
