"""The headers of a survey in any format: axes, shots and depths from the positions of its traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from collops.errors import InputError
from collops.seismic.kirchhoff.stations import distinct_rows
from collops.seismic.streams import Location
from collops.seismic.survey.checks import Terms, check_positions
from collops.seismic.survey.geometry import Bins, Geometry, Line
from collops.seismic.survey.placement import Placement
from collops.seismic.survey.statics import Statics, corrected
from collops.seismic.survey.traces import TraceHeaders

# A survey is 3-D if stations lie further off the best-fitting line than this fraction of its length: with inline and
# crossline numbers, and without them (a crooked line has no numbers).
_WIDE_WITH_NUMBERS, _WIDE = 0.1, 0.25
_MAX_RECORDS = 10  # length of the time axis over the length of the longest trace


class TraceFile(Protocol):
    """A file of traces, of any format."""

    @property
    def path(self) -> Location:
        """The file, for messages."""
        ...

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``."""
        ...


@dataclass(frozen=True)
class SurveyHeaders:
    """The headers of a survey, which the readers of all formats return."""

    file: TraceFile
    geometry: Geometry  # positions of all shots
    traces: list[np.ndarray]  # for each shot the numbers of its traces in the file, in the order of its receivers
    line: Line  # position of the line, or of the axes in 3-D, on the map
    bins: Bins | None  # the numbering of a 3-D survey
    datum: float  # elevation of depth 0 in metres above sea level
    records: np.ndarray  # field record number of every shot
    channels: list[np.ndarray]  # for each shot the channel (trace number in the field record) of its receivers
    notes: list[str]  # decisions of the reader, in sentences for the user
    warnings: list[str]  # doubtful headers, in sentences for the user
    defaults: Mapping[str, str]  # options stored in the file, if this package wrote it
    placement: Placement | None = None  # None if all traces begin and end with the geometry
    statics: tuple[str, ...] = field(default=())  # description of each correction of the times

    def number(self, name: str, kind: Callable[[str], Any]) -> Any:
        """Return a number among the `defaults`, or None."""
        text = self.defaults.get(name)
        try:
            return None if text is None else kind(text)
        except ValueError:
            raise InputError(f"{self.file.path} has the invalid entry {name.upper()}={text}: pass --{name}") from None


def survey_headers(
    file: TraceFile,
    interval: float,
    traces: TraceHeaders,
    terms: Terms,
    dims: int | None,
    statics: Statics | None,
    notes: list[str],
    defaults: Mapping[str, str],
) -> SurveyHeaders:
    """Determine axes, shots and depths of a survey; raise `InputError` if the headers do not define them.

    Shots keep their order in the file. Depths are relative to sea level, or to the highest station if it is above.

    With `dims` 2 `Line.through` chooses the line. With 3, inline and crossline numbers at the CDP positions, or else at
    the midpoints, define bins and axes (`Bins.fit`); without numbers, `Line.around` chooses the axes. By default a
    survey is 3-D if stations lie further off the line than a tenth of its length, or a quarter without numbers.
    `interval` is in seconds. `statics` are applied to times and depths. Sentences are added to `notes`.
    """
    if dims not in (None, 2, 3):
        raise InputError(f"dims must be 2 or 3, not {dims}")
    shots, shot_of = distinct_rows(traces.shot.T)
    warnings = check_positions(file.path, traces.source, traces.group, traces.offset, len(shots), terms)
    stations = np.concatenate([traces.source, traces.group], axis=1)
    line = Line.through(*stations)
    length, off_line = float(np.ptp(line.distance(*stations))), float(np.abs(line.across(*stations)).max())
    if length == 0:
        raise InputError(f"{file.path} has all sources and receivers at one point: fill in {terms.positions}")
    numbered = bool((np.ptp(traces.bins, axis=1) > 0).all())
    threshold = (_WIDE_WITH_NUMBERS if numbered else _WIDE) * length
    bins, is_3d = None, dims == 3 or (dims is None and off_line > threshold)
    if is_3d:
        notes.append(f"stations lie up to {off_line:.0f} m off a line: the survey is 3-D (--dims 2 for a line)")
        if off_line <= 1e-6 * length:
            raise InputError(
                f"{file.path} has all sources and receivers on one line: a 3-D image needs them on an area"
            )
        line, bins = _axes(traces, stations, notes)
    elif off_line > 0.02 * length:
        notes.append(f"stations lie up to {off_line:.0f} m off the straight line that the 2-D migration assumes")

    first, before = float(traces.begin.min()), len(notes)
    if statics is not None:
        traces = corrected(traces, statics, file.path, notes, warnings)
    applied = tuple(notes[before:])
    depths, datum = _below_datum(traces.depth, notes)
    sources, groups = (
        np.stack([*([line.across(*coordinates)] if is_3d else []), line.distance(*coordinates), depth])
        for coordinates, depth in zip((traces.source, traces.group), depths, strict=True)
    )
    order = np.split(np.argsort(shot_of, kind="stable"), np.cumsum(np.bincount(shot_of))[:-1])
    first_traces = [rows[0] for rows in order]
    # Shots with the same receivers share one object, so that they share an operator.
    distinct: dict[bytes, np.ndarray] = {}
    receivers = [distinct.setdefault(groups[:, rows].tobytes(), groups[:, rows]) for rows in order]
    samples, start, placement = _time_axis(file.path, traces, order, first, interval)
    geometry = Geometry(sources[:, first_traces], receivers, samples, interval, start)
    record, channel = traces.record, traces.channel
    return SurveyHeaders(
        file,
        geometry,
        [traces.numbers[rows] for rows in order],
        line,
        bins,
        datum,
        np.arange(geometry.shots) + 1 if record is None else record[first_traces],
        geometry.counted() if channel is None else [channel[rows] for rows in order],
        notes,
        warnings,
        defaults,
        placement,
        applied,
    )


