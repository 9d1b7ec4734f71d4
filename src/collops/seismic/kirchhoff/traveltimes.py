"""Travel times from stations to image points: straight rays, first arrivals in a velocity model, or given arrays.

References
----------
.. [1] Sethian, J. A., "A fast marching level set method for monotonically advancing fronts", Proceedings of the
   National Academy of Sciences, 93(4), pp. 1591-1595, 1996.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.seismic.kirchhoff.fixed_point import early_samples
from collops.seismic.kirchhoff.geometry import Geometry, ImageGrid, finite_array
from collops.seismic.kirchhoff.nodes import checked_factor

Mode = Literal["analytic", "eikonal", "byot"]

_STRAIGHT_CELLS = 5.0  # distance from a source within which rays are taken as straight, in cells
_POINTS_OF_RAY = 17  # number of points of a straight ray at which the slowness is interpolated


@dataclass(frozen=True)
class TravelTimes:
    """The travel-time table of a Kirchhoff operator: the method that computes it, or its arrays.

    Parameters
    ----------
    mode : {"eikonal", "analytic", "byot"}
        First arrivals in a velocity model (needs scikit-fmm), straight rays in a constant velocity, or `arrays`
        ("bring your own tables", as PyLops calls it).
    velocity : float or array, optional
        Velocity in m/s: a number, or (mode ``"eikonal"``) an array of the image's shape. Mode ``"byot"`` takes
        either, and needs it only for amplitudes and a dip limit.
    arrays : tuple of two arrays, optional
        Mode ``"byot"``: times in s, shapes (points, sources) and (points, receivers), points in C order of the image.
        Infinity marks points without an arrival.
    coarsen : int
        Compute the table only at every `coarsen`-th image point along each axis. Not in mode ``"byot"``.

    Raises
    ------
    InputError
        If an argument cannot be used.

    Examples
    --------
    >>> from collops.seismic.kirchhoff import TravelTimes
    >>> TravelTimes("analytic", 1500.0).coarsen
    1
    """

    mode: Mode = "eikonal"
    velocity: Any = None
    arrays: tuple[Any, Any] | None = None
    coarsen: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("analytic", "eikonal", "byot"):
            raise InputError(f"mode must be 'analytic', 'eikonal' or 'byot', not {self.mode!r}")
        if self.arrays is not None and self.mode != "byot":
            raise InputError(f"travel_times are for mode 'byot'; mode {self.mode!r} computes them")
        if checked_factor(self.coarsen) != 1 and self.mode == "byot":
            raise InputError("coarsen needs computed travel times: use another mode, or pass a coarser image")

    def fitted(self, geometry: Geometry, needs_velocity: bool) -> TravelTimes:
        """Return a copy with velocity and arrays checked against a geometry, in float64 and with its shapes.

        With `needs_velocity`, weights need the velocity at all points also in mode ``"byot"``.
        """
        grid = geometry.grid
        if self.mode == "byot":
            if needs_velocity and self.velocity is None:
                raise InputError("amplitudes and max_dip need the velocity also in mode 'byot'")
            speed = checked_velocity(self.velocity, grid, "eikonal") if needs_velocity else 1.0
            return replace(self, velocity=speed, arrays=_checked_arrays(self.arrays, geometry))
        geometry.check_inside()
        if self.mode == "eikonal":
            require_eikonal_solver()
        return replace(self, velocity=checked_velocity(self.velocity, grid, self.mode))

    def early(self, geometry: Geometry, sources: slice) -> int:
        """Return the number of samples from the earliest time of these sources and all receivers to zero."""
        if self.arrays is None:
            return 0
        outward, back = self.arrays
        return early_samples(outward[:, sources], back, geometry.interval)

    def seconds(self, geometry: Geometry, positions: np.ndarray) -> Callable[[int, tuple[np.ndarray, ...]], np.ndarray]:
        """Return the callable `seconds` for `tables_of_stations`.

        `positions` are the coordinates of all stations; in mode ``"byot"``, sources and then receivers.
        """
        grid, velocity = geometry.grid, self.velocity
        if self.mode == "analytic":
            return lambda station, indices: analytic(grid, positions[station], velocity, indices)
        if self.mode == "eikonal":
            return lambda station, indices: eikonal(grid, positions[station], velocity)[indices]
        assert self.arrays is not None
        (outward, back), sources = self.arrays, len(geometry.sources)

        def from_arrays(station: int, indices: tuple[np.ndarray, ...]) -> np.ndarray:
            # A column at a time: the arrays may be mapped from files.
            column = outward[:, station] if station < sources else back[:, station - sources]
            return column.reshape(grid.shape)[indices]

        return from_arrays


def _checked_arrays(arrays: Any, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Return the tables of travel times, (points, sources) and (points, receivers), after checking their shapes."""
    if not isinstance(arrays, tuple | list) or len(arrays) != 2:
        raise InputError("mode 'byot' needs travel_times: a tuple of the sources' and the receivers' table")
    outward, back = (np.asarray(table) for table in arrays)
    for what, table, stations in (("source", outward, geometry.sources), ("receiver", back, geometry.receivers)):
        if table.shape != (geometry.grid.points, len(stations)):
            raise InputError(
                f"the {what} travel times have shape {table.shape}; they need (image points, {what}s) = "
                f"{(geometry.grid.points, len(stations))}"
            )
    return outward, back


