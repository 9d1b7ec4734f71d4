"""Surveys in Zarr: an array of traces with the positions of sources and receivers, as xarray and MDIO write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import (
    Field,
    Url,
    check_memory,
    decoded,
    dimension_names,
    located,
    open_zarr,
    read_rows,
)
from collops.seismic.segy import OTHER_TRACES, scaled
from collops.seismic.survey.checks import Terms, refuse_stack
from collops.seismic.survey.geometry import Geometry, Line
from collops.seismic.survey.headers import SurveyHeaders, survey_headers
from collops.seismic.survey.statics import Statics
from collops.seismic.survey.traces import TraceHeaders
from collops.seismic.times import read_times, unit_of
from collops.seismic.volume.files import DATA_NAMES

if TYPE_CHECKING:
    from collops import Communicator

__all__ = ["ZarrShots", "trace_fields"]

DEFAULTS = "collops_survey"
"""The attribute of a group that holds options of the migration."""

_METRES = {
    **dict.fromkeys(("m", "metre", "metres", "meter", "meters"), 1.0),
    **dict.fromkeys(("ft", "foot", "feet"), 0.3048),
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), 1000.0),
}
_POSITIONS = ("source_coord_x", "source_coord_y", "group_coord_x", "group_coord_y")
_RECORDS = ("field_record", "orig_field_record_num", "shot_point", "shot")
_OFFSETS = ("offset", "source_to_receiver_distance")
_ELEVATIONS = ("receiver_group_elevation", "source_surface_elevation", "source_depth_below_surface")
_OF_BINS = ("inline", "crossline", "cdp_x", "cdp_y")  # of traces, or of a stack or an image in the same group
_KIND = "trace_id_code"
# The scalars of SEG-Y trace headers, which apply if the group stores these headers.
_SCALARS = {**dict.fromkeys(_ELEVATIONS, "elevation_depth_scalar"), **dict.fromkeys(_OF_BINS[2:], "coordinate_scalar")}
_TERMS = Terms(
    f"the arrays {', '.join(_POSITIONS)}",
    f"offsets ({' or '.join(_OFFSETS)})",
    "attribute units of the coordinates",
    "set trace_mask to False there",
)
_HEADER_BYTES = 500  # per trace
_MAX_CACHED_BYTES = 256 << 20  # of chunks, which also hold shots other than the requested ones


@dataclass(frozen=True)
class ZarrShots:
    """An array of traces in a Zarr group, whose last axis is time; make one with `ZarrShots.inspect`."""

    path: Path | Url
    array: Any
    group: Any
    axes: tuple[str, ...]  # names of the axes of traces: all but the last one of the array
    # the chunks read last: the number of the first row, and the rows along the first axis
    _chunk_cache: list[tuple[int, np.ndarray]] = field(default_factory=list)

    @classmethod
    def inspect(cls, path: str | Path | Url) -> ZarrShots:
        """Open a group, or an array in one, and check its axes.

        From a group it chooses the array that MDIO names as the default, or the first of `DATA_NAMES`.
        """
        path = located(path)
        if not path.exists():
            raise InputError(f"{path} does not exist: check the path of the Zarr store")
        group = open_zarr(path)
        if hasattr(group, "shape"):
            group = open_zarr(path.parent)
        else:
            about = group.attrs.get("attributes")
            default = about.get("defaultVariableName") if isinstance(about, Mapping) else None
            name = next((label for label in (default, *DATA_NAMES) if label and (path / str(label)).is_dir()), None)
            if name is None:
                known = ", ".join(DATA_NAMES)
                raise InputError(
                    f"{path} has no array of traces called {known}: pass the path of its array, {path}/NAME"
                )
            path = path / str(name)
        array = open_zarr(path)
        if not hasattr(array, "shape") or np.dtype(array.dtype).kind not in "fiu":
            raise InputError(f"{path} must be an array of real numbers: pass the path of the array of traces")
        *axes, last = dimension_names(array) or [None]
        if array.ndim < 2 or 0 in array.shape or None in axes or not (path.parent / str(last)).is_dir():
            raise InputError(
                f"{path} has {_described((*axes, last), array.shape)}: write it in the form of xarray, with names of "
                "its axes (the last is time), and a 1-D array of times with the name of the last axis"
            )
        traces = math.prod(array.shape[:-1])
        check_memory(_HEADER_BYTES * traces, f"the headers of {path}", "use a smaller survey")
        return cls(path, array, group, tuple(map(str, axes)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes of traces."""
        return tuple(self.array.shape[:-1])

    def sampling(self) -> tuple[int, float, float]:
        """Return the number of samples, the interval and the time of the first one, in seconds."""
        name, samples = str(dimension_names(self.array)[-1]), self.array.shape[-1]
        times = read_times(self._open(name), self.path.parent / name, samples, self.group)
        return samples, *times

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``, float32, or float64 as in the file."""
        first, *other_axes = np.unravel_index(traces, self.shape)
        begin, end, chunk = int(first.min()), int(first.max()) + 1, self.array.chunks[0]
        start, stop = begin // chunk * chunk, min(-(-end // chunk) * chunk, self.shape[0])
        if (stop - start) * int(np.prod(self.array.shape[1:])) * self.array.dtype.itemsize > _MAX_CACHED_BYTES:
            chosen, inner = zip(
                *(np.unique(indices, return_inverse=True) for indices in (first, *other_axes)), strict=True
            )
            return decoded(self.array, self.path, (*map(_run, chosen), slice(None)))[inner]
        first_row, rows = next(iter(self._chunk_cache), (0, np.empty(0)))
        if not first_row <= begin < end <= first_row + len(rows):
            self._chunk_cache.clear()
            first_row, rows = start, decoded(self.array, self.path, (slice(start, stop),))
            if stop - start > end - begin:
                # Shots are read one after the other, and the next shots are in the same chunks.
                self._chunk_cache.append((first_row, rows))
        return rows[(first - first_row, *other_axes)]

    def of_traces(self, *names: str) -> np.ndarray | None:
        """Return one value for each trace from the first of some arrays that exists, or None: float64.

        It may be a field of ``headers``, the structured array in which MDIO keeps the trace headers of SEG-Y.
        """
        name = self._array_of(names)
        if name is not None:
            return self._expand(name)
        return next((self._headers[name] for name in names if name in self._headers), None)

    def metres(self, *names: str) -> np.ndarray | None:
        """Return `of_traces` in metres; the default unit is the unit of the sources' positions, or metres."""
        values = self.of_traces(*names)
        if values is None:
            return None
        name = self._array_of(names)
        if name is None and (scalar := _SCALARS.get(names[0])) in self._headers:
            values = scaled(values, self._headers[scalar])
        units = (unit_of(self._open(label)) for label in (name, _POSITIONS[0]) if label and self._has(label))
        unit = next(filter(None, units), "m")
        if unit.startswith(("deg", "rad")):
            raise InputError(f"{self.path.parent} has coordinates in degrees: project them to metres first")
        if unit not in _METRES:
            raise InputError(f"{self.path.parent / (name or names[0])} is in {unit}: convert it to m, ft or km")
        return values * _METRES[unit]

    def _array_of(self, names: tuple[str, ...]) -> str | None:
        """Return the first of some names for which an array of traces exists, or None."""
        present = filter(self._has, names)
        of_traces = (
            label for label in present if label not in _OF_BINS or {*dimension_names(self._open(label))} <= {*self.axes}
        )
        return next(of_traces, None)

    def _has(self, name: str) -> bool:
        return (self.path.parent / name).is_dir()

    def _open(self, name: str) -> Any:
        return open_zarr(self.path.parent / name)

    def _expand(self, name: str) -> np.ndarray:
        array, path = self._open(name), self.path.parent / name
        extents = dict(zip(self.axes, self.shape, strict=True))
        shape, names = getattr(array, "shape", None), [] if not hasattr(array, "shape") else dimension_names(array)
        if shape is None or any(extents.get(str(label)) != size for label, size in zip(names, shape, strict=True)):
            raise InputError(
                f"{path} has {_described(names, shape or ())}, but its axes must be axes of the traces: "
                f"{_described(self.axes, self.shape).removeprefix('the axes ')}"
            )
        order = sorted(range(len(names)), key=lambda axis: self.axes.index(str(names[axis])))
        index = tuple(slice(None) if axis in names else None for axis in self.axes)
        values = decoded(array, path, dtype=np.float64).transpose(order)
        return np.broadcast_to(values[index], self.shape).ravel()

    @cached_property
    def _headers(self) -> dict[str, np.ndarray]:
        """The fields of the SEG-Y trace headers that a survey uses."""
        if not self._has("headers"):
            return {}
        array, path = self._open("headers"), self.path.parent / "headers"
        known = getattr(getattr(array, "dtype", None), "names", None) or ()
        known_fields = (*_RECORDS, *_OFFSETS, *_ELEVATIONS, *_OF_BINS, *_SCALARS.values(), _KIND)
        fields = [name for name in dict.fromkeys(known_fields) if name in known]
        if not fields:
            return {}
        if tuple(array.shape) != self.shape:
            raise InputError(f"{path} must have the shape of the traces, {self.shape}, not {tuple(array.shape)}")
        step = array.chunks[0]
        rows = [read_rows(array, path, slice(first, first + step))[fields] for first in range(0, array.shape[0], step)]
        together = np.concatenate(rows).ravel()
        return {name: together[name].astype(np.float64) for name in fields}