def read_traces(headers: SurveyHeaders, shots: range) -> list[np.ndarray]:
    """Read the traces of some shots only: one array per shot, shape ``(receivers, samples)``."""
    if not shots:
        return []
    numbers = [headers.traces[shot] for shot in shots]
    together = headers.file.read(np.concatenate(numbers))
    return np.split(together, np.cumsum([len(n) for n in numbers])[:-1])


def _time_axis(
    path: Location, traces: TraceHeaders, order: list[np.ndarray], first: float, interval: float
) -> tuple[int, float, Placement | None]:
    """Return the number of samples and the start of the time axis, and the placement of traces that differ from it.

    `order` has the rows of the traces of each shot; `first` is the time of the first sample of all recorded traces.
    """
    samples, start = Placement.axis(traces.begin, traces.count, first, interval)
    if samples > _MAX_RECORDS * traces.count.max():
        ends = f"{traces.begin.min():g} to {traces.begin.max():g} s"
        raise InputError(
            f"the traces of {path} begin at {ends}, and need a time axis more than {_MAX_RECORDS} times as long: "
            "correct their delay recording times (in SEG-Y bytes 109 to 110, with the scalar 215 to 216), or their "
            "static corrections"
        )
    if not (np.ptp(traces.begin) or np.ptp(traces.count) or traces.begin[0] != first):
        return samples, start, None
    begins, counts = ([values[rows] for rows in order] for values in (traces.begin, traces.count))
    return samples, start, Placement(begins, counts, samples, interval, start)


def _axes(traces: TraceHeaders, stations: np.ndarray, notes: list[str]) -> tuple[Line, Bins | None]:
    """Return the axes of a 3-D survey on the map, and its bins if inline and crossline numbers define them."""
    if traces.bins.any():
        midpoints = (traces.source + traces.group) / 2
        positions, where = (traces.cdp, "CDP positions") if traces.cdp.any() else (midpoints, "midpoints")
        try:
            line, bins = Bins.fit(*traces.bins, *positions)
        except InputError as problem:
            notes.append(f"bins are not used: {problem}")
        else:
            sizes = " x ".join(f"{size:.4g}" for size in bins.spacing)
            notes.append(f"bins of {sizes} m (across inlines x along them) from numbers and {where}")
            return line, bins
    line = Line.around(*stations)
    east, north = line.direction
    notes.append(f"x points {np.degrees(np.arctan2(north, east)):.1f} degrees north of east")
    return line, None


def _below_datum(depths: np.ndarray, notes: list[str]) -> tuple[np.ndarray, float]:
    """Return depths of source and receiver of every trace below the datum, and the datum's elevation."""
    datum = max(-float(depths.min()), 0.0)
    depths = depths + datum
    datum_name = f"the highest station, {datum:g} m above sea level" if datum > 0 else "sea level"
    ends = [" to ".join(f"{end:g}" for end in sorted({values.min(), values.max()})) for values in depths]
    notes.append(f"depths in metres below {datum_name}: sources {ends[0]}, receivers {ends[1]}")
    return depths, datum
