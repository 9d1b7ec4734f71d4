"""The geometry of a Kirchhoff operator: sources, receivers, image grid and time axis, validated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.seismic.real_numbers import finite_array

_AXIS_NAMES = {2: ("x", "z"), 3: ("y", "x", "z")}


@dataclass(frozen=True)
class ImageGrid:
    """A uniform grid of image points with axes (``y``,) ``x``, ``z``: increasing coordinates, and their spacing.

    Unlike `collops.seismic.survey.Grid`, it may begin at any depth.
    """

    axes: tuple[np.ndarray, ...]
    spacing: tuple[float, ...]

    @classmethod
    def from_axes(cls, z: Any, x: Any, y: ArrayLike | None = None) -> ImageGrid:
        """Check the axes of an image: at least two points each, finite, increasing and uniform."""
        axes = (x, z) if y is None else (y, x, z)
        checked = [_uniform_axis(name, axis) for name, axis in zip(_AXIS_NAMES[len(axes)], axes, strict=True)]
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

    def distance(self, position: np.ndarray, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the distances of grid points from a position, in metres; for `indices` see `offsets`."""
        return np.sqrt(sum(part**2 for part in self.offsets(position, indices)))

    def offsets(self, position: np.ndarray, indices: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        """Return the coordinates of grid points relative to a position; `indices` are from `numpy.ix_`."""
        return [
            axis[number] - coordinate for axis, number, coordinate in zip(self.axes, indices, position, strict=True)
        ]

    def value_at(self, values: np.ndarray, position: np.ndarray) -> float:
        """Interpolate values on the grid linearly at a position; beyond the edge, return the nearest value."""
        from scipy.ndimage import map_coordinates

        node = (position - [axis[0] for axis in self.axes]) / np.array(self.spacing)
        return float(map_coordinates(values, node[:, np.newaxis], order=1, mode="nearest")[0])


def in_memory_of(engine: Engine, parts: Sequence[np.ndarray]) -> list[LocalArray]:
    """Return arrays of one type in the memory of an engine, by one copy."""
    together = engine.from_host(np.concatenate([part.ravel() for part in parts]))
    ends = np.cumsum([part.size for part in parts]).tolist()
    return [together[end - part.size : end].reshape(part.shape) for part, end in zip(parts, ends, strict=True)]


@dataclass(frozen=True)
class Geometry:
    """The geometry of a Kirchhoff operator with one fixed spread: all receivers record every source.

    For shots with different receivers use :class:`collops.seismic.survey.Geometry`.

    Attributes
    ----------
    grid : ImageGrid
        The image points.
    sources, receivers : numpy.ndarray
        Coordinates in metres, float64 of shape (positions, axes of the grid).
    interval : float
        Sampling interval in seconds.
    samples : int
        Samples of a trace, the first one at time 0.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import Geometry
    >>> surface = np.array([[0.0, 20.0, 50.0], [0.0, 0.0, 0.0]])  # x and z
    >>> axes = {"z": np.arange(5) * 10.0, "x": np.arange(6) * 10.0, "t": np.arange(50) * 0.004}
    >>> geometry = Geometry.from_axes(**axes, sources=surface, receivers=surface[:, :2])
    >>> geometry.grid.shape, geometry.data_shape
    ((6, 5), (3, 2, 50))
    """

    grid: ImageGrid
    sources: np.ndarray
    receivers: np.ndarray
    interval: float
    samples: int

    @classmethod
    def from_axes(
        cls,
        z: ArrayLike,
        x: ArrayLike,
        t: ArrayLike,
        sources: ArrayLike,
        receivers: ArrayLike,
        y: ArrayLike | None = None,
    ) -> Geometry:
        """Check axes and positions; for shapes see :func:`collops.seismic.Kirchhoff`.

        Raises
        ------
        InputError
            If axes are not uniform, or positions are not finite or have other coordinates than the grid.
        """
        grid = ImageGrid.from_axes(z, x, y)
        interval, samples = _time_axis(t)
        stations = _positions("sources", sources, grid), _positions("receivers", receivers, grid)
        return cls(grid, *stations, interval, samples)

    @property
    def data_shape(self) -> tuple[int, int, int]:
        """Shape of the data: (sources, receivers, samples)."""
        return len(self.sources), len(self.receivers), self.samples

    def check_inside(self) -> None:
        """Raise InputError if a source or a receiver lies outside the grid."""
        for what, positions in (("sources", self.sources), ("receivers", self.receivers)):
            for name, axis, spacing, values in zip(
                self.grid.names, self.grid.axes, self.grid.spacing, positions.T, strict=True
            ):
                tolerance = 1e-3 * spacing
                off = (values < axis[0] - tolerance) | (values > axis[-1] + tolerance)
                if off.any():
                    first = int(np.flatnonzero(off)[0])
                    raise InputError(
                        f"{what}[:, {first}] is at {name} = {values[first]:g}, outside the model, which extends from "
                        f"{axis[0]:g} to {axis[-1]:g}; enlarge the model or remove the {int(off.sum())} {what} "
                        "outside"
                    )


def _positions(what: str, positions: ArrayLike, grid: ImageGrid) -> np.ndarray:
    """Return coordinates with rows (``y``,) ``x``, ``z`` as float64 of shape (positions, axes)."""
    values = finite_array(what, positions)
    if values.ndim != 2 or values.shape[0] != len(grid.axes):
        raise InputError(
            f"{what} must have shape ({len(grid.axes)}, number) with rows {', '.join(grid.names)}; got {values.shape}"
        )
    return np.ascontiguousarray(values.T)


def _time_axis(t: ArrayLike) -> tuple[float, int]:
    """Return the sampling interval and the number of samples of a uniform time axis that begins at zero."""
    axis, interval = _uniform_axis("t", t)
    if abs(axis[0]) > 1e-6 * interval:
        raise InputError(
            f"t must begin at 0, not {axis[0]:g}; for recordings that begin later, subtract the delay from the source "
            "travel times and use mode 'byot'"
        )
    return interval, axis.size


def checked_wavelet(wavelet: ArrayLike, center: int) -> tuple[np.ndarray, int]:
    """Return a finite 1-D wavelet as float64, and the index of its time zero, after checking both."""
    taps = finite_array("wavelet", wavelet)
    if taps.ndim != 1 or taps.size == 0:
        raise InputError(f"wavelet must be a 1-D array with at least one sample; got shape {taps.shape}")
    try:
        index = int(center)
        is_integer = index == center
    except (TypeError, ValueError, OverflowError):
        index, is_integer = -1, False
    if not is_integer or not 0 <= index < taps.size:
        raise InputError(f"wavelet_center must be an index of the wavelet, 0 to {taps.size - 1}; got {center!r}")
    return taps, index


def _uniform_axis(name: str, values: ArrayLike) -> tuple[np.ndarray, float]:
    axis = finite_array(name, values)
    if axis.ndim != 1 or axis.size < 2:
        raise InputError(f"{name} must be a 1-D axis with at least two points; got shape {axis.shape}")
    step = float(axis[1] - axis[0])
    if step <= 0:
        raise InputError(f"{name} must increase; its first step is {step:g}")
    # A float32 axis is uniform only up to float32 rounding.
    input_dtype = np.asarray(values).dtype
    rounding = np.finfo(input_dtype).eps if input_dtype.kind == "f" else np.finfo(np.float64).eps
    tolerance = 1e-3 * step + 2 * float(rounding) * float(np.abs(axis).max())
    steps = np.diff(axis)
    if np.abs(steps - step).max() > tolerance:
        raise InputError(
            f"{name} must be uniform; its steps range from {steps.min():g} to {steps.max():g}: "
            "resample onto a uniform axis"
        )
    return axis, step