def read_headers(path: str | Path | Url, dims: int | None = None, statics: Statics | None = None) -> SurveyHeaders:
    """Read the geometry of a survey from a Zarr group, of format 2 or 3; `survey_headers` has the rules.

    The traces are an array of real numbers whose last axis is time; a 1-D array with the name of this axis holds the
    times. Positions of sources and receivers are arrays over some of its other axes, by their names. Shots are
    identified by source position and, if the group has one, by a number (`_RECORDS`). Traces are omitted where
    ``trace_mask`` is False or, without a mask, where positions are NaN.
    """
    file = ZarrShots.inspect(path)
    samples, interval, start = file.sampling()
    group = file.path.parent
    if "component" in file.axes and (count := file.shape[file.axes.index("component")]) > 1:
        raise InputError(f"{file.path} has {count} components: write a store with the component to migrate")
    coordinates = [file.metres(name) for name in _POSITIONS]
    if missing := [name for name, column in zip(_POSITIONS, coordinates, strict=True) if column is None]:
        if len(missing) == len(_POSITIONS) and (file._has("cdp_x") or {"inline", "crossline"} <= {*file.axes}):
            refuse_stack(group)
        raise InputError(
            f"{group} lacks {', '.join(missing)}: add the positions of sources and receivers as arrays over axes of "
            f"the traces, {' x '.join(file.axes)} (zeros for the coordinate across a line)"
        )
    positions = np.stack([column for column in coordinates if column is not None])
    mask, kind = file.of_traces("trace_mask"), file.of_traces(_KIND)
    live = np.asarray(np.isfinite(positions).all(axis=0) if mask is None else np.nan_to_num(mask) != 0)
    if kind is not None:
        live &= ~np.isin(kind, OTHER_TRACES)
    numbers = np.flatnonzero(live)
    if not len(numbers):
        raise InputError(f"{group} has no live traces: trace_mask is False, or positions are NaN, everywhere")
    notes = []
    if len(numbers) < len(live):
        notes.append(f"{len(live) - len(numbers)} of {len(live)} traces of {file.path.name} are dead and omitted")

    def of_live(name: str, values: np.ndarray | None) -> np.ndarray:
        live_values = np.zeros(len(numbers)) if values is None else values[live]
        if not (np.abs(live_values) < 1e15).all():
            which = np.unravel_index(numbers[np.argmin(np.abs(live_values) < 1e15)], file.shape)
            position = ", ".join(f"{axis} {index}" for axis, index in zip(file.axes, which, strict=True))
            raise InputError(
                f"{group / name} has no finite number at {position} (from 0): correct it, or {_TERMS.dead}"
            )
        return live_values

    def lengths(*names: str) -> np.ndarray:
        return np.stack([of_live(name, file.metres(name)) for name in names])

    positions = np.stack([of_live(*column) for column in zip(_POSITIONS, positions, strict=True)])
    elevation, surface, below = lengths(*_ELEVATIONS)
    record, channel = file.of_traces(*_RECORDS), file.of_traces("channel")
    keys = np.stack([of_live(_RECORDS[0], record), *positions[:2]])
    channels = np.stack([*keys, of_live("channel", channel)])
    if np.unique(channels, axis=1).shape[1] < len(numbers):
        channel = None  # ambiguous: several cables, each with its own numbers
    traces = TraceHeaders(
        numbers,
        positions[:2],
        positions[2:],
        np.stack([below - surface, -elevation]),
        surface,
        of_live(_OFFSETS[0], file.metres(*_OFFSETS)),
        keys,
        None if record is None else keys[0].astype(np.int64),
        None if channel is None else channels[-1].astype(np.int64),
        np.stack([of_live(name, file.of_traces(name)) for name in _OF_BINS[:2]]).astype(np.int64),
        lengths(*_OF_BINS[2:]),
        np.full(len(numbers), start),
        np.full(len(numbers), samples),
    )
    options = file.group.attrs.get(DEFAULTS)
    defaults = {str(name): str(text) for name, text in options.items()} if isinstance(options, Mapping) else {}
    return survey_headers(file, interval, traces, _TERMS, dims, statics, notes, defaults)


