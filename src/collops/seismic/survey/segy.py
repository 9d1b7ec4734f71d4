"""Surveys in SEG-Y: read the geometry from the headers and the traces of a rank; headers of surveys and images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.seismic.segy import (
    TIMING,
    SegyFile,
    Traces,
    delays,
    field_sizes,
    header_times,
    sample_interval,
    scaled,
    unused_times,
    uses_degrees,
    whole_interval,
)
from collops.seismic.streams import Source
from collops.seismic.survey.checks import Terms, refuse_stack
from collops.seismic.survey.geometry import Geometry, Grid, Line
from collops.seismic.survey.headers import SurveyHeaders, survey_headers
from collops.seismic.survey.navigation import Stations, TraceNumbers, read_lines
from collops.seismic.survey.p190 import p190_stations
from collops.seismic.survey.sps import is_sps, sps_stations
from collops.seismic.survey.statics import Statics
from collops.seismic.survey.traces import TraceHeaders

__all__ = ["gather_traces", "image_traces", "parse_places", "shot_traces"]

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
    "TRACE_SAMPLE_COUNT",
    *TIMING,
]
NAMES = {
    "field_record": "FieldRecord",
    "channel": "TraceNumber",
    "source_point": "EnergySourcePoint",
    "offset": "offset",
    "source_x": "SourceX",
    "source_y": "SourceY",
    "group_x": "GroupX",
    "group_y": "GroupY",
    "coordinate_scalar": "SourceGroupScalar",
    "coordinate_units": "CoordinateUnits",
    "elevation_scalar": "ElevationScalar",
    "group_elevation": "ReceiverGroupElevation",
    "source_elevation": "SourceSurfaceElevation",
    "source_depth": "SourceDepth",
    "inline": "INLINE_3D",
    "crossline": "CROSSLINE_3D",
    "cdp_x": "CDP_X",
    "cdp_y": "CDP_Y",
    "samples": "TRACE_SAMPLE_COUNT",
    "interval": "TRACE_SAMPLE_INTERVAL",
    "delay": "DelayRecordingTime",
    "time_scalar": "ScalarTraceHeader",
    "trace_type": "TraceIdentificationCode",
    "source_static": "SourceStaticCorrection",
    "group_static": "GroupStaticCorrection",
    "total_static": "TotalStaticApplied",
}
"""The fields of trace headers that may be at other places: the names of `parse_places` and of segyio."""

_EXTENDED = {
    "group_elevation": 33,
    "source_elevation": 49,
    "source_depth": 57,
    "source_x": 97,
    "source_y": 105,
    "group_x": 113,
    "group_y": 121,
    "offset": 129,
    "cdp_x": 161,
    "cdp_y": 169,
}
"""Lengths in trace header extension 1, by their first byte in it: float64, without scalar."""

_KINDS = ("i2", "i4", "i8", "f4", "f8")
# The fields that count; `SegyFile.places` may have floating-point numbers for them.
_WHOLE = ("FieldRecord", "TraceNumber", "EnergySourcePoint", "INLINE_3D", "CROSSLINE_3D", "TRACE_SAMPLE_COUNT")

STATICS = ("SourceStaticCorrection", "GroupStaticCorrection", "TotalStaticApplied")
"""The fields of trace headers with static corrections of source and receiver, and the total."""

_TERMS = Terms(
    "bytes 73 to 88 of its trace headers",
    "offsets (bytes 37 to 40)",
    "scalar of the coordinates (bytes 71 to 72)",
    "mark these traces as dead (bytes 29 to 30)",
)


def parse_places(texts: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return places of fields of trace headers, for `SegyFile.places`, from texts ``NAME=BYTE`` or ``NAME=BYTE:TYPE``.

    Bytes count from 1, and after 240 in the additional headers. Types are i2, i4, i8, f4 and f8, by default the
    standard type of the field. Raises `InputError` for unknown names, bytes or types.
    """
    import segyio

    sizes, places = field_sizes(segyio.TraceField.enums()), {}
    for text in texts:
        name, _, place = text.partition("=")
        byte, colon, kind = place.partition(":")
        if name not in NAMES:
            raise InputError(f"--header {text} must begin with one of {', '.join(NAMES)}")
        if not byte.isdecimal() or int(byte) < 1 or (colon and kind not in _KINDS):
            raise InputError(
                f"--header {text} must be {name}=BYTE or {name}=BYTE:TYPE, with bytes counted from 1 and a type of "
                f"{', '.join(_KINDS)}"
            )
        field = NAMES[name]
        places[field] = int(byte), kind or f"i{sizes[int(getattr(segyio.TraceField, field))]}"
    return places


