"""Surveys in SEG-Y: read the geometry from the headers and the traces of a rank; headers of surveys and images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from collops.errors import InputError
from collops.seismic.segy import (
    TIMING,
    SegyFile,
    Traces,
    sample_interval,
    scaled,
    start_time,
    unused_times,
    uses_degrees,
    whole_interval,
)
from collops.seismic.survey.checks import Terms, refuse_stack
from collops.seismic.survey.geometry import Geometry, Grid, Line
from collops.seismic.survey.headers import SurveyHeaders, TraceHeaders, survey_headers

__all__ = ["gather_traces", "image_traces", "shot_traces"]

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
_TERMS = Terms(
    "bytes 73 to 88 of its trace headers",
    "offsets (bytes 37 to 40)",
    "scalar of the coordinates (bytes 71 to 72)",
    "mark these traces as dead (bytes 29 to 30)",
)


def read_headers(path: str | Path, dims: int | None = None) -> SurveyHeaders:
    """Read the geometry of a survey from a SEG-Y file, revision 0 to 2; `survey_headers` has the rules.

    Shots are identified by field record number, energy source point and source position. Coordinates and elevations are
    multiplied by their scalars, and feet are converted to metres. Traces marked as dead, dummy or auxiliary are
    omitted.
    """
    file = SegyFile.inspect(path)
    numbers, headers = file.live_headers(*_FIELDS)
    notes: list[str] = []
    if len(numbers) < file.traces:
        notes.append(
            f"{file.traces - len(numbers)} of {file.traces} traces are marked as dead or auxiliary and omitted"
        )
    if uses_degrees(file, headers["CoordinateUnits"]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")

    def metres(scalar: str, *names: str) -> np.ndarray:
        return np.stack([scaled(headers[name], headers[scalar]) * file.metres for name in names])

    source, group, cdp = (
        metres("SourceGroupScalar", f"{prefix}X", f"{prefix}Y") for prefix in ("Source", "Group", "CDP_")
    )
    if not (source.any() or group.any()):
        if cdp.any():
            refuse_stack(file.path)
        raise InputError(f"{path} lacks source and receiver coordinates: fill in {_TERMS.positions}")
    elevation, surface, below = metres(
        "ElevationScalar", "ReceiverGroupElevation", "SourceSurfaceElevation", "SourceDepth"
    )
    traces = TraceHeaders(
        numbers,
        source,
        group,
        np.stack([below - surface, -elevation]),
        headers["offset"] * file.metres,
        np.stack([headers[name] for name in ("FieldRecord", "EnergySourcePoint", "SourceX", "SourceY")]),
        headers["FieldRecord"],
        headers["TraceNumber"],
        np.stack([headers["INLINE_3D"], headers["CROSSLINE_3D"]]),
        cdp,
    )
    notes += unused_times(headers)
    if file.has_extended_positions():
        notes.append("positions of trace header extension 1 are not read: the standard trace headers are used")
    sampling = file.samples, sample_interval(file, headers, notes), start_time(file, headers)
    text = file.text()
    named = re.findall(r"C ?\d+ ([A-Z0-9_]+)=(\S+)", text) if _SIGNATURE in text else []
    defaults = {name.lower(): value for name, value in named}
    return survey_headers(file, sampling, traces, _TERMS, dims, notes, defaults)


def survey_traces(
    geometry: Geometry, shots: range, traces: Sequence[np.ndarray], defaults: Mapping[str, str]
) -> tuple[Traces, list[str]]:
    """Return this rank's part of a survey, an array for each of its `shots`, and the text of the file.

    Positions are stored to a tenth of a millimetre if the line is shorter than 214 km. The text holds `defaults`:
    options of the migration by name, which apply when the file is read.
    """
    interval = whole_interval(geometry.interval, geometry.samples)
    if abs(interval - geometry.interval * 1e6) > 1e-3:
        raise InputError(f"SEG-Y needs an interval of whole microseconds, not {geometry.interval} s")
    headers = _positions(geometry, Line(), 0.0, np.arange(geometry.shots) + 1, geometry.counted())
    values = np.concatenate([np.empty((0, geometry.samples), np.float32), *traces])
    made = Traces(_SIGNATURE, values, geometry.rows(shots), interval, headers)
    text = ["SYNTHETIC PRESTACK SURVEY, IEEE FLOATS, METRES, SECONDS, HERTZ", ""]
    return made, text + [f"{name.upper()}={value}" for name, value in defaults.items()]


def shot_traces(title: str, headers: SurveyHeaders, shots: range, values: np.ndarray) -> Traces:
    """Return traces that replace the traces of a survey, for this rank's `shots`, shot by shot.

    They keep the order and the headers of the live traces of a SEG-Y file. For other files, traces are in the order of
    the shots, with the headers that the geometry determines.
    """
    geometry, file = headers.geometry, headers.file
    interval = whole_interval(geometry.interval, geometry.samples)
    if not isinstance(file, SegyFile):
        known = _positions(geometry, headers.line, headers.datum, headers.records, headers.channels)
        return Traces(title, values, geometry.rows(shots), interval, known)
    numbers = np.sort(np.concatenate(headers.traces))
    rank_numbers = np.concatenate([np.empty(0, np.int64), *(headers.traces[shot] for shot in shots)])
    # These traces are written in revision 1, which defines codes for bytes that revision 0 left undefined.
    changes = {"CoordinateUnits": np.ones_like(numbers)}
    return Traces(title, values, np.searchsorted(numbers, rank_numbers), interval, changes, (file, numbers))


def image_traces(title: str, image: np.ndarray, grid: Grid, headers: SurveyHeaders, rank: int) -> Traces:
    """Return the columns of a replicated image, which the first rank writes, at their map positions."""
    rows, fields = slice(None if rank == 0 else 0), _columns(grid, headers)
    traces, numbers = image.reshape(-1, grid.nz)[rows], np.arange(grid.points // grid.nz)[rows]
    return Traces(title, traces, numbers, whole_interval(grid.dz / 1e3, grid.nz), fields)


def gather_traces(
    title: str,
    gathers: np.ndarray,
    columns: np.ndarray,
    classes: np.ndarray,
    grid: Grid,
    headers: SurveyHeaders,
    rank: int,
) -> Traces:
    """Return replicated gathers, which the first rank writes, sorted by column and class.

    `gathers` has the shape ``(columns, classes, rows)``, and `columns` are flat indices of columns of the grid. The
    middle of each class, rounded, is in the header of the offset (bytes 37 to 40), in metres or degrees.
    """
    every = np.repeat(columns, len(classes))
    fields = {name: values[every] for name, values in _columns(grid, headers).items()}
    numbers = np.arange(len(every))
    fields |= dict.fromkeys(("TRACE_SEQUENCE_LINE", "TRACE_SEQUENCE_FILE"), numbers + 1)
    fields |= {
        "offset": np.tile(np.floor(classes + 0.5).astype(np.int64), len(columns)),
        "CDP_TRACE": np.tile(np.arange(len(classes)) + 1, len(columns)),
    }
    rows = slice(None if rank == 0 else 0)
    traces = gathers.reshape(-1, grid.nz)[rows]
    return Traces(title, traces, numbers[rows], whole_interval(grid.dz / 1e3, grid.nz), fields)


def _columns(grid: Grid, headers: SurveyHeaders) -> dict[str, np.ndarray]:
    """Return the trace headers of all columns of an image grid."""
    east, north = headers.line.position(*grid.columns())
    scalar, ones = _scalar(np.concatenate([east, north])), np.ones(len(east), dtype=np.int64)
    x, y = np.rint(east * scalar), np.rint(north * scalar)
    columns = np.cumsum(ones)
    inline, crossline = (index + 1 for index in np.divmod(columns - 1, grid.nx))
    if headers.bins is not None and (numbers := headers.bins.numbers(grid)) is not None:
        inline, crossline = (part.ravel() for part in np.meshgrid(*numbers, indexing="ij"))
    fields = {
        "TRACE_SEQUENCE_LINE": columns,
        "TRACE_SEQUENCE_FILE": columns,
        "CDP": columns,
        "TraceIdentificationCode": ones,
        "CoordinateUnits": ones,
        "SourceGroupScalar": -scalar * ones,
        "ElevationScalar": -100 * ones,
        "ReceiverDatumElevation": round(100 * headers.datum) * ones,
        "SourceDatumElevation": round(100 * headers.datum) * ones,
        **dict.fromkeys(("SourceX", "GroupX", "CDP_X"), x),
        **dict.fromkeys(("SourceY", "GroupY", "CDP_Y"), y),
        "INLINE_3D": inline,
        "CROSSLINE_3D": crossline,
    }
    if grid.z0:
        # Thousandths of a metre if they fit into 16 bits, as for delays in ms.
        finest = min(_scalar(np.array([grid.z0]), 0x7FFF, "first depths up to 32767 m"), 1000)
        fields |= {"DelayRecordingTime": round(grid.z0 * finest) * ones, "ScalarTraceHeader": -finest * ones}
    return fields


def _positions(
    geometry: Geometry, line: Line, datum: float, records: np.ndarray, channels: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the trace headers that a geometry determines; `line` are its axes, `datum` the elevation of depth 0."""
    shot, (source, group) = geometry.shot_of_trace, geometry.on_map(line)
    scalar, depth_scalar = _scalar(np.stack([source[:2], group[:2]])), _scalar(np.stack([source[2], group[2]]))
    delay = 1e3 * geometry.start
    # Few programs support the time scalar: set it only for delays that are not whole milliseconds.
    finest = _scalar(np.array([delay]), 0x7FFF, "delays up to 32767 ms")
    time_scalar = finest if abs(delay - round(delay)) > 1e-6 else 1
    numbers = {"field record": records[shot], "channel": np.concatenate(list(channels))}
    for name, held in numbers.items():
        if (largest := np.abs(held).max()) > 0x7FFFFFFF:
            raise InputError(f"{name} numbers in SEG-Y must be at most 2147483647, not {largest}: renumber them")
    constant = np.ones_like(shot)
    return {
        "TRACE_SEQUENCE_LINE": np.arange(geometry.traces) + 1,
        "FieldRecord": numbers["field record"],
        "EnergySourcePoint": shot + 1,
        "TraceNumber": numbers["channel"],
        "TraceIdentificationCode": constant,
        "CoordinateUnits": constant,
        "SourceGroupScalar": -scalar * constant,
        "ElevationScalar": -depth_scalar * constant,
        **{
            f"{name}{axis}": np.rint(values * scalar)
            for name, pair in (("Source", source), ("Group", group))
            for axis, values in zip("XY", pair, strict=False)
        },
        "offset": np.rint(np.concatenate([geometry.offsets(number) for number in range(geometry.shots)])),
        "SourceDepth": np.rint(source[2] * depth_scalar),
        "SourceSurfaceElevation": np.rint(datum * depth_scalar) * constant,
        "ReceiverGroupElevation": np.rint((datum - group[2]) * depth_scalar),
        "DelayRecordingTime": round(delay * time_scalar) * constant,
        "ScalarTraceHeader": -time_scalar * constant,
    }


def _scalar(values: np.ndarray, largest: int = 0x7FFFFFFF, what: str = "coordinates up to 2147483647 m") -> int:
    """Return the finest divisor for which all `values` fit the integers of a trace header, of 32 bits by default."""
    for scalar in (10000, 1000, 100, 10, 1):
        if np.abs(values).max() * scalar <= largest:
            return scalar
    raise InputError(f"SEG-Y holds {what} only")
