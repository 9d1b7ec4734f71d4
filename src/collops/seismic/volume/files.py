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
    check_memory,
    decoded,
    dimension_names,
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
# Header fields whose grid is filled less than this are not inline and crossline numbers.
_MAX_POINTS_PER_TRACE = 20
# Stacked traces may have the source of one of their traces, which some neighbours then share.
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
    start: float = 0.0  # time of the first, in seconds

    def __post_init__(self) -> None:
        if not all(len(axis.values) for axis in self.lateral):
            raise InputError("the volume has no traces")
        if self.samples < 2:
            raise InputError(f"the volume needs at least 2 samples a trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive, not {self.interval} s: give one with --interval")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the lateral axes, and the samples."""
        return (*(len(axis.values) for axis in self.lateral), self.samples)

    @property
    def traces(self) -> int:
        """Number of grid points, with or without a trace."""
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
    trace_at: np.ndarray  # number in the file of the trace at each point of the grid; -1 for none
    # numbers and positions of the live traces in the order of the file, where the standard has them in trace headers
    headers: dict[str, np.ndarray]
    metres: np.ndarray | None  # easting and northing on the grid, shape ``(2, *trace_at.shape)``, NaN without a trace

    def coordinates(self, axes: Sequence[Axis]) -> dict[str, Field]:
        """Return the positions of the traces as fields of a result."""
        names, pair = tuple(axis.name for axis in axes), () if self.metres is None else self.metres
        return {name: Field(each, names, "m", True) for name, each in zip(("cdp_x", "cdp_y"), pair, strict=False)}

    def traces(self, title: str, values: np.ndarray, rows: slice, interval: float) -> Traces:
        """Return traces in the place of those of the file; `values` are this rank's rows of an array on the grid."""
        wanted = self.trace_at[rows].ravel()
        live = wanted >= 0
        flat = values.reshape(-1, self.file.samples)
        numbers = np.sort(self.trace_at[self.trace_at >= 0])
        whole = whole_interval(interval, self.file.samples)
        places = np.searchsorted(numbers, wanted[live])
        return Traces(title, flat if live.all() else flat[live], places, whole, self.headers, (self.file, numbers))

    @property
    def size(self) -> int:
        """Bytes of a file of results."""
        return segy_bytes(int((self.trace_at >= 0).sum()), self.file.samples)


class _Reader(NamedTuple):
    """An open file that holds a volume."""

    cube: Cube
    notes: list[str]  # decisions, in sentences for the user
    # returns the traces of some rows along the first axis, and which of them exist; missing ones are zero
    read: Callable[[slice], tuple[np.ndarray, np.ndarray]]
    stack: Stack | None = None  # of SEG-Y


def check_array_file(text: str, names: tuple[str, ...]) -> None:
    """Raise unless a file exists that may hold a volume; reads its head only."""
    path = Path(text)
    if is_segy(path):
        SegyFile.inspect(path)
    else:
        open_array(path, names, (".sgy", ".segy"))


def open_volume(
    path: Path,
    interval: float | None,
    names: tuple[str, ...],
    inline_byte: int | None = None,
    crossline_byte: int | None = None,
) -> _Reader:
    """Open a file that holds a volume, and read the positions of its traces.

    `interval` replaces the file's, in seconds; `names` are those of the array in a Zarr group; `inline_byte` and
    `crossline_byte` are the first bytes of these numbers in trace headers of SEG-Y.
    """
    if is_segy(path):
        return _open_segy(path, inline_byte or _INLINE_BYTE, crossline_byte or _CROSSLINE_BYTE, interval)
    return _open_array(path, interval, names)