def read_headers(
    path: Source,
    dims: int | None = None,
    statics: Statics | None = None,
    header: Sequence[str] = (),
    geometry: Sequence[Source] = (),
) -> SurveyHeaders:
    """Read the geometry of a survey from a SEG-Y file, revision 0 to 2; `survey_headers` has the rules.

    Shots are identified by field record number, energy source point and source position. Coordinates and elevations are
    multiplied by their scalars, and feet are converted to metres. Traces marked as dead, dummy or auxiliary are
    omitted.
    """
    file = SegyFile.inspect(path)
    file = replace(file, places=parse_places(header))
    numbers, headers = file.live_headers(*_FIELDS)
    headers |= {name: np.rint(headers[name]).astype(np.int64) for name in _WHOLE}
    notes = [f"trace headers: {', '.join(header)}"] if header else []
    if len(numbers) < file.traces:
        notes.append(
            f"{file.traces - len(numbers)} of {file.traces} traces are marked as dead or auxiliary and omitted"
        )
    if not geometry and uses_degrees(file, headers["CoordinateUnits"]):
        raise InputError(f"{path} has coordinates in degrees: project them to metres first")

    def metres(scalar: str, *names: str) -> np.ndarray:
        return np.stack([extended.get(name, scaled(headers[name], headers[scalar])) * file.metres for name in names])

    extended = _extended(file, numbers, notes)

    source, group, cdp = (
        metres("SourceGroupScalar", f"{prefix}X", f"{prefix}Y") for prefix in ("Source", "Group", "CDP_")
    )
    if not (geometry or source.any() or group.any()):
        if cdp.any():
            refuse_stack(file.path)
        raise InputError(f"{path} lacks source and receiver coordinates: fill in {_TERMS.positions}")
    elevation, surface, below = metres(
        "ElevationScalar", "ReceiverGroupElevation", "SourceSurfaceElevation", "SourceDepth"
    )
    depth = np.stack([below - surface, -elevation])
    corrections = np.stack([header_times(file, headers, name) / 1e3 for name in STATICS])
    if geometry:
        stations = _stations(geometry, headers, notes)
        source, group = stations.source, stations.group
        depth = np.where(np.isnan(stations.depth), depth, stations.depth)
        surface = np.where(np.isnan(stations.surface), surface, stations.surface)
        corrections[:2] = corrections[:2] if stations.statics is None else stations.statics
    traces = TraceHeaders(
        numbers,
        source,
        group,
        depth,
        surface,
        extended.get("offset", headers["offset"]) * file.metres,
        np.stack([headers["FieldRecord"], headers["EnergySourcePoint"], *source]),
        headers["FieldRecord"],
        headers["TraceNumber"],
        np.stack([headers["INLINE_3D"], headers["CROSSLINE_3D"]]),
        cdp,
        delays(file, headers),
        file.counts(numbers, headers["TRACE_SAMPLE_COUNT"], notes),
        corrections,
    )
    used = [] if statics is None else [name for name, factor in zip(STATICS, statics.factors, strict=True) if factor]
    notes += unused_times(file, headers, used)
    interval = sample_interval(file, headers, notes)
    text = file.text()
    named = re.findall(r"C ?\d+ ([A-Z0-9_]+)=(\S+)", text) if _SIGNATURE in text else []
    defaults = {name.lower(): value for name, value in named}
    return survey_headers(file, interval, traces, _TERMS, dims, statics, notes, defaults)


