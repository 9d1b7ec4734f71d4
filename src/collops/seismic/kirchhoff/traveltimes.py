"""Travel times from stations to image points: straight rays, first arrivals in a velocity model, or given arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from collops import Communicator
from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.communication import collective_errors
from collops.extend.engines import Engine
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.kirchhoff.eikonal.arrivals import Arrivals
from collops.seismic.kirchhoff.fixed_point import early_samples
from collops.seismic.kirchhoff.geometry import Geometry, ImageGrid
from collops.seismic.kirchhoff.nodes import checked_factor
from collops.seismic.real_numbers import finite_array

Mode = Literal["analytic", "eikonal", "byot"]

Seconds = Callable[[Sequence[int], tuple[np.ndarray, ...]], Iterator[LocalArray]]
"""Takes the numbers of stations, and indices of image points along each axis from `numpy.ix_`; yields the travel times
of each station in seconds, on the host or on a device."""

_FACTORS = 2, 4, 8  # of the grids that are tried
# Stations whose times are compared, of all ranks: a few may all be far from what a coarse grid misses. In 3-D the
# sweeps of all points for 8 stations take longer than the tables of hundreds.
_MIN_PROBES, _MAX_PROBES = 8, {2: 32, 3: 8}
_STATIONS_PER_PROBE = 16  # so that a comparison takes little of the time of many stations


@dataclass(frozen=True)
class TravelTimes:
    """The travel-time table of a Kirchhoff operator: the method that computes it, or its arrays.

    Parameters
    ----------
    mode : {"eikonal", "analytic", "byot"}
        First arrivals in a velocity model, straight rays in a constant velocity, or `arrays`
        ("bring your own tables", as PyLops calls it).
    velocity : float or array, optional
        Velocity in m/s: a number, or (mode ``"eikonal"``) an array of the image's shape. Mode ``"byot"`` takes
        either, and needs it only for amplitudes and a dip limit.
    arrays : tuple of two arrays, optional
        Mode ``"byot"``: times in s, shapes (points, sources) and (points, receivers), points in C order of the image.
        Infinity marks points without an arrival.
    thomsen : Thomsen, optional
        Anisotropy of a medium in mode ``"eikonal"``, whose velocity along the axis is `velocity`; isotropic by default.
    coarsen : int
        Keep the table only at every `coarsen`-th image point along each axis. Not in mode ``"byot"``.
    tolerance : float, optional
        Mode ``"eikonal"``: sweep every 2nd, 4th or 8th image point along each axis, the last before the root mean
        square error of the times exceeds `tolerance`, in seconds; if 2 exceeds it, all points, as by default. The error
        is estimated by :func:`arrivals_error` for 8 stations in 3-D, and for up to 32 in 2-D: times of others may have
        larger errors. Not with amplitudes and a dip limit, which need smooth times.

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
    thomsen: Thomsen | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("analytic", "eikonal", "byot"):
            raise InputError(f"mode must be 'analytic', 'eikonal' or 'byot', not {self.mode!r}")
        if self.arrays is not None and self.mode != "byot":
            raise InputError(f"travel_times are for mode 'byot'; mode {self.mode!r} computes them")
        if self.thomsen is not None and self.mode != "eikonal":
            raise InputError(f"anisotropy needs first arrivals: use mode 'eikonal', not {self.mode!r}")
        if checked_factor(self.coarsen) != 1 and self.mode == "byot":
            raise InputError("coarsen needs computed travel times: use another mode, or pass a coarser image")
        if self.tolerance is not None and self.mode != "eikonal":
            raise InputError(f"tolerance is for times of mode 'eikonal', not {self.mode!r}: omit it")
        object.__setattr__(self, "tolerance", checked_tolerance(self.tolerance))  # frozen

    def fitted(self, geometry: Geometry, needs_velocity: bool) -> TravelTimes:
        """Return a copy with velocity and arrays checked against a geometry, in float64 and with its shapes.

        With `needs_velocity`, weights trace rays: they need the velocity at all points also in mode ``"byot"``.
        """
        grid = geometry.grid
        checked_tolerance(self.tolerance, needs_velocity)
        if self.mode == "byot":
            if needs_velocity and self.velocity is None:
                raise InputError("amplitudes and max_dip need the velocity also in mode 'byot'")
            speed = checked_velocity(self.velocity, grid, "eikonal") if needs_velocity else 1.0
            return replace(self, velocity=speed, arrays=_checked_arrays(self.arrays, geometry))
        geometry.check_inside()
        if self.thomsen is not None:
            self.thomsen.parameters(grid)  # raises if they cannot be used
        return replace(self, velocity=checked_velocity(self.velocity, grid, self.mode))

    def early(self, geometry: Geometry, sources: slice) -> int:
        """Return the number of samples from the earliest time of these sources and all receivers to zero."""
        if self.arrays is None:
            return 0
        outward, back = self.arrays
        return early_samples(outward[:, sources], back, geometry.interval)

    def coarsest_grid(
        self,
        geometry: Geometry,
        positions: np.ndarray,
        engine: Engine,
        dtype: np.dtype,
        threads: int | None,
        comm: Communicator,
    ) -> tuple[int, float]:
        """Return the function `coarsest_grid` for the tolerance; without one, all points. Collective."""
        if self.tolerance is None:
            return 1, 0.0
        arguments = geometry.grid, positions, self.velocity, engine, dtype, threads, self.thomsen
        return coarsest_grid(*arguments, self.tolerance, comm)

    def seconds(
        self,
        geometry: Geometry,
        positions: np.ndarray,
        engine: Engine,
        dtype: np.dtype,
        threads: int | None,
        factor: int = 1,
    ) -> Seconds:
        """Return the callable `seconds` for `tables_of_stations`.

        `positions` are the coordinates of all stations; in mode ``"byot"``, sources and then receivers. The last four
        arguments are for `first_arrivals`; the last one is its `coarsen`.
        """
        grid, velocity = geometry.grid, self.velocity
        if self.mode == "analytic":
            return lambda stations, indices: (analytic(grid, positions[each], velocity, indices) for each in stations)
        if self.mode == "eikonal":
            return arrivals_at(grid, positions, velocity, engine, dtype, threads, self.thomsen, factor)
        assert self.arrays is not None
        (outward, back), sources = self.arrays, len(geometry.sources)

        def from_arrays(stations: Sequence[int], indices: tuple[np.ndarray, ...]) -> Iterator[np.ndarray]:
            # A column at a time: the arrays may be mapped from files.
            for station in stations:
                column = outward[:, station] if station < sources else back[:, station - sources]
                yield column.reshape(grid.shape)[indices]

        return from_arrays