def trace_fields(
    geometry: Geometry, headers: SurveyHeaders | None, comm: Communicator, shots: range, **traces: list[np.ndarray]
) -> dict[str, Field]:
    """Return traces of some shots as fields of a result that `read_headers` can read.

    The values of `traces`, by the name of the field, are lists of arrays, one for each of these shots on this rank.
    """
    from collops import DistributedArray, Layout

    selected = np.isin(geometry.shot_of_trace, shots)
    sizes = [int(np.isin(geometry.shot_of_trace[selected], share).sum()) for share in geometry.shares(comm.size)]
    layout = Layout.split((sum(sizes), geometry.samples), comm.size, sizes=sizes)
    nothing = np.empty((0, geometry.samples), np.float32)
    shot, (source, group) = geometry.shot_of_trace, geometry.on_map(Line() if headers is None else headers.line)
    records = np.arange(geometry.shots) + 1 if headers is None else headers.records
    channels = geometry.counted() if headers is None else headers.channels
    datum = 0.0 if headers is None else headers.datum
    of_trace = {
        "shot": (shot, "1"),
        "field_record": (records[shot], "1"),
        "channel": (np.concatenate(channels), "1"),
        "offset": (np.concatenate([geometry.offsets(column) for column in range(geometry.shots)]), "m"),
        **{name: (column, "m") for name, column in zip(_POSITIONS, (*source[:2], *group[:2]), strict=True)},
        **dict(zip(_ELEVATIONS, ((datum - group[2], "m"), (0 * shot + datum, "m"), (source[2], "m")), strict=True)),
    }
    fields = {name: Field(values[selected], ("trace",), unit, True) for name, (values, unit) in of_trace.items()}
    fields["time"] = Field(geometry.times, ("time",), "s")
    for name, parts in traces.items():
        values = DistributedArray(layout, comm, np.concatenate([nothing, *parts], dtype=np.float32))
        fields[name] = Field(values, ("trace", "time"), "1")
    return fields


def _described(names: Any, shape: tuple[int, ...]) -> str:
    return "the axes " + " x ".join(f"{name} ({size})" for name, size in zip(names, shape, strict=False))


def _run(numbers: np.ndarray) -> Any:
    """Return increasing numbers as a slice, if they are consecutive."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers
