"""The survey and the model of a Kirchhoff operator, validated, and travel times from positions to all image points.

References
----------
.. [1] Sethian, J. A., "A fast marching level set method for monotonically advancing fronts", Proceedings of the
   National Academy of Sciences, 93(4), pp. 1591-1595, 1996.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError

_AXIS_NAMES = {2: ("x", "z"), 3: ("y", "x", "z")}
_STRAIGHT_CELLS = 5.0  # around a source, in which eikonal times are those of straight rays, up to a wavefront
_POINTS_OF_RAY = 17  # of a straight ray, at which its slowness is interpolated


@dataclass(frozen=True)
class Grid:
    """A uniform grid of image points, ordered (``y``,) ``x``, ``z``: increasing coordinates, and their spacing."""

    axes: tuple[np.ndarray, ...]
    spacing: tuple[float, ...]

    @classmethod
    def from_axes(cls, z: Any, x: Any, y: Any = None) -> Grid:
        """Check the axes of an image: at least two points each, finite, increasing and uniform."""
        given = (x, z) if y is None else (y, x, z)
        checked = [_uniform_axis(name, axis) for name, axis in zip(_AXIS_NAMES[len(given)], given, strict=True)]
        return cls(tuple(axis for axis, _ in checked), tuple(spacing for _, spacing in checked))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return _AXIS_NAMES[len(self.axes)]

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(axis.size for axis in self.axes)

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    def distance(self, position: np.ndarray, at: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the distances of grid points from a position, in metres; `at` is as in `apart`."""
        return np.sqrt(sum(part**2 for part in self.apart(position, at)))

    def apart(self, position: np.ndarray, at: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Return the coordinates of grid points relative to a position; `at` has their indices, from `numpy.ix_`."""
        return [axis[index] - place for axis, index, place in zip(self.axes, at, position, strict=True)]

    def value_at(self, values: np.ndarray, position: np.ndarray) -> float:
        """Interpolate values on the grid linearly at a position; the nearest ones continue beyond its edge."""
        from scipy.ndimage import map_coordinates

        place = (position - [axis[0] for axis in self.axes]) / np.array(self.spacing)
        return float(map_coordinates(values, place[:, np.newaxis], order=1, mode="nearest")[0])


def checked_positions(what: str, positions: Any, grid: Grid, *, inside: bool) -> np.ndarray:
    """Return source or receiver coordinates, of rows (``y``,) ``x``, ``z``, as float64 of shape (positions, axes).

    `what` names them in errors. If they must be `inside`, positions off the model are errors.
    """
    values = _finite_array(what, positions)
    if values.ndim != 2 or values.shape[0] != len(grid.axes):
        raise InputError(
            f"{what} must have shape ({len(grid.axes)}, number) with rows {', '.join(grid.names)}; got {values.shape}"
        )
    if inside:
        for name, axis, spacing, coordinates in zip(grid.names, grid.axes, grid.spacing, values, strict=True):
            tolerance = 1e-3 * spacing
            off = (coordinates < axis[0] - tolerance) | (coordinates > axis[-1] + tolerance)
            if off.any():
                first = int(np.flatnonzero(off)[0])
                raise InputError(
                    f"{what}[:, {first}] is at {name} = {coordinates[first]:g}, off the model, which goes from "
                    f"{axis[0]:g} to {axis[-1]:g}; enlarge the model or leave it out ({int(off.sum())} such positions)"
                )
    return np.ascontiguousarray(values.T)


def checked_time_axis(t: Any) -> tuple[float, int]:
    """Return the sampling interval and the number of samples of a uniform time axis that begins at zero."""
    axis, interval = _uniform_axis("t", t)
    if abs(axis[0]) > 1e-6 * interval:
        raise InputError(
            f"t must begin at 0, not {axis[0]:g}; for recordings that begin later, subtract the delay from the source "
            "travel times and use mode 'byot'"
        )
    return interval, axis.size


def checked_velocity(velocity: Any, grid: Grid, mode: str) -> Any:
    """Return what the mode needs: one positive number, an array of the grid's shape, or nothing for given times."""
    if mode == "byot":
        return None
    if velocity is None:
        raise InputError(f"mode {mode!r} needs a velocity: a number, or an array of shape {grid.shape}")
    values = _finite_array("velocity", velocity)
    if not np.all(values > 0):
        raise InputError(f"velocity must be positive everywhere; its smallest value is {values.min():g}")
    if mode == "analytic":
        if values.size != 1:
            raise InputError("mode 'analytic' needs one number as velocity; use mode 'eikonal' for a velocity grid")
        return float(values.reshape(()))
    if values.size == 1:
        return np.full(grid.shape, float(values.reshape(())))
    if values.shape != grid.shape:
        raise InputError(f"velocity has shape {values.shape}, the model {grid.shape}; resample it to the model's axes")
    return values


def checked_wavelet(wavelet: Any, center: Any) -> tuple[np.ndarray, int]:
    """Return a finite 1-D wavelet as float64, and the index of its time zero, which is one of its own."""
    taps = _finite_array("wavelet", wavelet)
    if taps.ndim != 1 or taps.size == 0:
        raise InputError(f"wavelet must be a 1-D array with at least one sample; got shape {taps.shape}")
    try:
        index = int(center)
        whole = index == center
    except (TypeError, ValueError, OverflowError):
        index, whole = -1, False
    if not whole or not 0 <= index < taps.size:
        raise InputError(f"wavelet_center must be an index of the wavelet, 0 to {taps.size - 1}; got {center!r}")
    return taps, index


def analytic(grid: Grid, position: np.ndarray, velocity: float, at: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the travel times along straight rays from a position to grid points, in seconds, float64.

    `at` is as in `Grid.apart`.
    """
    squares = [part**2 for part in grid.apart(position, at)]
    # x and z first, as PyLops adds them, so that both agree to the last bit.
    distance = squares[-2] + squares[-1]
    if len(squares) == 3:
        distance = distance + squares[0]
    return np.sqrt(distance) / velocity


def eikonal(grid: Grid, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the first arrivals from a position in seconds, by second-order fast marching [1]_; float64.

    The position may be between grid points. The error of fast marching is largest next to a source. Within a few cells
    rays are therefore straight, with the slowness integrated along them, and the scheme starts from a wavefront of
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
    # The largest wavefront that lies among these points; in very slow ones, it is at the nearest of them.
    rim = straight[near & (distance > (_STRAIGHT_CELLS - 2) * cell)]
    start = max(float(rim.min()), float(straight.min()))
    front = np.where(near, grid.value_at(velocity, position) * (straight - start), distance)
    # scikit-fmm ignores the memory order of both.
    front, velocity = np.ascontiguousarray(front), np.ascontiguousarray(velocity, np.float64)
    beyond = np.asarray(skfmm.travel_time(front, velocity, dx=list(grid.spacing), order=2))
    # Along no path is a wave earlier than its first arrival.
    return np.minimum(straight, start + beyond)


def _mean_slowness(grid: Grid, position: np.ndarray, nodes: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the mean slowness along straight lines from a position to nodes, whose indices are (nodes, axes)."""
    from scipy.ndimage import map_coordinates

    place = (position - [axis[0] for axis in grid.axes]) / np.array(grid.spacing)
    points = np.linspace(place, nodes, _POINTS_OF_RAY)  # (points, nodes, axes)
    speed = map_coordinates(velocity, np.moveaxis(points, -1, 0), order=1, mode="nearest")
    return np.asarray(np.trapezoid(1 / speed, dx=1 / (_POINTS_OF_RAY - 1), axis=0))


def require_eikonal_solver() -> None:
    """Raise InputError if scikit-fmm is not installed."""
    try:
        import skfmm  # noqa: F401
    except ImportError as error:
        raise InputError(
            "mode 'eikonal' needs scikit-fmm: pip install 'collops[eikonal]', or give travel times with mode 'byot'"
        ) from error


def _uniform_axis(name: str, values: Any) -> tuple[np.ndarray, float]:
    axis = _finite_array(name, values)
    if axis.ndim != 1 or axis.size < 2:
        raise InputError(f"{name} must be a 1-D axis with at least two points; got shape {axis.shape}")
    step = float(axis[1] - axis[0])
    if step <= 0:
        raise InputError(f"{name} must increase; its first step is {step:g}")
    # An axis made in single precision is uniform to its own rounding only.
    given = np.asarray(values).dtype
    rounding = np.finfo(given).eps if given.kind == "f" else np.finfo(np.float64).eps
    tolerance = 1e-3 * step + 2 * float(rounding) * float(np.abs(axis).max())
    steps = np.diff(axis)
    if np.abs(steps - step).max() > tolerance:
        raise InputError(
            f"{name} must be uniform; its steps go from {steps.min():g} to {steps.max():g}: "
            "resample onto a uniform axis"
        )
    return axis, step


def _finite_array(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers in host memory: {error}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinite values")
    return array
