"""Surveys in SEG-Y: read the geometry from the headers and the traces of a rank; headers of surveys and images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from collops.apps.survey.geometry import Bins, Geometry, Grid, Line
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
    "INLINE_3D",
    "CROSSLINE_3D",
    "CDP_X",
    "CDP_Y",
    *TIMING,
]
# A survey is 3-D if stations lie further than this part of its length off the line through them: with inline and
# crossline numbers, and without them, as a crooked line has none.
_WIDE_WITH_NUMBERS, _WIDE = 0.1, 0.25


@dataclass(frozen=True)
class SurveyHeaders:
    """The headers of a survey."""

    file: SegyFile
    geometry: Geometry  # positions of all shots
    traces: list[np.ndarray]  # for each shot the numbers of its traces in the file, in the order of its receivers
    line: Line  # position of the line, or of the axes in 3-D, on the map
    bins: Bins | None  # the numbering of a 3-D survey
    datum: float  # elevation of depth 0 in metres above sea level
    records: np.ndarray  # field record number of every shot
    channels: list[np.ndarray]  # for each shot the channel (trace number in the field record) of its receivers
    notes: list[str]  # decisions of the reader, in sentences for the user
    warnings: list[str]  # doubts of the reader, in sentences for the user
    defaults: dict[str, str]  # options in the textual header, if this package wrote the file

    def number(self, name: str, kind: Callable[[str], Any]) -> Any:
        """Return a number among the `defaults`, or None."""
        text = self.defaults.get(name)
        try:
            return None if text is None else kind(text)
        except ValueError:
            raise InputError(f"{self.file.path} says {name.upper()}={text} in its text header: give --{name}") from None


def read_headers(path: str | Path, dims: int | None = None) -> SurveyHeaders:
    """Read the geometry of a survey from a SEG-Y file, revision 0 to 2.

    Shots are identified by field record number, energy source point and source position, and keep their order in the
    file. Coordinates and elevations are multiplied by their scalars, and feet become metres. Depths count from sea
    level, or from the highest station if one lies above it. Traces marked as dead, dummy or auxiliary are left out.

    With `dims` 2 `Line.through` chooses the line. With 3 the axes are those of the bins that inline and crossline
    numbers define (`Bins.fit`) at the CDP positions, or else at the midpoints; without numbers, `Line.around` chooses
    them. By default a survey is 3-D if stations lie further off the line than a tenth of its length, a quarter without
    numbers.
    """
    if dims not in (None, 2, 3):
        raise InputError(f"a survey has 2 or 3 dimensions, not {dims}")
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
    length, off_line = float(np.ptp(line.distance(east, north))), float(np.abs(line.across(east, north)).max())
    if length == 0:
        raise InputError(
            f"{path} has all sources and receivers at one point: fill in bytes 73 to 88 of its trace headers"
        )
    numbered = all(np.ptp(headers[name]) > 0 for name in ("INLINE_3D", "CROSSLINE_3D"))
    least = (_WIDE_WITH_NUMBERS if numbered else _WIDE) * length
    bins, wide = None, dims == 3 or (dims is None and off_line > least)
    if wide:
        notes.append(f"stations lie up to {off_line:.0f} m off a line: the survey is 3-D (--dims 2 for a line)")
        if off_line <= 1e-6 * length:
            raise InputError(f"{path} has all sources and receivers on one line: a 3-D image needs them on an area")
        midpoints = (source_east + group_east) / 2, (source_north + group_north) / 2
        line, bins = _axes(headers, file.metres, midpoints, (east, north), notes)
    elif off_line > 0.02 * length:
        notes.append(f"stations lie up to {off_line:.0f} m off the straight line that the 2-D migration assumes")

    source_depth, receiver_depth, datum = _depths(headers, file.metres, notes)
    start = start_time(file, headers)
    sources = np.stack([line.distance(source_east, source_north), source_depth])
    groups = np.stack([line.distance(group_east, group_north), receiver_depth])
    if wide:
        sources = np.concatenate([line.across(source_east, source_north)[None], sources])
        groups = np.concatenate([line.across(group_east, group_north)[None], groups])
    order = np.split(np.argsort(shot_of, kind="stable"), np.cumsum(np.bincount(shot_of))[:-1])
    # Shots with the same receivers share one object, so that they share an operator.
    distinct: dict[bytes, np.ndarray] = {}
    receivers = [distinct.setdefault(groups[:, traces].tobytes(), groups[:, traces]) for traces in order]
    geometry = Geometry(sources[:, first_traces], receivers, file.samples, sample_interval(file, headers), start)
    text = file.text()
    named = re.findall(r"C ?\d+ ([A-Z0-9_]+)=(\S+)", text) if _SIGNATURE in text else []
    defaults = {name.lower(): value for name, value in named}
    return SurveyHeaders(
        file,
        geometry,
        [numbers[traces] for traces in order],
        line,
        bins,
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
    scalar = _scalar(np.concatenate([source[:-1], group[:-1]], axis=None))
    depth_scalar = _scalar(np.concatenate([source[-1], group[-1]]))
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
        "SourceX": np.rint(source[-2] * scalar),
        "GroupX": np.rint(group[-2] * scalar),
        "offset": np.rint(np.concatenate([geometry.offsets(number) for number in range(geometry.shots)])),
        "SourceDepth": np.rint(source[-1] * depth_scalar),
        "ReceiverGroupElevation": np.rint(-group[-1] * depth_scalar),
        "DelayRecordingTime": round(geometry.start * 1e3) * constant,
    }
    if geometry.dims == 3:
        headers |= {"SourceY": np.rint(source[0] * scalar), "GroupY": np.rint(group[0] * scalar)}
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
    east, north = headers.line.position(*grid.columns())
    scalar, one = _scalar(np.concatenate([east, north])), np.ones(len(east), dtype=np.int64)
    x, y = np.rint(east * scalar), np.rint(north * scalar)
    columns = np.cumsum(one)
    inline, crossline = (each + 1 for each in np.divmod(columns - 1, grid.nx))
    if headers.bins is not None and (numbers := headers.bins.numbers(grid)) is not None:
        inline, crossline = (each.ravel() for each in np.meshgrid(*numbers, indexing="ij"))
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
        "INLINE_3D": inline,
        "CROSSLINE_3D": crossline,
    }
    own = slice(None if rank == 0 else 0)
    traces = image.reshape(-1, grid.nz)[own]
    return Traces(title, traces, (columns - 1)[own], whole_interval(grid.dz / 1e3, grid.nz), fields)


def _axes(
    headers: Mapping[str, np.ndarray],
    metres: float,
    midpoints: tuple[np.ndarray, np.ndarray],
    stations: tuple[np.ndarray, np.ndarray],
    notes: list[str],
) -> tuple[Line, Bins | None]:
    """Return the axes of a 3-D survey on the map, and its bins if inline and crossline numbers define them."""
    inline, crossline = headers["INLINE_3D"], headers["CROSSLINE_3D"]
    if inline.any() or crossline.any():
        places = [scaled(headers[name], headers["SourceGroupScalar"]) * metres for name in ("CDP_X", "CDP_Y")]
        at, where = (places, "CDP positions") if np.any(places) else (midpoints, "midpoints")
        try:
            line, bins = Bins.fit(inline, crossline, *at)
        except InputError as problem:
            notes.append(f"bins are not used: {problem}")
        else:
            apart = " x ".join(f"{each:.4g}" for each in bins.spacing)
            notes.append(f"bins of {apart} m (across inlines x along them) from numbers and {where}")
            return line, bins
    line = Line.around(*stations)
    east, north = line.direction
    notes.append(f"x points {np.degrees(np.arctan2(north, east)):.1f} degrees north of east")
    return line, None


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
