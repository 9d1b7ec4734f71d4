"""Surveys in SEG-Y: read the geometry from the headers, read the traces of a rank, and write a survey."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collops.apps.lsm.survey import Geometry, Line
from collops.apps.segy import TIMING, SegyFile, sample_interval, scaled, start_time, write_segy
from collops.errors import InputError

__all__ = ["read_headers", "read_traces", "write_survey"]

_SIGNATURE = "COLLOPS SURVEY 1"
_ARC_UNITS = (2, 3, 4)
_FIELDS = [
    "FieldRecord",
    "EnergySourcePoint",
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

    path: Path
    geometry: Geometry  # positions of all shots
    traces: list[np.ndarray]  # for each shot the numbers of its traces in the file, in the order of its receivers
    line: Line  # position of the line on the map
    notes: list[str]  # decisions of the reader, in sentences for the user
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
    # Revision 0 defines only lengths and arc seconds here, and its files often hold other codes.
    units = int(headers["CoordinateUnits"][0])
    if units in _ARC_UNITS and (file.revision > 0 or units == _ARC_UNITS[0]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")

    scalar = headers["SourceGroupScalar"]
    source_east, source_north, group_east, group_north = (
        scaled(headers[name], scalar) * file.metres for name in ("SourceX", "SourceY", "GroupX", "GroupY")
    )
    if not any(np.any(c) for c in (source_east, source_north, group_east, group_north)):
        raise InputError(f"{path} has no source and receiver coordinates in its trace headers: fill in bytes 73 to 88")
    east, north = np.concatenate([source_east, group_east]), np.concatenate([source_north, group_north])
    line = Line.through(east, north)
    length, off_line = float(np.ptp(line.distance(east, north))), float(line.deviation(east, north).max())
    if length == 0:
        raise InputError(
            f"{path} has all sources and receivers at one point: fill in bytes 73 to 88 of its trace headers"
        )
    if off_line > 0.02 * length:
        notes.append(f"stations lie up to {off_line:.0f} m off the straight line that the 2-D migration assumes")

    source_depth, receiver_depth = _depths(headers, file.metres, notes)
    start = start_time(file, headers)
    shot_of, first_traces = _shots(headers)
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
    return SurveyHeaders(file.path, geometry, [numbers[traces] for traces in order], line, notes, defaults)


def read_traces(path: str | Path, headers: SurveyHeaders, shots: range) -> list[np.ndarray]:
    """Read the traces of some shots only: one array per shot, shape ``(receivers, samples)``."""
    if not shots:
        return []
    file = SegyFile.inspect(path)
    numbers = [headers.traces[shot] for shot in shots]
    together = file.read(np.concatenate(numbers))
    return np.split(together, np.cumsum([len(n) for n in numbers])[:-1])


def write_survey(path: Path, geometry: Geometry, traces: list[np.ndarray], defaults: Mapping[str, str]) -> None:
    """Write a survey, one array of traces per shot, as SEG-Y.

    Positions are stored to a tenth of a millimetre if the line is shorter than 214 km, traces as float32. The textual
    header holds `defaults`: options of the migration by name, which apply when the file is read.
    """
    interval = round(geometry.interval * 1e6)
    delay = round(geometry.start * 1e3)
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
        "DelayRecordingTime": delay * constant,
    }
    text = {1: _SIGNATURE, 2: "SYNTHETIC PRESTACK SURVEY, IEEE FLOATS, METRES, SECONDS, HERTZ"}
    for number, (name, value) in enumerate(defaults.items(), start=4):
        text[number] = f"{name.upper()}={value}"
    write_segy(path, np.concatenate(traces), headers, interval, text)


def _depths(headers: Mapping[str, np.ndarray], metres: float, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the depths of source and receiver of every trace below the datum."""
    scalar = headers["ElevationScalar"]
    elevation, surface, below = (
        scaled(headers[name], scalar) * metres
        for name in ("ReceiverGroupElevation", "SourceSurfaceElevation", "SourceDepth")
    )
    receiver, source = -elevation, below - surface
    highest = min(float(receiver.min()), float(source.min()))
    if highest < 0:
        notes.append(f"depths count from the highest station, {-highest:g} m above sea level")
        receiver, source = receiver - highest, source - highest
    return source, receiver


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