def checked_velocity(velocity: ArrayLike, grid: ImageGrid, mode: str) -> Any:
    """Return the velocity in the form that the mode needs: a positive number, or an array of the grid's shape."""
    if velocity is None:
        raise InputError(f"mode {mode!r} needs a velocity in m/s: a number, or an array of shape {grid.shape}")
    values = finite_array("velocity", velocity)
    if not np.all(values > 0):
        raise InputError(f"velocity must be positive everywhere; its smallest value is {values.min():g}")
    if mode == "analytic":
        if values.size != 1:
            raise InputError("mode 'analytic' needs a constant velocity; use mode 'eikonal' for a velocity grid")
        return float(values.reshape(()))
    if values.size == 1:
        return np.full(grid.shape, float(values.reshape(())))
    if values.shape != grid.shape:
        raise InputError(f"velocity has shape {values.shape}, the model {grid.shape}; resample it to the model's axes")
    return values


def analytic(grid: ImageGrid, position: np.ndarray, velocity: float, indices: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the travel times along straight rays from a position to grid points, in seconds, float64.

    For `indices` see `ImageGrid.offsets`.
    """
    squares = [part**2 for part in grid.offsets(position, indices)]
    # PyLops adds x and z first: with the same order, both agree to the last bit.
    distance = squares[-2] + squares[-1]
    if len(squares) == 3:
        distance = distance + squares[0]
    return np.sqrt(distance) / velocity


def eikonal(grid: ImageGrid, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the first arrivals from a position in seconds, by second-order fast marching [1]_; float64.

    The position may lie between grid points. The error of fast marching is largest next to a source. Within a few cells
    of it, times are therefore the slowness integrated along straight rays, and the scheme starts from a wavefront of
    these times. `velocity` has the shape of the grid, in any memory order. Raises InputError if scikit-fmm is not
    installed.
    """
    require_eikonal_solver()
    import skfmm

    cell = max(grid.spacing)
    distance = grid.distance(position, np.ix_(*map(np.arange, grid.shape)))
    near = distance <= _STRAIGHT_CELLS * cell
    straight = np.where(near, distance, np.inf)
    straight[near] *= _mean_slowness(grid, position, np.argwhere(near), velocity)
    if near.all():
        return straight
    # The largest wavefront within these points; in very slow velocities, the wavefront at the nearest point.
    rim = straight[near & (distance > (_STRAIGHT_CELLS - 2) * cell)]
    start = max(float(rim.min()), float(straight.min()))
    front = np.where(near, grid.value_at(velocity, position) * (straight - start), distance)
    # scikit-fmm ignores the memory order of both.
    front, velocity = np.ascontiguousarray(front), np.ascontiguousarray(velocity, np.float64)
    beyond = np.asarray(skfmm.travel_time(front, velocity, dx=list(grid.spacing), order=2))
    # A straight ray cannot arrive before the first arrival.
    return np.minimum(straight, start + beyond)


def _mean_slowness(grid: ImageGrid, position: np.ndarray, nodes: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the mean slowness along straight lines from a position to nodes, whose indices are (nodes, axes)."""
    from scipy.ndimage import map_coordinates

    start = (position - [axis[0] for axis in grid.axes]) / np.array(grid.spacing)
    points = np.linspace(start, nodes, _POINTS_OF_RAY)  # (points, nodes, axes)
    speed = map_coordinates(velocity, np.moveaxis(points, -1, 0), order=1, mode="nearest")
    return np.asarray(np.trapezoid(1 / speed, dx=1 / (_POINTS_OF_RAY - 1), axis=0))


def require_eikonal_solver() -> None:
    """Raise InputError if scikit-fmm is not installed."""
    try:
        import skfmm  # noqa: F401
    except ImportError as error:
        raise InputError(
            "mode 'eikonal' needs scikit-fmm: pip install 'collops[eikonal]', or pass travel times with mode 'byot'"
        ) from error
