"""Travel times from positions to the image points."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.extend.engines import engine as engine_called
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.traveltimes import Seconds, arrivals_at
from collops.seismic.survey.geometry import Grid

__all__ = ["seconds_from"]


def seconds_from(
    position: np.ndarray,
    velocity: np.ndarray,
    grid: Grid,
    mode: str,
    indices: tuple[np.ndarray, ...] | None = None,
    thomsen: Thomsen | None = None,
) -> np.ndarray:
    """Return the travel times from a position in seconds, by `analytic` or by `first_arrivals`, on the host.

    `indices` select image points, in the form that `numpy.ix_` returns; by default all points.
    """
    indices = np.ix_(*map(np.arange, grid.shape)) if indices is None else indices
    on_host = engine_called("numpy"), np.dtype(np.float64), None
    seconds = times_at(position[np.newaxis], velocity, grid, mode, *on_host, thomsen)
    (times,) = seconds([0], indices)
    return times


def times_at(
    positions: np.ndarray,
    velocity: np.ndarray,
    grid: Grid,
    mode: str,
    engine: Engine,
    dtype: np.dtype,
    threads: int | None,
    thomsen: Thomsen | None = None,
    factor: int = 1,
) -> Seconds:
    """Return the callable `seconds` for `tables_of_stations`; for the last arguments see `first_arrivals`.

    `factor` is its `coarsen`.
    """
    if mode == "eikonal":
        image = ImageGrid.from_axes(*map(grid.axes.get, "zxy"))
        return arrivals_at(image, positions, velocity, engine, dtype, threads, thomsen, factor)
    computing = engine if engine.streams else engine_called("numpy")

    def seconds(stations: Sequence[int], indices: tuple[np.ndarray, ...]) -> Iterator[LocalArray]:
        there = computing.from_host(velocity[indices])
        axes = list(zip(grid.axes.values(), indices, strict=True))
        for station in stations:
            parts = zip(axes, positions[station], strict=True)
            offsets = [computing.from_host(axis[index] - coordinate) for (axis, index), coordinate in parts]
            yield _along_arc(offsets, there, *_linear(velocity, grid, positions[station]))

    return seconds


def analytic(position: np.ndarray, velocity: np.ndarray, grid: Grid) -> np.ndarray:
    """Return first-arrival times in seconds in a velocity that is constant or increases linearly with depth.

    `velocity` has the shape of the grid. Rays are straight lines or arcs of circles, and the velocity continues below
    the grid. With the velocities v and w at the ends of a ray, the distance d of the ends and the gradient g, the time
    is 2 / g arsinh(g d / (2 sqrt(v w))).

    References
    ----------
    Slotnick, M. M., *Lessons in Seismic Computing*, Society of Exploration Geophysicists (1959).
    """
    return seconds_from(position, velocity, grid, "analytic")


def _linear(velocity: np.ndarray, grid: Grid, position: np.ndarray) -> tuple[float, float]:
    """Return the velocity at a position, and its gradient with depth."""
    column = velocity.reshape(-1, grid.nz)[0]
    gradient = (column[-1] - column[0]) / (grid.z[-1] - grid.z[0])
    return column[0] + gradient * (position[-1] - grid.z[0]), gradient


def _along_arc(offsets: Sequence[LocalArray], velocity: LocalArray, speed: float, gradient: float) -> LocalArray:
    """Return the times to points with these offsets and this velocity from a position with the velocity `speed`."""
    time = functools.reduce(np.hypot, offsets) / np.sqrt(speed * velocity)
    return 2 / gradient * np.arcsinh(gradient / 2 * time) if gradient else time
