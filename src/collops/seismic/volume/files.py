"""Volumes and sections of stacked data in files: the grid of their traces, and the rows of each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    Field,
    Url,
    check_memory,
    decoded,
    dimension_names,
    located,
    not_finite,
    open_array,
    open_zarr,
)
from collops.seismic.segy import (
    TIMING,
    SegyFile,
    Traces,
    is_segy,
    sample_interval,
    scaled,
    segy_bytes,
    start_time,
    unused_times,
    uses_degrees,
    whole_interval,
)
from collops.seismic.times import read_times, unit_of

if TYPE_CHECKING:
    from collops import Layout

__all__ = ["DATA_NAMES", "Cube", "check_array_file", "open_volume", "read_values"]

DATA_NAMES = ("data", "seismic", "amplitude")
"""Names of the data in a Zarr group."""

_INLINE_BYTE, _CROSSLINE_BYTE = 189, 193
# A grid with more points per trace indicates that header fields are not inline and crossline numbers.
_MAX_POINTS_PER_TRACE = 20
# Stacked traces may keep the source position of one of their traces, so that a few neighbours share a source.
_MIN_CHANNELS = 10
_POSITIONS = ("SourceX", "SourceY", "GroupX", "GroupY", "CDP_X", "CDP_Y")


class Axis(NamedTuple):
    """One lateral axis: its name, such as "inline", and its increasing numbers."""

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Cube:
    """A regular grid of traces: a volume with two lateral axes, or a section with one."""

    lateral: tuple[Axis, ...]  # one or two
    samples: int  # of every trace
    interval: float  # between them, in seconds
    start: float = 0.0  # time of the first sample, in seconds

    def __post_init__(self) -> None:
        if not all(len(axis.values) for axis in self.lateral):
            raise InputError("the volume needs at least one trace")
        if self.samples < 2:
            raise InputError(f"the volume needs at least 2 samples per trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive, not {self.interval} s: pass --interval")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the lateral axes, and the samples."""
        return (*(len(axis.values) for axis in self.lateral), self.samples)

    @property
    def traces(self) -> int:
        """Number of grid points, including missing traces."""
        return int(np.prod(self.shape[:-1]))

    @property
    def times(self) -> np.ndarray:
        """Times of all samples, in seconds."""
        return self.start + self.interval * np.arange(self.samples)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the axes."""
        return (*(axis.name for axis in self.lateral), "time")

    def layout(self, ranks: int) -> Layout:
        """Return the layout of arrays on the grid, split along the first lateral axis."""
        from collops import Layout

        return Layout.split(self.shape, ranks)

    def coordinates(self) -> dict[str, Field]:
        """Return the coordinates of the axes as fields of a result."""
        lateral = {axis.name: Field(axis.values, (axis.name,), "1") for axis in self.lateral}
        return lateral | {"time": Field(self.times, ("time",), "s")}

    def describe(self) -> str:
        """Return the size in words."""
        extents = " x ".join(f"{len(axis.values)} {axis.name}s" for axis in self.lateral)
        return f"{extents}, {self.samples} samples of {1e3 * self.interval:g} ms"


class Stack(NamedTuple):
    """A SEG-Y file of stacked traces."""

    file: SegyFile
    trace_at: np.ndarray  # number in the file of the trace at each point of the grid; -1 for missing traces
    # standard fields of trace headers with numbers and positions, for the live traces in the order of the file
    headers: dict[str, np.ndarray]
    metres: np.ndarray | None  # easting and northing on the grid, ``(2, *trace_at.shape)``, NaN for missing traces

    def coordinates(self, axes: Sequence[Axis]) -> dict[str, Field]:
        """Return the positions of the traces as fields of a result."""
        names, pair = tuple(axis.name for axis in axes), () if self.metres is None else self.metres
        return {name: Field(values, names, "m", True) for name, values in zip(("cdp_x", "cdp_y"), pair, strict=False)}

    def traces(self, title: str, values: np.ndarray, rows: slice, interval: float) -> Traces:
        """Return traces that replace the traces of the file; `values` are this rank's rows of an array on the grid."""
        selected = self.trace_at[rows].ravel()
        live = selected >= 0
        flat = values.reshape(-1, self.file.samples)
        numbers = np.sort(self.trace_at[self.trace_at >= 0])
        integer_interval = whole_interval(interval, self.file.samples)
        positions = np.searchsorted(numbers, selected[live])
        return Traces(
            title, flat if live.all() else flat[live], positions, integer_interval, self.headers, (self.file, numbers)
        )

    @property
    def size(self) -> int:
        """Size in bytes of a file of results."""
        return segy_bytes(int((self.trace_at >= 0).sum()), self.file.samples)


