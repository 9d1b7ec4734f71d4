"""The geometry of a survey in 2-D or 3-D: its axes on the map, the stations, and the image grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from collops.errors import InputError
from collops.extend.applications import not_finite

if TYPE_CHECKING:
    from collops import Layout

__all__ = ["Geometry", "Grid", "shots_of"]

_MAX_POINTS = {2: 401, 3: 101}  # along an axis of an image, by its number of axes
_MARGIN = 0.05
_MAX_STEPS = 1e12


def _pair(vector: np.ndarray) -> tuple[float, float]:
    return float(vector[0]), float(vector[1])


@dataclass(frozen=True)
class Line:
    """A straight line on the map: the axis x of an image; in 3-D, the axis y is perpendicular to it."""

    origin: tuple[float, float] = (0.0, 0.0)  # easting and northing in metres of the point at distance zero
    direction: tuple[float, float] = (1.0, 0.0)  # unit vector along which the distance grows
    side: float = 1.0  # 1 if y grows to the left of the direction, -1 if to the right

    @classmethod
    def through(cls, east: np.ndarray, north: np.ndarray) -> Line:
        """Choose the line for points on the map.

        If only one coordinate varies, the distance is this coordinate, unchanged. Otherwise the line is the
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
        return cls(_pair(origin), _pair(direction))

    @classmethod
    def around(cls, east: np.ndarray, north: np.ndarray) -> Line:
        """Choose the longer side of the smallest rectangle around points on the map, from a corner of it."""
        from scipy.spatial import ConvexHull

        points = np.stack([east, north], axis=1)
        corners = points[ConvexHull(points - points[0]).vertices]
        best = None
        for edge in np.roll(corners, -1, axis=0) - corners:
            along = edge / np.hypot(*edge)
            turned = corners @ np.stack([along, [-along[1], along[0]]], axis=1)
            extent = np.ptp(turned, axis=0)
            if best is None or extent.prod() < (1 - 1e-9) * best[0]:
                direction = along if extent[0] >= extent[1] else np.array([-along[1], along[0]])
                best = extent.prod(), direction * np.sign(direction[np.argmax(np.abs(direction))])
        assert best is not None
        direction = best[1]
        across = np.array([-direction[1], direction[0]])
        origin = direction * (corners @ direction).min() + across * (corners @ across).min()
        return cls(_pair(origin), _pair(direction))

    def distance(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance along the line, in metres, of points on the map."""
        return (east - self.origin[0]) * self.direction[0] + (north - self.origin[1]) * self.direction[1]

    def across(self, east: np.ndarray, north: np.ndarray) -> np.ndarray:
        """Return the distance from the line, in metres and positive on its `side`, of points on the map."""
        distance = (north - self.origin[1]) * self.direction[0] - (east - self.origin[0]) * self.direction[1]
        return self.side * distance

    def position(self, distance: np.ndarray, across: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return the easting and northing, in metres, of points at a distance along the line, and across it."""
        (east, north), offset = self.direction, self.side * across
        return self.origin[0] + distance * east - offset * north, self.origin[1] + distance * north + offset * east


@dataclass(frozen=True)
class Bins:
    """The numbering of the bins of a 3-D survey, along the axes of the survey, whose origin is the first bin."""

    first: tuple[int, int]  # inline and crossline number of the first bin
    steps: tuple[int, int]  # increments of the numbers between bins, along y (inlines) and x (crosslines)
    spacing: tuple[float, float]  # of the bins along y and x, in metres

    @classmethod
    def fit(cls, inline: np.ndarray, crossline: np.ndarray, east: np.ndarray, north: np.ndarray) -> tuple[Line, Bins]:
        """Fit bins to the numbers and the positions of traces; return the axes of the survey and the bins.

        Raises `InputError` unless the positions form a regular grid: perpendicular axes, and positions within a bin or
        two of the positions that their numbers predict.
        """
        numbers = np.stack([inline, crossline])
        first, steps = numbers.min(axis=1), np.gcd.reduce(numbers - numbers[:, :1], axis=1)
        if not steps.all():
            raise InputError("inline and crossline numbers must vary")
        centre = np.array([east.mean(), north.mean()])
        counted = np.concatenate([np.ones((1, len(inline))), (numbers - first[:, None]) / steps[:, None]])
        fitted, _, rank, _ = np.linalg.lstsq(counted.T, np.stack([east, north], axis=1) - centre, rcond=None)
        corner, y, x = fitted
        dy, dx = float(np.hypot(*y)), float(np.hypot(*x))
        misfit = np.hypot(*(np.stack([east, north]) - centre[:, None] - fitted.T @ counted))
        if rank < 3 or abs(x @ y) > 0.02 * dx * dy or np.sqrt((misfit**2).mean()) > max(dx, dy):
            raise InputError("inline and crossline numbers do not describe a regular grid")
        origin, direction = corner + centre, x / dx
        side = 1.0 if direction[0] * y[1] > direction[1] * y[0] else -1.0
        line = Line(_pair(origin), _pair(direction), side)
        return line, cls((int(first[0]), int(first[1])), (int(steps[0]), int(steps[1])), (dy, dx))

    def numbers(self, grid: Grid) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the inline number of each y and the crossline number of each x of a grid; None between bins."""
        numbers = []
        for name, first, step, spacing in zip("yx", self.first, self.steps, self.spacing, strict=True):
            exact = first + step * grid.axes[name] / spacing
            numbers.append(np.rint(exact).astype(np.int64))
            if np.abs(exact - numbers[-1]).max() > 0.01:
                return None
        return numbers[0], numbers[1]


def shots_of(rank: int, shots: int, ranks: int) -> range:
    """Return the shots of a rank: consecutive blocks, the first ``shots % ranks`` with one shot more."""
    size, longer = divmod(shots, ranks)
    first = rank * size + min(rank, longer)
    return range(first, first + size + (rank < longer))


@dataclass(frozen=True)
class Geometry:
    """Positions and sampling of a survey in which each shot may have its own receivers; the same on every rank.

    For an operator with one fixed spread use :class:`collops.seismic.kirchhoff.Geometry`.

    Positions have rows (``y``,) ``x``, ``z`` in metres: in 3-D the distance across the line, the distance along it, and
    the depth.

    Parameters
    ----------
    sources : array
        Shape ``(2, shots)``, in 3-D ``(3, shots)``, float64.
    receivers : sequence of arrays
        One for each shot, of shape ``(2, receivers of that shot)``, in 3-D ``(3, …)``. Consecutive shots with the same
        array object share travel times and an operator.
    samples : int
        Samples of every trace, at least 2.
    interval : float
        Time between samples in seconds.
    start : float
        Time of the first sample after the shot, in seconds.

    Raises
    ------
    InputError
        If shapes differ, or numbers are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.survey import Geometry
    >>> boat = np.array([[0.0, 50.0], [5.0, 5.0]])  # x and z of two shots
    >>> cable = np.array([[100.0, 125.0, 150.0], [8.0, 8.0, 8.0]])
    >>> geometry = Geometry(boat, [cable, cable + [[50.0], [0.0]]], samples=500, interval=0.004)
    >>> geometry.shots, geometry.traces, geometry.offsets(1)
    (2, 6, array([100., 125., 150.]))
    """

    sources: np.ndarray
    receivers: Sequence[np.ndarray]
    samples: int
    interval: float
    start: float = 0.0

    def __post_init__(self) -> None:
        wrong = self.sources.ndim != 2 or self.dims not in (2, 3) or self.shots < 1
        if wrong or len(self.receivers) != self.shots:
            raise InputError(
                "a survey needs at least one shot, and for each shot a position in 2-D or 3-D and receivers"
            )
        if any(r.ndim != 2 or len(r) != self.dims or r.shape[1] < 1 for r in self.receivers):
            raise InputError(f"a survey needs at least one receiver with a position in {self.dims}-D for each shot")
        # The operator interpolates between samples.
        if self.samples < 2:
            raise InputError(f"a survey needs at least 2 samples per trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive and finite, not {self.interval} s")
        if not all(np.isfinite(numbers).all() for numbers in (self.start, self.sources, *self.receivers)):
            raise InputError("the positions of sources and receivers and the first time must be finite numbers")

    @property
    def dims(self) -> int:
        """Number of coordinates of a position: 2 or 3."""
        return len(self.sources)

    @property
    def shots(self) -> int:
        """Number of shots."""
        return self.sources.shape[-1]

    @property
    def traces(self) -> int:
        """Number of traces of all shots together."""
        return sum(receivers.shape[1] for receivers in self.receivers)

    def shares(self, ranks: int) -> list[range]:
        """Return the shots of each rank, for a number of ranks."""
        return [shots_of(rank, self.shots, ranks) for rank in range(ranks)]

    def trace_shape(self, shot: int) -> tuple[int, int]:
        """Return the shape of the traces of a shot: ``(receivers, samples)``."""
        return self.receivers[shot].shape[1], self.samples

    def layout(self, ranks: int) -> Layout:
        """Return the layout of the data, for a number of ranks: 1-D, split by shots."""
        from collops import Layout

        ends = np.cumsum([0, *(part.shape[1] for part in self.receivers)]) * self.samples
        sizes = [int(ends[part.stop] - ends[part.start]) for part in self.shares(ranks)]
        return Layout.split((int(ends[-1]),), ranks, sizes=sizes)

    @property
    def times(self) -> np.ndarray:
        """Time of every sample after the shot, in seconds."""
        return self.start + self.interval * np.arange(self.samples)

    @property
    def shot_of_trace(self) -> np.ndarray:
        """The number of the shot of every trace."""
        return np.repeat(np.arange(self.shots), [receivers.shape[1] for receivers in self.receivers])

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest coordinates of all sources and receivers, in the order of the rows."""
        positions = np.concatenate([self.sources, *self.distinct_receivers()], axis=1)
        return positions.min(axis=1), positions.max(axis=1)

    @cached_property
    def stations(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Distinct positions, (stations, dims), and for each shot the station numbers of its source and receivers.

        Shots with the same receiver array object have the same object of station numbers.
        """
        from collops.seismic.kirchhoff.stations import distinct_rows

        groups = self.distinct_receivers()
        positions, number = distinct_rows(np.concatenate([self.sources, *groups], axis=1).T)
        ends = np.cumsum([self.shots, *(group.shape[1] for group in groups)])
        of_group = {id(group): part for group, part in zip(groups, np.split(number, ends[:-1])[1:], strict=True)}
        return positions, number[: self.shots], [of_group[id(group)] for group in self.receivers]

    def needed(self, shots: range) -> np.ndarray:
        """Return the numbers of the stations of some shots, increasing."""
        _, sources, receivers = self.stations
        groups = {id(receivers[shot]): receivers[shot] for shot in shots}
        return np.unique(np.concatenate([sources[shots.start : shots.stop], *groups.values()]))

    def on_map(self, line: Line) -> tuple[np.ndarray, np.ndarray]:
        """Return easting, northing and depth of the source and of the receiver of every trace, ``(3, traces)``."""
        source, group = self.sources[:, self.shot_of_trace], np.concatenate(list(self.receivers), axis=1)
        (*y, x, z), (*v, u, w) = source, group
        return np.stack([*line.position(x, *y), z]), np.stack([*line.position(u, *v), w])

    def rows(self, shots: range) -> np.ndarray:
        """Return the numbers of the traces of some shots among all traces in the order of the shots."""
        return np.flatnonzero(np.isin(self.shot_of_trace, shots))

    def counted(self) -> list[np.ndarray]:
        """Return numbers from 1 for the receivers of each shot."""
        return [np.arange(receivers.shape[1]) + 1 for receivers in self.receivers]

    def offsets(self, shot: int) -> np.ndarray:
        """Return the horizontal distances of the receivers of a shot, in metres; signed, along the line, in 2-D."""
        vectors = self.receivers[shot][:-1] - self.sources[:-1, shot : shot + 1]
        return vectors[0] if self.dims == 2 else np.hypot(*vectors)

    def distinct_receivers(self) -> list[np.ndarray]:
        """Return the distinct receiver array objects, in order of appearance."""
        return list({id(receivers): receivers for receivers in self.receivers}.values())


def check_traces(shots: range, traces: list[np.ndarray]) -> None:
    """Raise `InputError` if the traces of some shots, an array for each shot, have samples that are not finite."""
    for shot, values in zip(shots, traces, strict=True):
        if (index := not_finite(values)) is not None:
            raise InputError(
                f"shot {shot + 1}, trace {index[0] + 1}, sample {index[1] + 1} is {values[index]}: "
                "repair or remove samples that are not finite numbers"
            )


@dataclass(frozen=True)
class Grid:
    """A regular grid of image points; arrays on it have shape ``(nx, nz)``, in 3-D ``(ny, nx, nz)``.

    Parameters
    ----------
    nx, nz : int
        Number of points along the line and in depth; at least 2.
    dx, dz : float
        Spacing along the line and in depth, in metres.
    x0 : float
        Distance along the line of the first column, in metres.
    ny : int, optional
        Number of points across the line, for a 3-D image.
    dy, y0 : float
        Spacing across the line and the distance of the first point across it, in metres.
    z0 : float
        Depth of the first row in metres. Grids of velocities begin at depth 0; the target of an image may be deeper.

    Raises
    ------
    InputError
        If a number cannot be used.

    Examples
    --------
    >>> from collops.seismic.survey import Grid
    >>> Grid(nx=61, nz=41, dx=12.5, dz=10.0).shape
    (61, 41)
    >>> grid = Grid(61, 41, 12.5, 10.0, ny=30, dy=25.0, y0=100.0)
    >>> grid.shape, grid.axes["y"][:2]
    ((30, 61, 41), array([100., 125.]))
    >>> grid.part(x=(95.0, 300.0), z=(200.0, 400.0)).axes["z"][:2]
    array([200., 210.])
    """

    nx: int
    nz: int
    dx: float
    dz: float
    x0: float = 0.0
    ny: int | None = None
    dy: float = 0.0
    y0: float = 0.0
    z0: float = 0.0

    def __post_init__(self) -> None:
        # The eikonal solver and the interpolation of velocities take differences along all axes.
        for axis in self._names:
            size, spacing, start = (getattr(self, name) for name in (f"n{axis}", f"d{axis}", f"{axis}0"))
            if size < 2:
                raise InputError(f"the image needs at least 2 points along each axis, but --n{axis} is {size}")
            if not (np.isfinite(spacing) and spacing > 0):
                raise InputError(f"--d{axis} must be a positive number of metres, not {spacing}")
            if not np.isfinite(start):
                raise InputError(f"--{axis}0 must be a finite number of metres, not {start}")

    def __str__(self) -> str:
        counts, steps = " x ".join(map(str, self.shape)), " x ".join(f"{step:.5g}" for step in self.spacing)
        return f"{counts} points, {steps} m"

    @property
    def _names(self) -> str:
        return "xz" if self.ny is None else "yxz"

    @property
    def shape(self) -> tuple[int, ...]:
        """Points (across,) along the line and in depth."""
        return tuple(getattr(self, f"n{axis}") for axis in self._names)

    @property
    def points(self) -> int:
        """Number of points."""
        return int(np.prod(self.shape, dtype=object))  # exact at any size, for the memory check

    @property
    def spacing(self) -> tuple[float, ...]:
        """Spacings (across,) along the line and in depth, in metres."""
        return tuple(getattr(self, f"d{axis}") for axis in self._names)

    @property
    def axes(self) -> dict[str, np.ndarray]:
        """Positions along each axis in metres, by ``"y"`` (in 3-D), ``"x"`` and ``"z"``."""
        starts = {axis: getattr(self, f"{axis}0") for axis in self._names}
        return {
            axis: start + spacing * np.arange(size)
            for (axis, start), spacing, size in zip(starts.items(), self.spacing, self.shape, strict=True)
        }

    @property
    def x(self) -> np.ndarray:
        """Distance of every column along the line, in metres."""
        return self.axes["x"]

    @property
    def z(self) -> np.ndarray:
        """Depth of every row, in metres."""
        return self.axes["z"]

    @property
    def numbers(self) -> dict[str, int | float]:
        """The parameters by name; ny, dy and y0 in 3-D only."""
        return {name: value for name, value in asdict(self).items() if self.ny is not None or "y" not in name}

    def columns(self) -> list[np.ndarray]:
        """Return the position of every column of image points: along the line, and in 3-D across it."""
        axes = self.axes
        if self.ny is None:
            return [axes["x"]]
        across, along = np.meshgrid(axes["y"], axes["x"], indexing="ij")
        return [along.ravel(), across.ravel()]

    def part(self, **ranges: tuple[float, float]) -> Grid:
        """Return the grid of the points within ranges of some axes, such as ``z=(500.0, 1500.0)``, in metres.

        Raises
        ------
        InputError
            If the grid has no such axis, or fewer than two points of an axis are within its range.
        """
        changes: dict[str, int | float] = {}
        for name, (first, last) in ranges.items():
            if name not in self._names:
                raise InputError(f"--image-{name} needs a 3-D image: omit it")
            axis, slack = self.axes[name], getattr(self, f"d{name}") / 1000
            inside = np.flatnonzero((axis >= first - slack) & (axis <= last + slack))
            if len(inside) < 2:
                raise InputError(
                    f"--image-{name} {first:g},{last:g} holds {len(inside)} of the points of the model, which extends "
                    f"from {axis[0]:g} to {axis[-1]:g} m in steps of {getattr(self, f'd{name}'):g} m: choose at least 2"
                )
            changes |= {f"n{name}": len(inside), f"{name}0": float(axis[inside[0]])}
        return replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def box(self, part: Grid) -> tuple[slice, ...]:
        """Return slices of the points of a `part` of this grid along each axis.

        Raises
        ------
        InputError
            If they are not points of this grid.
        """
        slices = []
        for name in self._names if len(part.shape) == len(self.shape) else "":
            axis, points = self.axes[name], part.axes[name]
            first, last = (points[[0, -1]] - axis[0]) / getattr(self, f"d{name}")
            start, stop = round(first), round(first) + points.size
            if max(abs(first - start), abs(last + 1 - stop)) < 1e-3 and start >= 0 and stop <= axis.size:
                slices.append(slice(start, stop))
        if len(slices) != len(self.shape):
            raise InputError(f"the target ({part}) must be a part of the model ({self}): use Grid.part")
        return tuple(slices)

    def check_contains(self, geometry: Geometry) -> None:
        """Raise `InputError` unless all sources and receivers are on the grid."""
        if geometry.dims != len(self.shape):
            raise InputError(f"a survey in {geometry.dims}-D needs a grid in {geometry.dims}-D: see --ny")
        low, high = geometry.bounds
        for (name, axis), first, last, spacing in zip(self.axes.items(), low, high, self.spacing, strict=True):
            slack = spacing / 1000  # Files round coordinates: accept positions up to a thousandth of a cell outside.
            if first < axis[0] - slack or last > axis[-1] + slack:
                what, change = {
                    "x": ("at", "--nx, --dx or --x0"),
                    "y": ("at y of", "--ny, --dy or --y0"),
                    "z": ("at depths of", "--nz or --dz"),
                }[name]
                raise InputError(
                    f"sources and receivers lie {what} {first:g} to {last:g} m, outside the model, {axis[0]:g} to "
                    f"{axis[-1]:g} m: change {change}, or remove them"
                )


def cover(
    geometry: Geometry,
    profile: Callable[[np.ndarray], np.ndarray],
    *,
    bins: Bins | None = None,
    nx: int | None = None,
    ny: int | None = None,
    nz: int | None = None,
    dx: float | None = None,
    dy: float | None = None,
    dz: float | None = None,
    x0: float | None = None,
    y0: float | None = None,
    highest: float = 0.0,
    notes: list[str] | None = None,
) -> Grid:
    """Choose the grid for a survey; arguments that are not None are kept.

    The grid covers all stations with a margin of 5 % on each side. In 2-D, the column spacing is half the receiver
    spacing (the spacing of midpoints). In 3-D columns are at the `bins`; without bins their spacing is half the spacing
    of receivers distributed evenly over their area. The row spacing is the column spacing, or less: a quarter of the
    wavelength of the `highest` frequency (Hz; 0 if it is unknown) in the lowest velocity, so that echoes from
    neighbouring rows arrive half a period apart. Rows extend down to the reflector whose vertical echo arrives at the
    end of the record. There are at most 401 points along an axis in 2-D, 101 in 3-D. Spacings, except of bins, are
    rounded to three digits. `profile` returns the velocity in m/s at an array of depths in m. The choice of the rows
    adds a sentence to `notes`.
    """
    low, high = geometry.bounds
    most = _MAX_POINTS[geometry.dims]
    columns = _columns("x", low[-2], high[-2], nx, dx, x0, most, _column_spacing(geometry), bins and bins.spacing[1])
    across: dict[str, float] = {}
    if geometry.dims == 3:
        even = columns["dx"] if bins is None else 0.0
        across = _columns("y", low[0], high[0], ny, dy, y0, most, even, bins and bins.spacing[0])
    elif any(value is not None for value in (ny, dy, y0)):
        raise InputError("--ny, --dy and --y0 need a 3-D survey: omit them, or read the survey with --dims 3")
    if dz is None or nz is None:
        depth = max(_deepest_echo(profile, geometry), 1.5 * float(high[-1]))
        if dz is None:
            dz = _rounded(depth / (most - 1 if nz is None else max(nz - 1, 1)), np.ceil)
            if nz is None:
                along = columns["dx"] if bins is None else _rounded(columns["dx"], np.round)
                dz = _row_spacing(along, dz, float(profile(np.linspace(0, depth, 2000)).min()), highest, most, notes)
        if nz is None:
            _check_steps("dz", depth, dz)
            nz = int(np.ceil(depth / dz)) + 1 if dz > 0 else 1
    return Grid(nz=nz, dz=dz, **columns, **across)  # pyright: ignore[reportArgumentType]


def _row_spacing(along: float, least: float, speed: float, highest: float, most: int, notes: list[str] | None) -> float:
    """Return the row spacing, at least `least`; `along` is the column spacing, `most` the maximum number of rows."""
    quarter = _rounded(speed / (4 * highest), np.floor) if highest > 0 else along
    chosen = max(min(along, quarter), least)
    if notes is not None and highest > 0:
        wave = f"a quarter of the wavelength of {highest:.3g} Hz in {speed:.4g} m/s"
        reasons = {quarter: wave, along: f"the column spacing, less than {quarter:g} m, {wave}"}
        why = reasons.get(chosen, f"limited by the maximum of {most} rows, more than {quarter:g} m, {wave} (--dz)")
        notes.append(f"row spacing {chosen:g} m: {why}; 99 % of the energy lies below this frequency")
    return chosen


def _columns(
    name: str,
    low: float,
    high: float,
    count: int | None,
    step: float | None,
    start: float | None,
    most: int,
    spacing: float,
    bin_spacing: float | None,
) -> dict[str, float]:
    """Choose the number, the spacing and the start of points along an axis from the first to the last station."""
    margin = _MARGIN * (high - low)
    span = high - low + 2 * margin
    if step is None and count is not None:
        step = _rounded(span / max(count - 1, 1), np.ceil)
    elif step is None and bin_spacing:
        step = bin_spacing * max(1.0, float(np.ceil(span / (most - 1) / bin_spacing)))
    elif step is None:
        step = max(_rounded(spacing, np.floor), _rounded(span / (most - 1), np.ceil))
    _check_steps(f"d{name}", span, step)
    if step > 0 and count is None and start is None:
        # Columns are at multiples of the spacing, like stations in many surveys.
        first, last = np.floor((low - margin) / step), np.ceil((high + margin) / step)
        count, start = int(last - first) + 1, float(first * step)
    if count is None:
        count = int(np.ceil((high + margin - (low if start is None else start)) / step)) + 1 if step > 0 else 1
    if start is None:
        # Centre the columns on the stations.
        start = float((low + high) - (count - 1) * step) / 2
    return {f"n{name}": count, f"d{name}": float(step), f"{name}0": float(start)}


def _check_steps(name: str, length: float, step: float) -> None:
    """Raise if a length has too many steps for any array; `Grid` checks that steps are positive."""
    if step > 0 and not float(length) / step < _MAX_STEPS:
        raise InputError(f"--{name} {step:g} is too fine for {length:g} m: choose a larger spacing")


def _column_spacing(geometry: Geometry) -> float:
    """Return half of the typical distance between neighbouring receivers in metres."""
    low, high = geometry.bounds
    receivers = geometry.distinct_receivers()
    if geometry.dims == 3:
        count = np.unique(np.concatenate(receivers, axis=1)[:-1], axis=1).shape[1]
        return float(np.sqrt(np.prod((high - low)[:-1]) / count)) / 2
    # The median over the shots, along the line.
    gaps: np.ndarray = np.concatenate([np.diff(np.unique(positions[0])) for positions in receivers])
    return (float(np.median(gaps)) if gaps.size else float(high[0] - low[0]) / 100) / 2


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
