"""Surveys in SEG-Y: read the geometry from the headers and the traces of a rank; headers of surveys and images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collops.apps.segy import (
    TIMING,
    SegyFile,
    Traces,
    sample_interval,
    scaled,
    start_time,
    uses_degrees,
    whole_interval,
)
from collops.apps.survey.checks import check_positions, refuse_stack
from collops.apps.survey.geometry import Geometry, Grid, Line
from collops.errors import InputError

__all__ = ["SurveyHeaders", "image_traces", "read_headers", "read_traces", "shot_traces", "survey_traces"]

_SIGNATURE = "COLLOPS SURVEY 1"
_FIELDS = [
    "FieldRecord",
    "TraceNumber",
    "EnergySourcePoint",
    "offset",
    "SourceX",
    "SourceY",
    "GroupX",
    "GroupY",
    "SourceGroupScalar",
    "ElevationScalar",
    "ReceiverGroupElevation",
    "SourceSurfaceElevation",
    "SourceDepth",
    "CoordinateUnits",
    *TIMING,
]


@dataclass(frozen=True)
class SurveyHeaders:
    """The headers of a survey."""

    file: SegyFile
    geometry: Geometry  # positions of all shots
    traces: list[np.ndarray]  # for each shot the numbers of its traces in the file, in the order of its receivers
    line: Line  # position of the line on the map
    datum: float  # elevation of depth 0 in metres above sea level
    records: np.ndarray  # field record number of every shot
    channels: list[np.ndarray]  # for each shot the channel (trace number in the field record) of its receivers
    notes: list[str]  # decisions of the reader, in sentences for the user
    warnings: list[str]  # doubts of the reader, in sentences for the user
    defaults: dict[str, str]  # options in the textual header, if this package wrote the file


def read_headers(path: str | Path) -> SurveyHeaders:
    """Read the geometry of a survey from a SEG-Y file, revision 0 to 2.

    Shots are identified by field record number, energy source point and source position, and keep their order in the
    file. Coordinates and elevations are multiplied by their scalars, and feet become metres. Depths count from sea
    level, or from the highest station if one lies above it. `Line.through` chooses the line. Traces marked as dead,
    dummy or auxiliary are left out.
    """
    file = SegyFile.inspect(path)
    numbers, headers = file.live_headers(*_FIELDS)
    notes: list[str] = []
    if len(numbers) < file.traces:
        notes.append(
            f"{file.traces - len(numbers)} of {file.traces} traces are marked as dead or auxiliary and left out"
        )
    if uses_degrees(file, headers["CoordinateUnits"]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")

    scalar = headers["SourceGroupScalar"]
    source_east, source_north, group_east, group_north = (
        scaled(headers[name], scalar) * file.metres for name in ("SourceX", "SourceY", "GroupX", "GroupY")
    )
    if not any(np.any(c) for c in (source_east, source_north, group_east, group_north)):
        if any(np.any(values) for values in file.headers("CDP_X", "CDP_Y").values()):
            refuse_stack(file.path)
        raise InputError(f"{path} has no source and receiver coordinates in its trace headers: fill in bytes 73 to 88")
    shot_of, first_traces = _shots(headers)
    warnings = check_positions(
        file.path,
        np.stack([source_east, source_north]),
        np.stack([group_east, group_north]),
        headers["offset"] * file.metres,
        len(first_traces),
    )
    east, north = np.concatenate([source_east, group_east]), np.concatenate([source_north, group_north])
    line = Line.through(east, north)
    length, off_line = float(np.ptp(line.distance(east, north))), float(line.deviation(east, north).max())
    if length == 0:
        raise InputError(
            f"{path} has all sources and receivers at one point: fill in bytes 73 to 88 of its trace headers"
        )
    if off_line > 0.02 * length:
        notes.append(f"stations lie up to {off_line:.0f} m off the straight line that the 2-D migration assumes")

    source_depth, receiver_depth, datum = _depths(headers, file.metres, notes)
    start = start_time(file, headers)
    sources = np.stack([line.distance(source_east, source_north), source_depth])
    groups = np.stack([line.distance(group_east, group_north), receiver_depth])
    order = [np.flatnonzero(shot_of == shot) for shot in range(len(first_traces))]
    receivers = [groups[:, traces] for traces in order]
    # All shots of a fixed spread share one object, so that travel times are computed once.
    if all(np.array_equal(r, receivers[0]) for r in receivers):
        receivers = [receivers[0]] * len(receivers)
    geometry = Geometry(sources[:, first_traces], receivers, file.samples, sample_interval(file, headers), start)
    text = file.text()
    named = re.findall(r"C ?\d+ ([A-Z0-9_]+)=(\S+)", text) if _SIGNATURE in text else []
    defaults = {name.lower(): value for name, value in named}
    return SurveyHeaders(
        file,
        geometry,
        [numbers[traces] for traces in order],
        line,
        datum,
        headers["FieldRecord"][first_traces],
        [headers["TraceNumber"][traces] for traces in order],
        notes,
        warnings,
        defaults,
    )


def read_traces(headers: SurveyHeaders, shots: range) -> list[np.ndarray]:
    """Read the traces of some shots only: one array per shot, shape ``(receivers, samples)``."""
    if not shots:
        return []
    numbers = [headers.traces[shot] for shot in shots]
    together = headers.file.read(np.concatenate(numbers))
    return np.split(together, np.cumsum([len(n) for n in numbers])[:-1])


def survey_traces(
    geometry: Geometry, shots: range, traces: Sequence[np.ndarray], defaults: Mapping[str, str]
) -> tuple[Traces, list[str]]:
    """Return this rank's part of a survey, an array for each of its `shots`, and the text of the file.

    Positions are stored to a tenth of a millimetre if the line is shorter than 214 km. The text holds `defaults`:
    options of the migration by name, which apply when the file is read.
    """
    interval = whole_interval(geometry.interval, geometry.samples)
    if abs(interval - geometry.interval * 1e6) > 1e-3:
        raise InputError(f"SEG-Y holds whole microseconds: choose another interval than {geometry.interval} s")
    counts = [receivers.shape[1] for receivers in geometry.receivers]
    shot = np.repeat(np.arange(geometry.shots), counts)
    source, group = geometry.sources[:, shot], np.concatenate(list(geometry.receivers), axis=1)
    scalar = _scalar(np.concatenate([source[0], group[0]]))
    depth_scalar = _scalar(np.concatenate([source[1], group[1]]))
    constant = np.ones_like(shot)
    headers = {
        "TRACE_SEQUENCE_LINE": np.arange(len(shot)) + 1,
        "FieldRecord": shot + 1,
        "EnergySourcePoint": shot + 1,
        "TraceNumber": np.concatenate([np.arange(count) + 1 for count in counts]),
        "TraceIdentificationCode": constant,
        "CoordinateUnits": constant,
        "SourceGroupScalar": -scalar * constant,
        "ElevationScalar": -depth_scalar * constant,
        "SourceX": np.rint(source[0] * scalar),
        "GroupX": np.rint(group[0] * scalar),
        "offset": np.rint(group[0] - source[0]),
        "SourceDepth": np.rint(source[1] * depth_scalar),
        "ReceiverGroupElevation": np.rint(-group[1] * depth_scalar),
        "DelayRecordingTime": round(geometry.start * 1e3) * constant,
    }
    values = np.concatenate([np.empty((0, geometry.samples), np.float32), *traces])
    made = Traces(_SIGNATURE, values, np.flatnonzero(np.isin(shot, shots)), interval, headers)
    text = ["SYNTHETIC PRESTACK SURVEY, IEEE FLOATS, METRES, SECONDS, HERTZ", ""]
    return made, text + [f"{name.upper()}={value}" for name, value in defaults.items()]


def shot_traces(title: str, headers: SurveyHeaders, shots: range, values: np.ndarray) -> Traces:
    """Return traces that belong in the place of those of a survey: those of this rank's `shots`, shot by shot.

    They keep the order and the headers of the survey's live traces.
    """
    numbers = np.sort(np.concatenate(headers.traces))
    own = np.concatenate([np.empty(0, np.int64), *(headers.traces[shot] for shot in shots)])
    interval = whole_interval(headers.geometry.interval, headers.geometry.samples)
    # Revision 1, in which these traces are written, defines codes that a file of revision 0 may hold by chance.
    changes = {"CoordinateUnits": np.ones_like(numbers)}
    return Traces(title, values, np.searchsorted(numbers, own), interval, changes, (headers.file, numbers))


def image_traces(title: str, image: np.ndarray, grid: Grid, headers: SurveyHeaders, rank: int) -> Traces:
    """Return the columns of an image, which all ranks hold and the first one writes, at their places on the map."""
    east, north = headers.line.position(grid.x)
    scalar, one = _scalar(np.concatenate([east, north])), np.ones(grid.nx, dtype=np.int64)
    x, y = np.rint(east * scalar), np.rint(north * scalar)
    columns = np.cumsum(one)
    fields = {
        "TRACE_SEQUENCE_LINE": columns,
        "TRACE_SEQUENCE_FILE": columns,
        "CDP": columns,
        "TraceIdentificationCode": one,
        "CoordinateUnits": one,
        "SourceGroupScalar": -scalar * one,
        "ElevationScalar": -100 * one,
        "ReceiverDatumElevation": round(100 * headers.datum) * one,
        "SourceDatumElevation": round(100 * headers.datum) * one,
        **dict.fromkeys(("SourceX", "GroupX", "CDP_X"), x),
        **dict.fromkeys(("SourceY", "GroupY", "CDP_Y"), y),
        "INLINE_3D": one,
        "CROSSLINE_3D": columns,
    }
    own = slice(None if rank == 0 else 0)
    return Traces(title, image[own], (columns - 1)[own], whole_interval(grid.dz / 1e3, grid.nz), fields)


def _depths(headers: Mapping[str, np.ndarray], metres: float, notes: list[str]) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the depths of source and receiver of every trace below the datum, and the datum's elevation."""
    scalar = headers["ElevationScalar"]
    elevation, surface, below = (
        scaled(headers[name], scalar) * metres
        for name in ("ReceiverGroupElevation", "SourceSurfaceElevation", "SourceDepth")
    )
    receiver, source = -elevation, below - surface
    datum = max(-float(receiver.min()), -float(source.min()), 0.0)
    receiver, source = receiver + datum, source + datum
    place = f"the highest station, {datum:g} m above sea level" if datum > 0 else "sea level"
    ends = [" to ".join(f"{end:g}" for end in sorted({each.min(), each.max()})) for each in (source, receiver)]
    notes.append(f"depths in metres below {place}: sources {ends[0]}, receivers {ends[1]}")
    return source, receiver, datum


def _shots(headers: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shot of every trace, numbered in order of appearance, and the first trace of every shot."""
    names = ("FieldRecord", "EnergySourcePoint", "SourceX", "SourceY")
    keys = np.stack([headers[name] for name in names], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank_of = np.empty_like(order)
    rank_of[order] = np.arange(len(order))
    return rank_of[inverse.reshape(-1)], first[order]


def _scalar(values: np.ndarray) -> int:
    """Return the finest divisor for which all `values` fit the 32-bit integers of a trace header."""
    for scalar in (10000, 1000, 100, 10, 1):
        if np.abs(values).max() * scalar <= 0x7FFFFFFF:
            return scalar
    raise InputError("SEG-Y holds coordinates up to 2147483647 m only")