class _Reader(NamedTuple):
    """An open file with a volume."""

    cube: Cube
    notes: list[str]  # decisions, in sentences for the user
    # returns the traces of some rows along the first axis, zero for missing traces, and a mask of existing traces
    read: Callable[[slice], tuple[np.ndarray, np.ndarray]]
    stack: Stack | None = None  # of SEG-Y


def check_array_file(text: str, names: tuple[str, ...]) -> None:
    """Raise unless a file exists that may hold a volume; reads only its header."""
    path = located(text)
    if is_segy(path):
        SegyFile.inspect(path)
    else:
        open_array(path, names, (".sgy", ".segy"))


def open_volume(
    path: Path | Url,
    interval: float | None,
    names: tuple[str, ...],
    inline_byte: int | None = None,
    crossline_byte: int | None = None,
) -> _Reader:
    """Open a file with a volume, and read the positions of its traces.

    `interval`, in seconds, replaces the interval of the file; `names` are possible names of the array in a Zarr group;
    `inline_byte` and `crossline_byte` are the first bytes of these numbers in SEG-Y trace headers.
    """
    if is_segy(path):
        return _open_segy(path, inline_byte or _INLINE_BYTE, crossline_byte or _CROSSLINE_BYTE, interval)
    return _open_array(path, interval, names)