def _stations(geometry: Sequence[Source], headers: Mapping[str, np.ndarray], notes: list[str]) -> Stations:
    """Return the positions of all traces from geometry files."""
    lines = read_lines(geometry)
    numbers = TraceNumbers(*(headers[name] for name in ("FieldRecord", "TraceNumber", "EnergySourcePoint")))
    return (sps_stations if is_sps(lines) else p190_stations)(lines, numbers, notes)


def _extended(file: SegyFile, numbers: np.ndarray, notes: list[str]) -> dict[str, np.ndarray]:
    """Return the lengths in trace header extension 1 that are nonzero in any trace, by the names of segyio."""
    values = file.extension(*_EXTENDED.values())
    columns = zip(_EXTENDED, values[:, numbers] if values.size else values, strict=True)
    found = {name: column for name, column in columns if column.any() and NAMES[name] not in file.places}
    if found:
        notes.append(f"trace header extension 1 has {', '.join(found)}, which replace the standard trace headers")
    return {NAMES[name]: values for name, values in found.items()}


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


def shot_traces(title: str, headers: SurveyHeaders, shots: range, values: Any, revision: int = 1) -> Traces:
    """Return traces that replace the traces of a survey, for this rank's `shots`, shot by shot.

    They keep the order and the headers of the live traces of a SEG-Y file, and begin where these begin, before static
    corrections. For other files, traces are in the order of the shots, with the headers that the geometry determines.
    """
    geometry, file = headers.geometry, headers.file
    interval = whole_interval(geometry.interval, geometry.samples)
    if not isinstance(file, SegyFile):
        known = _positions(geometry, headers.line, headers.datum, headers.records, headers.channels)
        return Traces(title, values, geometry.rows(shots), interval, known, None, revision)
    if headers.placement is not None:
        values = headers.placement.restored(shots, values, geometry.interval, file.samples)
    numbers = np.sort(np.concatenate(headers.traces))
    rank_numbers = np.concatenate([np.empty(0, np.int64), *(headers.traces[shot] for shot in shots)])
    # These traces are written in revision 1, which defines codes for bytes that revision 0 left undefined.
    changes = {"CoordinateUnits": np.ones_like(numbers)}
    return Traces(title, values, np.searchsorted(numbers, rank_numbers), interval, changes, (file, numbers), revision)


def image_traces(
    title: str, image: np.ndarray, grid: Grid, headers: SurveyHeaders, rank: int, revision: int = 1
) -> Traces:
    """Return the columns of a replicated image, which the first rank writes, at their map positions.

    Revision 1 needs a depth step of (nearly) whole millimetres, revision 2 stores any.
    """
    rows, fields = slice(None if rank == 0 else 0), _columns(grid, headers)
    traces, numbers = image.reshape(-1, grid.nz)[rows], np.arange(grid.points // grid.nz)[rows]
    return Traces(title, traces, numbers, _depth_step(grid, revision), fields, None, revision)


def gather_traces(
    title: str,
    gathers: np.ndarray,
    columns: np.ndarray,
    classes: np.ndarray,
    grid: Grid,
    headers: SurveyHeaders,
    rank: int,
    revision: int = 1,
) -> Traces:
    """Return replicated gathers, which the first rank writes, sorted by column and class; see `image_traces`.

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
    return Traces(title, traces, numbers[rows], _depth_step(grid, revision), fields, None, revision)


def _depth_step(grid: Grid, revision: int) -> float:
    """Return the depth step in millimetres."""
    return whole_interval(grid.dz / 1e3, grid.nz) if revision == 1 else 1e3 * grid.dz


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
