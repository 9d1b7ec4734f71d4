"""Velocities: constants and gradients as text, tables, NumPy files, SEG-Y volumes and sections of SEG-Y volumes."""

from __future__ import annotations

import numbers
import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from collops.errors import InputError
from collops.extend.applications import not_finite, open_array
from collops.seismic.segy import TIMING, SegyFile, is_segy, other_intervals, scaled, start_time, uses_degrees
from collops.seismic.streams import Location, Stream, located
from collops.seismic.survey.geometry import Grid, Line
from collops.seismic.survey.profiles import KINDS, PARAMETER, Profiles, described, in_depth, layers, read_profiles

__all__ = ["Gradient", "Model", "VelocityFile", "load_velocity", "on_grid", "parse_velocity", "smoothed"]

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TERM = re.compile(rf"\s*(?P<sign>[+-])?\s*(?:(?P<number>{_NUMBER})(?P<depth>\s*\*?\s*z)?|(?P<bare>z))\s*")
_HELP = (
    "pass a number such as 1800, a gradient such as 1500+0.6z (m/s, z in m), a file .npy, .sgy or .segy, or a text "
    "file or a SEG-Y file as depth:FILE, time:FILE or rms:FILE"
)


@dataclass(frozen=True)
class Gradient:
    """A velocity that changes linearly with depth, ``surface + gradient * z``."""

    surface: float  # velocity at depth 0, in m/s
    gradient: float = 0.0  # in 1/s; 0 for a constant velocity

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return the velocity in m/s at depths in m."""
        return self.surface + self.gradient * np.asarray(z, dtype=np.float64)

    def __str__(self) -> str:
        surface, gradient = (repr(float(v)).removesuffix(".0") for v in (self.surface, self.gradient))
        sign = "" if gradient.startswith("-") else "+"
        return f"{surface}{sign}{gradient}z" if self.gradient else surface


@dataclass(frozen=True)
class Volume:
    """Velocities on vertical columns, from a file."""

    velocity: np.ndarray  # shape ``(columns, rows)``, m/s
    depth: np.ndarray  # depth of the rows in metres, increasing
    east: np.ndarray  # map coordinates of the columns in metres
    north: np.ndarray
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # warnings about the file, in sentences for the user

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return the mean velocity of all columns at depths in m."""
        return np.interp(z, self.depth, self.velocity.mean(axis=0))


@dataclass(frozen=True)
class Section(Volume):
    """Velocities on a vertical section, from a file."""

    distance: np.ndarray  # distance of the columns from the first one, in metres, increasing
    inline: int  # number of the inline


Model = Gradient | Volume | Profiles | np.ndarray
"""A velocity: a formula, columns on the map, functions of depth on the line, or values at the points of a grid."""


class VelocityFile(NamedTuple):
    """A file with velocities."""

    path: Location
    kind: str = "depth"  # a key of `KINDS`, or `PARAMETER`

    @property
    def is_segy(self) -> bool:
        """Whether it is SEG-Y."""
        return is_segy(self.path)

    @property
    def is_npy(self) -> bool:
        """Whether it is a NumPy file."""
        return self.path.suffix.lower() == ".npy"

    def check(self) -> None:
        """Raise `InputError` if the file cannot be read; reads only headers of SEG-Y."""
        if self.is_segy:
            SegyFile.inspect(self.path)
        elif not (isinstance(self.path, Stream) or self.path.is_file()):
            raise InputError(f"{self.path} does not exist: check the path of the file")


def load_velocity(velocity: object, dims: int, inline: int | None) -> Model:
    """Return a velocity from a number, a text (`parse_velocity`), the path of a file, or values on a grid.

    `dims` is the number of axes of the image. From a SEG-Y file a 2-D image reads one inline, a 3-D image the volume.
    """
    if inline is not None and dims == 3:
        raise InputError("--inline chooses a section, but a 3-D image needs the whole volume: omit it")
    if isinstance(velocity, Gradient | Volume | Profiles):
        return velocity
    if isinstance(velocity, np.ndarray) and velocity.ndim:
        return _checked_values(velocity, dims, "the velocity")
    parsed = _parsed(velocity)
    return parsed if isinstance(parsed, Gradient) else load_file(parsed, dims, inline)


def load_file(file: VelocityFile, dims: int, inline: int | None) -> Model:
    """Return the velocity in a file; for the other arguments see `load_velocity`."""
    if file.is_npy:
        return read_npy(file.path, dims, file.kind)
    if not file.is_segy:
        return read_profiles(file.path, file.kind)
    return read_section(file.path, inline, file.kind) if dims == 2 else read_volume(file.path, file.kind)