def arrivals_at(
    grid: ImageGrid,
    positions: np.ndarray,
    velocity: np.ndarray,
    engine: Engine,
    dtype: np.dtype,
    threads: int | None,
    thomsen: Thomsen | None = None,
    factor: int = 1,
) -> Seconds:
    """Return the callable `seconds` of first arrivals in a velocity model; for the arguments see `first_arrivals`."""
    arrivals = _arrivals(grid, velocity, engine, dtype, threads, thomsen)

    def seconds(stations: Sequence[int], indices: tuple[np.ndarray, ...]) -> Iterator[LocalArray]:
        return arrivals.times(positions[np.asarray(stations, int)], factor, indices)

    return seconds


def coarsest_grid(
    grid: ImageGrid,
    positions: np.ndarray,
    velocity: np.ndarray,
    engine: Engine,
    dtype: np.dtype,
    threads: int | None,
    thomsen: Thomsen | None,
    tolerance: float,
    comm: Communicator,
) -> tuple[int, float]:
    """Return the largest factor with which times are within a tolerance, and their error, in seconds. Collective.

    The error is the largest by `arrivals_error` of some of the stations, which the ranks share, and of all smaller
    factors, since two coarse grids may miss the same layer. The factor is 1 if no coarser grid will do. Arguments are
    the same on every rank.
    """
    arrivals = _arrivals(grid, velocity, engine, dtype, threads, thomsen)
    count = min(_MAX_PROBES[len(grid.axes)], max(_MIN_PROBES, len(positions) // _STATIONS_PER_PROBE), len(positions))
    probes = np.linspace(0, len(positions) - 1, count).astype(int)[comm.rank :: comm.size]
    largest, allowed = 1, 0.0
    for factor in _FACTORS:
        error = allowed
        with collective_errors(comm):
            if len(probes):
                error = max(error, arrivals.error(positions[probes], factor))
        error = float(comm.allreduce(np.array(error), "max"))
        if error > tolerance:
            break
        largest, allowed = factor, error
    return largest, allowed


def interpolates_alike(factor: int, step: int, starts: Sequence[int], thomsen: Thomsen | None) -> bool:
    """Return whether tables of every `factor`-th point interpolate as the times of every `step`-th point do.

    `starts` are the numbers of the tables' first points along each axis. In an anisotropic medium, the two leave out
    the times of different straight rays.
    """
    return step > 1 and thomsen is None and not step % factor and not any(start % factor for start in starts)


def _arrivals(
    grid: ImageGrid,
    velocity: np.ndarray,
    engine: Engine,
    dtype: np.dtype,
    threads: int | None,
    thomsen: Thomsen | None,
) -> Arrivals:
    anisotropy = () if thomsen is None else (tuple(vars(thomsen).values()),)
    return Arrivals.of(grid.axes, velocity, *anisotropy, engine=engine, dtype=dtype, threads=threads)


def checked_tolerance(tolerance: Any, traces_rays: bool = False) -> float | None:
    """Return a tolerance as a float; raise InputError unless it is positive, and weights need no second derivatives."""
    if tolerance is None:
        return None
    seconds = np.zeros(0) if isinstance(tolerance, str | bool | np.bool_) else finite_array("tolerance", tolerance)
    if seconds.size != 1 or not seconds > 0:
        raise InputError(f"tolerance must be a positive number of seconds, not {tolerance!r}")
    if traces_rays:
        raise InputError("amplitudes and max_dip need travel times of all points: omit tolerance, or the weights")
    return float(seconds.reshape(()))


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
