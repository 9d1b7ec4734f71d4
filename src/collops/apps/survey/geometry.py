"""The geometry of a 2-D survey: the line on the map, the stations, and the image grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collops.apps.files import not_finite
from collops.apps.signals import smooth_step
from collops.errors import InputError

__all__ = ["Geometry", "Grid", "Line", "check_traces", "cover", "mute_direct", "shots_of"]

_MOST_COLUMNS, _MOST_ROWS = 401, 401
_MARGIN = 0.05
_MOST_STEPS = 1e12


@dataclass(frozen=True)
class Line:
    """A straight line on the map."""

    origin: tuple[float, float] = (0.0, 0.0)  # easting and northing in metres of the point at distance zero
    direction: tuple[float, float] = (1.0, 0.0)  # unit vector along which the distance grows

    @classmethod
    def through(cls, east: np.ndarray, north: np.ndarray) -> Line:
        """Choose the line for points on the map.

        If only one coordinate varies, the distance is that coordinate as it is in the file. Otherwise the line is the
        least-squares fit through the points; it points east (or north), and its first point has distance zero.
        """
        if np.ptp(north) == 0:
            return cls((0.0, float(north[0])), (1.0, 0.0))
        if np.ptp(east) == 0:
            return cls((float(east[0]), 0.0), (0.0, 1.0))
        centre = np.array([east.mean(), north.mean()])
        offsets = np.stack([east, north]) - centre[:, None]
        direction = np.linalg.eigh(offsets @ offsets.T)[1][:, -1]
        direction *= np.sign(direction[np.argmax(np.abs(direction))])
        origin = centre + direction * (direction @ offsets).min()
        return cls((float(origin[0]), float(origin[1])), (float(direction[0]), float(direction[1])))

    def distance(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance along the line, in metres, of points on the map."""
        return (east - self.origin[0]) * self.direction[0] + (north - self.origin[1]) * self.direction[1]

    def position(self, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the easting and northing, in metres, of points on the line."""
        return self.origin[0] + distance * self.direction[0], self.origin[1] + distance * self.direction[1]

    def deviation(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance from the line, in metres, of points on the map."""
        return np.abs((north - self.origin[1]) * self.direction[0] - (east - self.origin[0]) * self.direction[1])


def shots_of(rank: int, shots: int, ranks: int) -> range:
    """Return the shots of a rank: blocks in order, the first ``shots % ranks`` one shot longer."""
    size, longer = divmod(shots, ranks)
    first = rank * size + min(rank, longer)
    return range(first, first + size + (rank < longer))


@dataclass(frozen=True)
class Geometry:
    """Positions and sampling of a 2-D survey, the same on every rank."""

    sources: np.ndarray  # shape ``(2, shots)``, float64: distance along the line and depth, in metres
    # one array per shot, shape ``(2, receivers of that shot)``, in metres; equal ones are a fixed spread
    receivers: Sequence[np.ndarray]
    samples: int  # number of samples of every trace
    interval: float  # time between samples in seconds
    start: float = 0.0  # time of the first sample after the shot, in seconds

    def __post_init__(self) -> None:
        if self.shots < 1 or self.sources.shape != (2, self.shots) or len(self.receivers) != self.shots:
            raise InputError("a survey needs shots, each with a position along the line, a depth, and receivers")
        if any(r.ndim != 2 or r.shape[0] != 2 or r.shape[1] < 1 for r in self.receivers):
            raise InputError("a survey needs at least one receiver with position and depth for each shot")
        # The operator interpolates between samples.
        if self.samples < 2:
            raise InputError(f"a survey needs at least 2 samples a trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive and finite, not {self.interval} s")
        if not all(np.isfinite(numbers).all() for numbers in (self.start, self.sources, *self.receivers)):
            raise InputError("the positions of sources and receivers and the first time must be finite numbers")

    @property
    def shots(self) -> int:
        """Number of shots."""
        return self.sources.shape[-1]

    @property
    def traces(self) -> int:
        """Number of traces of all shots together."""
        return sum(receivers.shape[1] for receivers in self.receivers)

    @property
    def times(self) -> np.ndarray:
        """Time of every sample after the shot, in seconds."""
        return self.start + self.interval * np.arange(self.samples)

    @property
    def fixed_spread(self) -> bool:
        """Whether all shots were recorded by the same receivers."""
        first = self.receivers[0]
        return all(r is first or np.array_equal(r, first) for r in self.receivers)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Smallest and largest position along the line, and depth, of all sources and receivers."""
        positions = np.concatenate([self.sources, *self.distinct_receivers()], axis=1)
        low, high = positions.min(axis=1), positions.max(axis=1)
        return float(low[0]), float(high[0]), float(low[1]), float(high[1])

    def distinct_receivers(self) -> list[np.ndarray]:
        """Return the receiver arrays without those that are the very same object as one before."""
        return list({id(receivers): receivers for receivers in self.receivers}.values())


def check_traces(shots: range, traces: list[np.ndarray]) -> None:
    """Raise `InputError` if the traces of some shots, an array for each, have samples that are not finite."""
    for shot, values in zip(shots, traces, strict=True):
        if (place := not_finite(values)) is not None:
            raise InputError(
                f"shot {shot + 1}, trace {place[0] + 1}, sample {place[1] + 1} is {values[place]}: "
                "repair or remove samples that are not finite numbers"
            )


def mute_direct(traces: list[np.ndarray], geometry: Geometry, shots: range, speed: float, duration: float) -> None:
    """Mute the direct wave of `shots`, in place: a migration would smear it over the shallow image.

    Samples are zero until offset / `speed` (m/s) + `duration` (of the wavelet, in seconds), and fade in during the same
    time again.
    """
    times = geometry.times
    for shot, values in zip(shots, traces, strict=True):
        offsets = np.abs(geometry.receivers[shot][0] - geometry.sources[0, shot])
        passed = (times[None, :] - offsets[:, None] / speed - duration) / duration
        values *= smooth_step(passed).astype(values.dtype)


@dataclass(frozen=True)
class Grid:
    """A regular grid of image points; arrays on it have shape ``(nx, nz)``."""

    nx: int  # points along the line
    nz: int  # points in depth, from depth 0
    dx: float  # their spacings in metres
    dz: float
    x0: float = 0.0  # distance along the line of the first column, in metres

    def __post_init__(self) -> None:
        # The eikonal solver and the interpolation of velocities take differences along both axes.
        for name, size in (("nx", self.nx), ("nz", self.nz)):
            if size < 2:
                raise InputError(f"the image needs at least 2 points along each axis, but --{name} is {size}")
        for name, spacing in (("dx", self.dx), ("dz", self.dz)):
            if not (np.isfinite(spacing) and spacing > 0):
                raise InputError(f"--{name} must be a positive number of metres, not {spacing}")
        if not np.isfinite(self.x0):
            raise InputError(f"--x0 must be a finite number of metres, not {self.x0}")

    @property
    def shape(self) -> tuple[int, int]:
        """Points along the line, points in depth."""
        return self.nx, self.nz

    @property
    def x(self) -> np.ndarray:
        """Distance of every column along the line, in metres."""
        return self.x0 + self.dx * np.arange(self.nx)

    @property
    def z(self) -> np.ndarray:
        """Depth of every row, in metres."""
        return self.dz * np.arange(self.nz)

    def check_contains(self, geometry: Geometry) -> None:
        """Raise `InputError` unless all sources and receivers are on the grid."""
        left, right, top, bottom = geometry.bounds
        # Files round coordinates: accept positions up to a thousandth of a cell outside.
        slack_x, slack_z = self.dx / 1000, self.dz / 1000
        if left < self.x[0] - slack_x or right > self.x[-1] + slack_x:
            raise InputError(
                f"sources and receivers lie at {left:g} to {right:g} m, "
                f"off the model's {self.x[0]:g} to {self.x[-1]:g} m: "
                "change --nx, --dx or --x0, or leave them out"
            )
        if top < -slack_z or bottom > self.z[-1] + slack_z:
            raise InputError(
                f"sources and receivers lie at depths of {top:g} to {bottom:g} m, "
                f"off the model's 0 to {self.z[-1]:g} m: "
                "change --nz or --dz, or leave them out"
            )


def cover(
    geometry: Geometry,
    profile: Callable[[np.ndarray], np.ndarray],
    *,
    nx: int | None = None,
    nz: int | None = None,
    dx: float | None = None,
    dz: float | None = None,
    x0: float | None = None,
) -> Grid:
    """Choose the grid for a survey, keeping the numbers that are given.

    The grid covers the line from the first to the last station with a margin of 5 % on both sides. Columns are half a
    receiver spacing apart (the spacing of midpoints). Rows have the spacing of the columns and reach down to the
    reflector whose vertical echo arrives at the end of the record. There are at most 401 of each. Spacings are rounded
    to three digits. `profile` returns the velocity in m/s at an array of depths in m.
    """
    left, right, _, deepest = geometry.bounds
    span = (right - left) * (1 + 2 * _MARGIN)
    if dx is None:
        if nx is not None:
            dx = _rounded(span / max(nx - 1, 1), np.ceil)
        else:
            dx = max(_rounded(_receiver_spacing(geometry) / 2, np.floor), _rounded(span / (_MOST_COLUMNS - 1), np.ceil))
    _check_steps("dx", span, dx)
    margin = _MARGIN * (right - left)
    if dx > 0 and nx is None and x0 is None:
        # Columns are at multiples of the spacing, as stations often are.
        first, last = np.floor((left - margin) / dx), np.ceil((right + margin) / dx)
        nx, x0 = int(last - first) + 1, float(first * dx)
    if nx is None:
        nx = int(np.ceil((right + margin - (left if x0 is None else x0)) / dx)) + 1 if dx > 0 else 1
    if x0 is None:
        # Centre the columns on the line.
        x0 = ((left + right) - (nx - 1) * dx) / 2
    if dz is None or nz is None:
        depth = max(_deepest_echo(profile, geometry), 1.5 * deepest)
        if dz is None:
            dz = _rounded(depth / (_MOST_ROWS - 1 if nz is None else max(nz - 1, 1)), np.ceil)
            dz = max(dx, dz) if nz is None else dz
        if nz is None:
            _check_steps("dz", depth, dz)
            nz = int(np.ceil(depth / dz)) + 1 if dz > 0 else 1
    return Grid(nx, nz, dx, dz, x0)


def _check_steps(name: str, length: float, step: float) -> None:
    """Raise if a length has too many steps for any array; `Grid` checks that steps are positive."""
    if step > 0 and not float(length) / step < _MOST_STEPS:
        raise InputError(f"--{name} {step:g} is too fine for {length:g} m: choose a larger one")


def _receiver_spacing(geometry: Geometry) -> float:
    """Return the median distance between neighbouring receivers along the line, over the shots."""
    steps = [np.diff(np.unique(receivers[0])) for receivers in geometry.distinct_receivers()]
    together: np.ndarray = np.concatenate(steps)
    left, right, _, _ = geometry.bounds
    return float(np.median(together)) if together.size else (right - left) / 100


def _deepest_echo(profile: Callable[[np.ndarray], np.ndarray], geometry: Geometry) -> float:
    """Return the depth from which a vertical echo arrives at the end of the record."""
    one_way = float(geometry.times[-1]) / 2
    if one_way <= 0:
        raise InputError("the record ends before the shot: check the delay recording time in the trace headers")
    speed = float(profile(np.zeros(1))[0])
    depth, steps = speed * one_way, 2000
    # Double the depth until the echo arrives late enough.
    for _ in range(60):
        z = np.linspace(0, depth, steps)
        velocity = profile(z)
        if not (velocity > 0).all():
            usable = z[: int(np.argmin(velocity > 0))]
            return float(usable[-1]) if usable.size else 0.0
        time = np.concatenate([[0], np.cumsum(np.diff(z) * 2 / (velocity[1:] + velocity[:-1]))])
        if time[-1] >= one_way:
            return float(np.interp(one_way, time, z))
        depth *= 2
    return depth


def _rounded(value: float, how: Callable[[float], float]) -> float:
    """Round a positive number to three digits, down or up."""
    if value <= 0 or not np.isfinite(value):
        return value
    unit = 10.0 ** (np.floor(np.log10(value)) - 2)
    # The tiny shift keeps rounding errors from moving a round number.
    shift = 1e-9 if how is np.floor else -1e-9
    return float(np.round(how(value / unit + shift) * unit, 9))