def _parsed(velocity: Any) -> Gradient | VelocityFile:
    """Return a formula, or a file from its text, its path, an open file, or a pair of the kind and one of these."""
    if isinstance(velocity, tuple):
        kind, file = velocity if len(velocity) == 2 else (None, None)
        if kind not in KINDS:
            raise InputError(f"a pair of a kind of velocity and its file must begin with {', '.join(KINDS)}: {_HELP}")
        return VelocityFile(located(file), kind)  # type: ignore[arg-type]
    if isinstance(velocity, str | numbers.Real | np.ndarray):
        return parse_velocity(str(velocity))
    return VelocityFile(located(velocity))


def parse_velocity(text: str) -> Gradient | VelocityFile:
    """Return a sum of numbers and multiples of ``z`` (``1500+0.6z``) as a gradient, or a file.

    A file is recognised by its suffix .npy, .sgy or .segy, or by ``depth:``, ``time:`` or ``rms:`` before its path.
    Nothing is evaluated.
    """
    kind, colon, path = text.partition(":")
    if colon and kind in KINDS:
        if located(path).suffix.lower() == ".npy":
            raise InputError(f"{path} holds velocities in depth, at the points of the image: omit {kind}:")
        return VelocityFile(located(path), kind)
    if located(text).suffix.lower() == ".npy" or is_segy(text):
        return VelocityFile(located(text))
    surface = gradient = 0.0
    position = 0
    while position < len(text) or position == 0:
        term = _TERM.match(text, position)
        if term is None or (position > 0 and term["sign"] is None):
            raise InputError(f"cannot understand the velocity {text!r}: {_HELP}")
        value = float(term["number"] or 1) * (-1 if term["sign"] == "-" else 1)
        if term["depth"] or term["bare"]:
            gradient += value
        else:
            surface += value
        position = term.end()
    if not (np.isfinite(surface) and np.isfinite(gradient)):
        raise InputError(f"the velocity {text!r} is not finite: {_HELP}")
    if surface <= 0:
        raise InputError(f"the velocity {text!r} is {surface:g} m/s at depth 0, which is not positive: {_HELP}")
    return Gradient(surface, gradient)


def read_npy(path: Location, dims: int = 2, kind: str = "depth") -> np.ndarray:
    """Read velocities of shape ``(nx, nz)``, in 3-D ``(ny, nx, nz)``, in m/s from a NumPy file, as float64."""
    if isinstance(path, Stream):
        raise InputError(f"{path} is an open NumPy file: pass the array, numpy.load(file), as the velocity")
    return _checked_values(open_array(path, ())[0], dims, str(path), kind)


def _checked_values(velocity: np.ndarray, dims: int, name: str, kind: str = "depth") -> np.ndarray:
    if velocity.ndim != dims or min(velocity.shape) < 2 or velocity.dtype.kind not in "fiu":
        shape = "(nx, nz)" if dims == 2 else "(ny, nx, nz)"
        raise InputError(
            f"{name} holds {velocity.dtype} of shape {velocity.shape}: "
            f"{'values' if kind == PARAMETER else 'velocities'} must be real, of shape {shape}, with at least 2 points "
            "along each axis"
        )
    velocity = np.array(velocity, dtype=np.float64, order="C")
    _check(velocity, name, kind)
    return velocity


