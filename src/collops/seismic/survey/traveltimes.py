"""Travel times from a position to the image points."""

from __future__ import annotations

import functools
import importlib.util

import numpy as np

from collops.errors import InputError
from collops.seismic.kirchhoff.geometry import Grid as Points
from collops.seismic.kirchhoff.traveltimes import eikonal
from collops.seismic.survey.geometry import Grid

__all__ = ["seconds_from"]


def seconds_from(
    position: np.ndarray, velocity: np.ndarray, grid: Grid, mode: str, at: tuple[np.ndarray, ...] | None = None
) -> np.ndarray:
    """Return the travel times from a position in seconds, by `analytic` or by `eikonal`.

    `at` selects image points by indices along each axis, as `numpy.ix_` returns them; by default all.
    """
    if mode == "analytic":
        return analytic(position, velocity, grid, at)
    times = eikonal(Points.from_axes(*map(grid.axes.get, "zxy")), position, velocity)
    return times if at is None else times[at]


def check_mode(mode: str) -> None:
    """Raise `InputError` if travel times need a package that is not installed."""
    if mode == "eikonal" and importlib.util.find_spec("skfmm") is None:
        raise InputError(
            "eikonal travel times need scikit-fmm: install collops[eikonal], "
            "or give a velocity such as 1500+0.6z, which needs none"
        )


def analytic(
    position: np.ndarray, velocity: np.ndarray, grid: Grid, at: tuple[np.ndarray, ...] | None = None
) -> np.ndarray:
    """Return first-arrival times in seconds in a velocity that is constant or increases linearly with depth.

    `at` is as in `seconds_from`; `velocity` is given at all points. Rays are straight lines or arcs of
    circles, and the velocity continues below the grid. If v and w are the velocities at the ends of a ray, d is their
    distance and g the gradient, the time is 2 / g arsinh(g d / (2 sqrt(v w))).

    References
    ----------
    Slotnick, M. M., *Lessons in Seismic Computing*, Society of Exploration Geophysicists (1959).
    """
    column = velocity.reshape(-1, grid.nz)[0]
    gradient = (column[-1] - column[0]) / (grid.z[-1] - grid.z[0])
    here = column[0] + gradient * (position[-1] - grid.z[0])
    time = _distance(position, grid, at) / np.sqrt(here * (velocity if at is None else velocity[at]))
    return 2 / gradient * np.arcsinh(gradient / 2 * time) if gradient else time


def _distance(position: np.ndarray, grid: Grid, at: tuple[np.ndarray, ...] | None = None) -> np.ndarray:
    at = np.ix_(*map(np.arange, grid.shape)) if at is None else at
    apart = (axis[index] - place for axis, index, place in zip(grid.axes.values(), at, position, strict=True))
    return functools.reduce(np.hypot, apart)