def read_values(reader: _Reader, rows: slice, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read rows of a volume, and which traces exist."""
    values, live = reader.read(rows)
    if (place := not_finite(values)) is not None:
        first, *others, sample = place
        numbers = zip(reader.cube.lateral, (rows.start + first, *others), strict=True)
        where = ", ".join(f"{axis.name} {axis.values[number]}" for axis, number in numbers)
        raise InputError(f"{name} is {values[place]} at {where}, sample {sample + 1}: replace it with a finite number")
    return values, live


# NumPy files and Zarr stores


def _open_array(path: Path, interval: float | None, names: tuple[str, ...]) -> _Reader:
    """Open a volume of shape (inlines, crosslines, samples), or a section of shape (traces, samples).

    An array in a Zarr group has the coordinates that are named after its axes, as xarray writes them.
    """
    array, group = open_array(path, names)
    shape = tuple(array.shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(
            f"{path} holds an array of shape {shape}: save a volume of shape (inlines, crosslines, samples) "
            "or a section of shape (traces, samples)"
        )
    check_memory(8 * sum(shape), f"the axes of {path}", "name a smaller volume")
    coordinates = {} if group is None else _coordinates(array, path)
    start = 0.0
    if len(shape) - 1 in coordinates:
        name, times = coordinates[len(shape) - 1]
        if interval is None or unit_of(times) is not None:
            found, start = read_times(times, path / name, shape[-1], group)
            interval = found if interval is None else interval
    if interval is None:
        raise InputError(f"{path} holds no sample interval: give it in milliseconds with --interval")
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


def _coordinates(array: Any, path: Path) -> dict[int, tuple[str, Any]]:
    """Return the names and arrays of those axes that have coordinates in the group at `path`, by axis."""
    names = {axis: name for axis, name in enumerate(dimension_names(array)) if name and (path / name).is_dir()}
    members = {axis: (name, open_zarr(path / name)) for axis, name in names.items()}
    return {axis: each for axis, each in members.items() if getattr(each[1], "shape", None) == (array.shape[axis],)}


def _lateral(array: Any, path: Path) -> Axis:
    """Read the numbers of a lateral axis, as integers if the file has integers."""
    values = decoded(array, path, dtype=np.float64)
    if (place := not_finite(values)) is not None:
        raise InputError(f"{path} is {values[place]} at {place[0]} (from 0): replace it with a finite number")
    is_whole = array.dtype.kind in "iu" and (values % 1 == 0).all()
    return Axis(path.name, values.astype(np.int64) if is_whole else values)


# SEG-Y


def _open_segy(path: Path, inline_byte: int, crossline_byte: int, interval: float | None) -> _Reader:
    """Open a post-stack SEG-Y file, and place its traces on the grid of the inline and crossline numbers that occur.

    If only one of them varies, or none, the file is a section: its traces follow the number that varies, or the order
    in the file.
    """
    file = SegyFile.inspect(path)
    names = _field("inline", inline_byte), _field("crossline", crossline_byte)
    more = ("SourceGroupScalar", "CoordinateUnits", *_POSITIONS)
    numbers, headers = file.live_headers(*dict.fromkeys([*names, *TIMING, *more]))
    varying = [
        (name, headers[field])
        for name, field in zip(("inline", "crossline"), names, strict=True)
        if np.ptp(headers[field]) > 0
    ]
    notes: list[str] = []
    if not varying:
        varying = [("trace", numbers + 1)]
        notes.append(
            f"{path} has one inline and one crossline number: its traces are a section, in their order "
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
            "which is no grid: name the bytes that hold them with --inline-byte and --crossline-byte"
        )
    places = np.ravel_multi_index([inverse.reshape(-1) for _, _, inverse in lateral], shape)
    if len(np.unique(places)) < len(places):
        raise InputError(
            f"{path} has several traces at one inline and crossline: is it stacked, and do --inline-byte and "
            "--crossline-byte name the bytes of these numbers?"
        )
    trace_at = np.full(points, -1, dtype=np.int64)
    trace_at[places] = numbers
    if points > len(numbers):
        notes.append(f"{points - len(numbers)} of {points} grid points have no trace")
    cube = Cube(
        tuple(Axis(name, values) for name, values, _ in lateral),
        file.samples,
        sample_interval(file, headers, notes) if interval is None else interval,
        start_time(file, headers),
    )
    whole_interval(cube.interval, cube.samples)
    notes += unused_times(headers)
    standard, metres = _standard_headers(file, headers, names), None
    if not uses_degrees(file, headers["CoordinateUnits"]) and (standard["CDP_X"].any() or standard["CDP_Y"].any()):
        metres = np.full((2, points), np.nan)
        for row, name in zip(metres, ("CDP_X", "CDP_Y"), strict=True):
            row[places] = scaled(standard[name], headers["SourceGroupScalar"]) * file.metres
        metres = metres.reshape(2, *shape)
    stack = Stack(file, trace_at.reshape(shape), standard, metres)
    return _Reader(cube, notes, partial(_read_segy, file, stack.trace_at), stack)


def _refuse_shots(path: Path, headers: Mapping[str, np.ndarray]) -> None:
    """Raise `InputError` if many traces share each source, at different offsets."""
    sources = np.unique(np.stack([headers["SourceX"], headers["SourceY"]]), axis=1).shape[1]
    east, north = (headers[f"Group{axis}"] - headers[f"Source{axis}"] for axis in "XY")
    if len(east) >= _MIN_CHANNELS * sources and np.ptp(np.hypot(east, north)) > 0:
        raise InputError(
            f"{path} holds shots ({len(east)} traces of {sources} sources), not stacked traces: migrate them with "
            "collops lsm, or name their stack"
        )


def _standard_headers(
    file: SegyFile, headers: Mapping[str, np.ndarray], names: tuple[str, str]
) -> dict[str, np.ndarray]:
    """Return inline and crossline numbers and positions by the fields in which the standard has them."""
    inlines, crosslines = (headers[name] for name in names)
    east, north = ("CDP_X", "CDP_Y") if headers["CDP_X"].any() or headers["CDP_Y"].any() else ("SourceX", "SourceY")
    found = {"INLINE_3D": inlines, "CROSSLINE_3D": crosslines, "CDP_X": headers[east], "CDP_Y": headers[north]}
    if file.revision > 0 or uses_degrees(file, headers["CoordinateUnits"]):
        return found
    # Revision 1, in which results are written, defines codes that a file of revision 0 may hold by chance.
    return found | {"CoordinateUnits": np.ones_like(inlines)}


def _read_segy(file: SegyFile, trace_at: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    wanted = trace_at[rows]
    live = wanted >= 0
    traces = file.read(wanted[live])
    result = np.zeros((*wanted.shape, file.samples), traces.dtype)
    result[live] = traces
    return result, live


def _field(option: str, byte: int) -> str:
    """Return the name of the trace-header field that begins at a byte."""
    import segyio

    fields = {int(value): name for name, value in vars(segyio.TraceField).items() if isinstance(value, int)}
    if byte not in fields:
        raise InputError(
            f"no number of the trace header begins at --{option}-byte {byte}: give another byte, such as 189 or 193"
        )
    return fields[byte]