def read_values(reader: _Reader, rows: slice, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read rows of a volume, and a mask of existing traces."""
    values, live = reader.read(rows)
    if (index := not_finite(values)) is not None:
        first, *inner, sample = index
        numbers = zip(reader.cube.lateral, (rows.start + first, *inner), strict=True)
        where = ", ".join(f"{axis.name} {axis.values[number]}" for axis, number in numbers)
        raise InputError(f"{name} is {values[index]} at {where}, sample {sample + 1}: replace it with a finite number")
    return values, live


# NumPy files and Zarr stores


def _open_array(path: Path | Url, interval: float | None, names: tuple[str, ...]) -> _Reader:
    """Open a volume of shape (inlines, crosslines, samples), or a section of shape (traces, samples).

    The coordinates of an array in a Zarr group are the 1-D arrays with the names of its axes, as in xarray.
    """
    array, group = open_array(path, names)
    shape = tuple(array.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(
            f"{path} must hold a volume of shape (inlines, crosslines, samples) or a section of shape (traces, "
            f"samples), not an array of shape {shape}"
        )
    check_memory(8 * sum(shape), f"the axes of {path}", "use a smaller volume")
    coordinates = {} if group is None else _coordinates(array, path)
    start = 0.0
    if len(shape) - 1 in coordinates:
        name, times = coordinates[len(shape) - 1]
        if interval is None or unit_of(times) is not None:
            file_interval, start = read_times(times, path / name, shape[-1], group)
            interval = file_interval if interval is None else interval
    if interval is None:
        raise InputError(f"{path} does not store a sample interval: pass it in milliseconds with --interval")
    standard = ("trace",) if len(shape) == 2 else ("inline", "crossline")
    lateral = tuple(
        _lateral(coordinates[axis][1], path / coordinates[axis][0])
        if axis in coordinates
        else Axis(standard[axis], np.arange(extent) + 1)
        for axis, extent in enumerate(shape[:-1])
    )

    def read(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        values = decoded(array, path, rows)
        return values, np.ones(values.shape[:-1], dtype=bool)

    return _Reader(Cube(lateral, shape[-1], interval, start), [], read)


def _coordinates(array: Any, path: Path | Url) -> dict[int, tuple[str, Any]]:
    """Return the names and arrays of the coordinates in the group at `path`, by axis."""
    names = {axis: name for axis, name in enumerate(dimension_names(array)) if name and (path / name).is_dir()}
    members = {axis: (name, open_zarr(path / name)) for axis, name in names.items()}
    return {
        axis: member for axis, member in members.items() if getattr(member[1], "shape", None) == (array.shape[axis],)
    }


def _lateral(array: Any, path: Path | Url) -> Axis:
    """Read the numbers of a lateral axis, as integers if they are stored as integers."""
    values = decoded(array, path, dtype=np.float64)
    if (index := not_finite(values)) is not None:
        raise InputError(f"{path} is {values[index]} at {index[0]} (from 0): replace it with a finite number")
    is_whole = array.dtype.kind in "iu" and (values % 1 == 0).all()
    return Axis(path.name, values.astype(np.int64) if is_whole else values)


# SEG-Y


def _open_segy(path: Path | Url, inline_byte: int, crossline_byte: int, interval: float | None) -> _Reader:
    """Open a post-stack SEG-Y file, and arrange its traces on the grid of its inline and crossline numbers.

    If at most one of the numbers varies, the file is a section: its traces are ordered by this number, or as in the
    file.
    """
    file = SegyFile.inspect(path)
    names = _field("inline", inline_byte), _field("crossline", crossline_byte)
    position_fields = ("SourceGroupScalar", "CoordinateUnits", *_POSITIONS)
    numbers, headers = file.live_headers(*dict.fromkeys([*names, *TIMING, *position_fields]))
    varying = [
        (name, headers[field])
        for name, field in zip(("inline", "crossline"), names, strict=True)
        if np.ptp(headers[field]) > 0
    ]
    notes: list[str] = []
    if not varying:
        varying = [("trace", numbers + 1)]
        notes.append(
            f"{path} has one inline and one crossline number: its traces are a section, in the order of the file "
            "(--inline-byte, --crossline-byte)"
        )
    elif len(varying) == 1:
        notes.append(f"{path} is a section of {len(numbers)} traces along its {varying[0][0]} numbers")
    if len(varying) < 2:
        _refuse_shots(path, headers)
    lateral = [(name, *np.unique(values, return_inverse=True)) for name, values in varying]
    shape = tuple(len(values) for _, values, _ in lateral)
    points = int(np.prod(shape))
    if points > _MAX_POINTS_PER_TRACE * len(numbers):
        raise InputError(
            f"{path} has {len(numbers)} traces for {' x '.join(map(str, shape))} inline and crossline numbers, "
            "which do not form a grid: pass the bytes of these numbers with --inline-byte and --crossline-byte"
        )
    points_of_traces = np.ravel_multi_index([inverse.reshape(-1) for _, _, inverse in lateral], shape)
    if len(np.unique(points_of_traces)) < len(points_of_traces):
        raise InputError(
            f"{path} has several traces at one inline and crossline: check that it is stacked, and that --inline-byte "
            "and --crossline-byte are the bytes of these numbers"
        )
    trace_at = np.full(points, -1, dtype=np.int64)
    trace_at[points_of_traces] = numbers
    if points > len(numbers):
        notes.append(f"traces are missing at {points - len(numbers)} of {points} grid points")
    cube = Cube(
        tuple(Axis(name, values) for name, values, _ in lateral),
        file.samples,
        sample_interval(file, headers, notes) if interval is None else interval,
        start_time(file, headers),
    )
    whole_interval(cube.interval, cube.samples)
    notes += unused_times(file, headers)
    standard, metres = _standard_headers(file, headers, names), None
    if not uses_degrees(file, headers["CoordinateUnits"]) and (standard["CDP_X"].any() or standard["CDP_Y"].any()):
        metres = np.full((2, points), np.nan)
        for row, name in zip(metres, ("CDP_X", "CDP_Y"), strict=True):
            row[points_of_traces] = scaled(standard[name], headers["SourceGroupScalar"]) * file.metres
        metres = metres.reshape(2, *shape)
    stack = Stack(file, trace_at.reshape(shape), standard, metres)
    return _Reader(cube, notes, partial(_read_segy, file, stack.trace_at), stack)


def _refuse_shots(path: Path | Url, headers: Mapping[str, np.ndarray]) -> None:
    """Raise `InputError` if many traces share each source, at different offsets."""
    sources = np.unique(np.stack([headers["SourceX"], headers["SourceY"]]), axis=1).shape[1]
    east, north = (headers[f"Group{axis}"] - headers[f"Source{axis}"] for axis in "XY")
    if len(east) >= _MIN_CHANNELS * sources and np.ptp(np.hypot(east, north)) > 0:
        raise InputError(
            f"{path} must hold stacked traces, not shots ({len(east)} traces of {sources} sources): migrate them with "
            "collops lsm, or pass their stack"
        )


def _standard_headers(
    file: SegyFile, headers: Mapping[str, np.ndarray], names: tuple[str, str]
) -> dict[str, np.ndarray]:
    """Return inline and crossline numbers and positions, by the names of their standard fields."""
    inlines, crosslines = (headers[name] for name in names)
    east, north = ("CDP_X", "CDP_Y") if headers["CDP_X"].any() or headers["CDP_Y"].any() else ("SourceX", "SourceY")
    fields = {"INLINE_3D": inlines, "CROSSLINE_3D": crosslines, "CDP_X": headers[east], "CDP_Y": headers[north]}
    if file.revision > 0 or uses_degrees(file, headers["CoordinateUnits"]):
        return fields
    # Results are written in revision 1, which defines codes for bytes that revision 0 left undefined.
    return fields | {"CoordinateUnits": np.ones_like(inlines)}


def _read_segy(file: SegyFile, trace_at: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    numbers = trace_at[rows]
    live = numbers >= 0
    traces = file.read(numbers[live])
    result = np.zeros((*numbers.shape, file.samples), traces.dtype)
    result[live] = traces
    return result, live


def _field(option: str, byte: int) -> str:
    """Return the name of the trace-header field that begins at a byte."""
    import segyio

    fields = {int(value): name for name, value in vars(segyio.TraceField).items() if isinstance(value, int)}
    if byte not in fields:
        raise InputError(
            f"--{option}-byte must be the first byte of a trace-header field, such as 189 or 193, not {byte}"
        )
    return fields[byte]
