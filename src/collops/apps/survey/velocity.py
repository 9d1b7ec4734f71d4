"""Velocities in depth: constants and gradients as text, NumPy files, and sections of SEG-Y volumes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from collops.apps.files import not_finite, open_array
from collops.apps.segy import SegyFile, is_segy, scaled, uses_degrees
from collops.apps.survey.geometry import Grid, Line
from collops.errors import InputError

__all__ = ["Gradient", "on_grid", "parse_velocity", "read_npy", "read_section"]

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TERM = re.compile(rf"\s*(?P<sign>[+-])?\s*(?:(?P<number>{_NUMBER})(?P<depth>\s*\*?\s*z)?|(?P<bare>z))\s*")
_HELP = "give a number such as 1800, a gradient such as 1500+0.6z (m/s, z in m), or a file .npy, .sgy or .segy"


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
class Section:
    """Velocities on a vertical section, from a file."""

    velocity: np.ndarray  # shape ``(columns, rows)``, m/s
    distance: np.ndarray  # distance of the columns from the first one, in metres, increasing
    depth: np.ndarray  # depth of the rows in metres, increasing
    east: np.ndarray  # map coordinates of the columns in metres
    north: np.ndarray
    inline: int  # number of the inline

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Return the mean velocity of the section at depths in m."""
        return np.interp(z, self.depth, self.velocity.mean(axis=0))


def parse_velocity(text: str) -> Gradient | Path:
    """Return a sum of numbers and multiples of ``z`` (``1500+0.6z``) as a gradient, or the path of a file.

    A file is recognised by its suffix .npy, .sgy or .segy. Nothing is evaluated.
    """
    if Path(text).suffix.lower() == ".npy" or is_segy(text):
        return Path(text)
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


def read_npy(path: Path) -> np.ndarray:
    """Read velocities of shape ``(nx, nz)`` in m/s from a NumPy file, as float64."""
    velocity, _ = open_array(path, ())
    if velocity.ndim != 2 or min(velocity.shape) < 2:
        raise InputError(
            f"{path} holds {velocity.dtype} of shape {velocity.shape}: "
            "save real velocities of shape (nx, nz), at least 2 along each axis"
        )
    velocity = np.array(velocity, dtype=np.float64)
    _check(velocity, str(path))
    return velocity


def read_section(path: Path, inline: int | None = None) -> Section:
    """Read one vertical section of velocities in depth from a SEG-Y file.

    The section has the traces of one inline (bytes 189 to 192), by default the middle one, sorted by their map
    coordinates (bytes 181 to 188). The sample interval is in millimetres, as is usual for files in depth, the delay
    recording time in metres.
    """
    file = SegyFile.inspect(path)
    fields = ("INLINE_3D", "CDP_X", "CDP_Y", "SourceGroupScalar", "DelayRecordingTime", "CoordinateUnits")
    headers = file.headers(*fields)
    if uses_degrees(file, headers["CoordinateUnits"]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")
    inlines = np.unique(headers["INLINE_3D"])
    if inline is None:
        inline = int(inlines[len(inlines) // 2])
    elif inline not in inlines:
        raise InputError(f"{path} has no inline {inline}: choose one from {inlines[0]} to {inlines[-1]}")
    if file.interval == 0:
        raise InputError(f"{path} has no sample interval in its binary header: fill in bytes 3217 (millimetres)")
    numbers = np.flatnonzero(headers["INLINE_3D"] == inline)
    east, north = (
        scaled(headers[name][numbers], headers["SourceGroupScalar"][numbers]) * file.metres
        for name in ("CDP_X", "CDP_Y")
    )
    distance = Line.through(east, north).distance(east, north)
    order = np.argsort(distance, kind="stable")
    distance = distance[order] - distance.min()
    if (np.diff(distance) <= 0).any():
        raise InputError(
            f"{path} has several traces at one place of inline {inline}: fill in bytes 181 to 188 (CDP X and Y)"
        )
    velocity = file.read(numbers[order]).astype(np.float64)
    _check(velocity, str(path))
    depth = float(headers["DelayRecordingTime"][numbers[0]]) + file.interval / 1000 * np.arange(file.samples)
    return Section(velocity * file.metres, distance, depth * file.metres, east[order], north[order], inline)


def on_grid(model: Gradient | Section | np.ndarray, grid: Grid, line: Line | None, notes: list[str]) -> np.ndarray:
    """Return the velocity at the points of `grid`: float64, shape ``(nx, nz)``, m/s.

    An array must have the grid's shape. A section is placed by its map coordinates if these overlap with the grid on
    the `line`, otherwise with its first trace at the first column. Its outermost velocities continue beyond its ends.
    Each decision adds a sentence to `notes`.
    """
    if isinstance(model, Gradient):
        velocity = np.broadcast_to(model(grid.z), grid.shape).copy()
        _check(velocity, f"the velocity {model}")
    elif isinstance(model, Section):
        velocity = _resample(model, grid, line, notes)
    else:
        velocity = model
        if velocity.shape != grid.shape:
            raise InputError(
                f"the velocity file has shape {velocity.shape}, but the image is {grid.shape}: leave out --nx and --nz"
            )
    return velocity


def _resample(section: Section, grid: Grid, line: Line | None, notes: list[str]) -> np.ndarray:
    start = grid.x0
    if line is not None:
        ends = line.distance(section.east[[0, -1]], section.north[[0, -1]])
        if ends.min() <= grid.x[-1] and ends.max() >= grid.x[0]:
            start = float(ends.min())
            if ends[0] > ends[1]:
                flipped = section.distance[-1] - section.distance[::-1]
                section = replace(section, velocity=section.velocity[::-1], distance=flipped)
    columns = np.stack([np.interp(grid.z, section.depth, column) for column in section.velocity])
    at = start + section.distance
    velocity = np.stack([np.interp(grid.x, at, row) for row in columns.T], axis=1)
    notes.append(
        f"velocity from inline {section.inline}: "
        f"{at[0]:.0f} to {at[-1]:.0f} m and down to {section.depth[-1]:.0f} m, "
        f"on an image from {grid.x[0]:.0f} to {grid.x[-1]:.0f} m and down to {grid.z[-1]:.0f} m"
    )
    return velocity


def _check(velocity: np.ndarray, name: str) -> None:
    if (place := not_finite(velocity)) is not None:
        column, row = place
        raise InputError(f"{name} is {velocity[place]} at column {column}, row {row}: replace it with a finite number")
    if velocity.min() <= 0:
        column, row = np.unravel_index(int(velocity.argmin()), velocity.shape)
        raise InputError(f"{name} is {velocity.min():g} m/s at column {column}, row {row}: velocities must be positive")