def read_section(path: Location, inline: int | None = None, kind: str = "depth") -> Section:
    """Read one vertical section of velocities from a SEG-Y file.

    The section has the traces of one inline (bytes 189 to 192), by default the middle one, sorted by their map
    coordinates (bytes 181 to 188). As usual for files in depth, the sample interval is in millimetres, and the delay
    recording time in metres. Interval velocities (`kind` ``"time"``) or RMS velocities (``"rms"``) in two-way time are
    converted to depth.
    """
    file, headers, all_east, all_north, axis, notes = _columns_of(path, kind)
    inlines = np.unique(headers["INLINE_3D"])
    if inline is None:
        inline = int(inlines[len(inlines) // 2])
    elif inline not in inlines:
        raise InputError(f"{path} has no inline {inline}: choose one from {inlines[0]} to {inlines[-1]}")
    numbers = np.flatnonzero(headers["INLINE_3D"] == inline)
    east, north = all_east[numbers], all_north[numbers]
    distance = Line.through(east, north).distance(east, north)
    order = np.argsort(distance, kind="stable")
    distance = distance[order] - distance.min()
    if (np.diff(distance) <= 0).any():
        raise InputError(
            f"{path} has several traces at one position of inline {inline}: fill in bytes 181 to 188 (CDP X and Y)"
        )
    velocity, depth = _velocities(file, numbers[order], axis, kind, notes)
    return Section(velocity, depth, east[order], north[order], distance, inline, notes=tuple(notes))


def read_volume(path: Location, kind: str = "depth") -> Volume:
    """Read all velocities from a SEG-Y file; see `read_section` for the bytes, and for the kind."""
    file, _, east, north, axis, notes = _columns_of(path, kind)
    velocity, depth = _velocities(file, np.arange(file.traces), axis, kind, notes)
    return Volume(velocity, depth, east, north, notes=tuple(notes))


def _columns_of(
    path: Location, kind: str
) -> tuple[SegyFile, dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Return a file, its headers, easting and northing of its traces, depths (m) or times (s) of samples, and notes."""
    file, in_depth_already = SegyFile.inspect(path), kind in ("depth", PARAMETER)
    headers = file.headers("INLINE_3D", "CDP_X", "CDP_Y", "SourceGroupScalar", "CoordinateUnits", *TIMING)
    if uses_degrees(file, headers["CoordinateUnits"]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")
    if file.interval == 0:
        unit = "millimetres" if in_depth_already else "microseconds"
        raise InputError(f"{path} has no sample interval in its binary header: fill in bytes 3217 ({unit})")
    east, north = (scaled(headers[name], headers["SourceGroupScalar"]) * file.metres for name in ("CDP_X", "CDP_Y"))
    if in_depth_already:
        axis = file.metres * (float(headers["DelayRecordingTime"][0]) + file.interval / 1e3 * np.arange(file.samples))
        notes = other_intervals(file, headers, file.interval, "millimetres")
    else:
        axis = start_time(file, headers) + file.interval / 1e6 * np.arange(file.samples)
        notes = other_intervals(file, headers, file.interval, "microseconds")
    return file, headers, east, north, axis, notes


def _velocities(
    file: SegyFile, traces: np.ndarray, axis: np.ndarray, kind: str, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the velocities of some traces, shape ``(traces, depths)``, m/s, and the depths, m."""
    velocity = file.read(traces).astype(np.float64)
    _check(velocity, str(file.path), kind)
    if kind == PARAMETER:
        return velocity, axis
    velocity *= file.metres
    if kind == "depth":
        return velocity, axis
    edges, columns = layers(axis, velocity, kind, str(file.path))
    depth, velocity = in_depth([(edges, column) for column in columns], file.samples)
    notes.append(described(file.path, kind, depth, axis[-1]))
    return velocity, depth


def on_grid(model: Model, grid: Grid, line: Line | None, notes: list[str], name: str = "velocity") -> np.ndarray:
    """Return the velocity at the points of `grid`: float64, of its shape, m/s.

    An array must have the grid's shape. A section is positioned by its map coordinates if these overlap with the grid
    on the `line`, otherwise with its first trace at the first column; beyond its ends, the outermost velocities apply.
    A volume is interpolated between its columns; beyond their area, the nearest column applies. Each decision adds a
    sentence to `notes`, in which the values are called `name`.
    """
    if isinstance(model, Gradient):
        velocity = np.broadcast_to(model(grid.z), grid.shape).copy()
        _check(velocity, f"the velocity {model}")
    elif isinstance(model, Profiles):
        velocity = np.broadcast_to(model.on(grid.x, grid.z), grid.shape).copy()
        notes += model.notes
        notes.append(f"{name} {_reach(model, grid)}")
    elif isinstance(model, Section):
        velocity = _resample(model, grid, line, notes, name)
        notes += model.notes
    elif isinstance(model, Volume):
        velocity = _interpolate(model, grid, line or Line(), notes, name)
        notes += model.notes
    else:
        velocity = model
        if velocity.shape != grid.shape:
            sizes = " and ".join(f"--n{axis}" for axis in grid.axes)
            raise InputError(
                f"the {name} has shape {velocity.shape}, but the image has shape {grid.shape}: omit {sizes}"
            )
    return velocity


def smoothed(velocity: np.ndarray, grid: Grid, length: float) -> np.ndarray:
    """Smooth the slowness on a grid, which keeps travel times, with a Gaussian of standard deviation `length` (m).

    Beyond the edges, the outermost values apply.
    """
    from scipy.ndimage import gaussian_filter

    return 1 / gaussian_filter(1 / velocity, [length / step for step in grid.spacing], mode="nearest")


def _reach(profiles: Profiles, grid: Grid) -> str:
    """Describe the extent of velocities in a table, and of the image."""
    count, (first, last) = len(profiles.positions), profiles.positions[[0, -1]]
    where = "" if count == 1 else f" at {count} positions from {first:g} to {last:g} m"
    return (
        f"from a table{where}, down to {profiles.depth[-1]:.0f} m, on an image down to {grid.z[-1]:.0f} m; "
        "constant beyond"
    )


def _resample(section: Section, grid: Grid, line: Line | None, notes: list[str], name: str) -> np.ndarray:
    positions, where = grid.x0 + section.distance, ""
    if line is not None:
        along = line.distance(section.east, section.north)
        if along.min() <= grid.x[-1] and along.max() >= grid.x[0]:
            if np.ptp(along) < section.distance[-1] / 2:
                raise InputError(
                    f"the {name}'s inline {section.inline} is at more than 60 degrees to the line of the survey: "
                    "choose a section along it (--inline)"
                )
            order = np.argsort(along)
            positions, section = along[order], replace(section, velocity=section.velocity[order])
            where = f", up to {np.abs(line.across(section.east, section.north)).max():.0f} m off the line"
    columns = np.stack([np.interp(grid.z, section.depth, column) for column in section.velocity])
    velocity = np.stack([np.interp(grid.x, positions, row) for row in columns.T], axis=1)
    notes.append(
        f"{name} from inline {section.inline}: "
        f"{positions[0]:.0f} to {positions[-1]:.0f} m{where} and down to {section.depth[-1]:.0f} m, "
        f"on an image from {grid.x[0]:.0f} to {grid.x[-1]:.0f} m and down to {grid.z[-1]:.0f} m"
    )
    return velocity


def _interpolate(volume: Volume, grid: Grid, line: Line, notes: list[str], name: str) -> np.ndarray:
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

    points = np.stack([line.distance(volume.east, volume.north), line.across(volume.east, volume.north)], axis=1)
    columns = np.stack(grid.columns(), axis=1)
    (west, near), (east, far) = points.min(axis=0), points.max(axis=0)
    where = f"the {name}'s columns are at x of {west:.0f} to {east:.0f} m and y of {near:.0f} to {far:.0f} m"
    (first_x, first_y), (last_x, last_y) = columns.min(axis=0), columns.max(axis=0)
    if west > last_x or east < first_x or near > last_y or far < first_y:
        raise InputError(
            f"{where}, outside the image: check their coordinates (bytes 181 to 188) and scalar (71 to 72)"
        )
    if len(points) < 3 or np.divide(*np.linalg.svd(points - points.mean(axis=0), compute_uv=False)[::-1]) < 1e-3:
        raise InputError(f"{where}, on one line: a 3-D image needs a volume, a number or an expression")
    rows = np.stack([np.interp(grid.z, volume.depth, column) for column in volume.velocity])
    # Move columns slightly inwards: rounding may put columns on the edge of the area outside.
    columns += 1e-3 * (points.mean(axis=0) - columns)
    velocity = LinearNDInterpolator(points - points[0], rows)(columns - points[0])
    beyond = np.isnan(velocity[:, 0])
    velocity[beyond] = NearestNDInterpolator(points, rows)(columns[beyond])
    notes.append(f"{where}, and down to {volume.depth[-1]:.0f} m; {beyond.mean():.0%} of the image lies beyond")
    return velocity.reshape(grid.shape)


def _check(velocity: np.ndarray, name: str, kind: str = "depth") -> None:
    def described(index: tuple[int, ...]) -> str:
        names = ("line", "column", "row")[-len(index) :]
        return ", ".join(f"{axis} {number}" for axis, number in zip(names, index, strict=True))

    if (index := not_finite(velocity)) is not None:
        raise InputError(f"{name} is {velocity[index]} at {described(index)}: replace it with a finite number")
    if kind != PARAMETER and velocity.min() <= 0:
        lowest = tuple(map(int, np.unravel_index(int(velocity.argmin()), velocity.shape)))
        raise InputError(f"{name} is {velocity.min():g} m/s at {described(lowest)}: velocities must be positive")
