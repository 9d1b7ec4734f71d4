"""Static corrections: times from trace headers or a table, and the move of stations to a flat or floating datum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collops.errors import InputError
from collops.seismic.conditioning import read_table
from collops.seismic.streams import Location, Source, located
from collops.seismic.survey.traces import TraceHeaders

__all__ = ["Statics", "parse_datum"]

HEADER_STATICS = {
    "headers": ("source and receiver corrections (bytes 99 to 102)", (1, 1, 0)),
    "total": ("total corrections (bytes 103 to 104)", (0, 0, 1)),
    "undo": ("total corrections (bytes 103 to 104), which had been applied, with the opposite sign", (0, 0, -1)),
}
"""Corrections from trace headers: their description, and the factors of source, receiver and total correction."""

_TABLE = "field record and correction (ms), or field record, channel and correction (ms),"
_STATIONS_AT_A_TIME = 1 << 10


@dataclass(frozen=True)
class Statics:
    """Static corrections that are applied when a survey is read.

    A correction is added to the times of a trace: a positive one delays its samples. The SEG-Y standard defines the
    unit and the bytes, but no sign; this is the usual sign, with which stations above the datum have negative
    corrections.

    Parameters
    ----------
    times : str, Path or file object, optional
        ``"headers"``: the sum of the corrections of source and receiver in the trace headers (bytes 99 to 102).
        ``"total"``: the total correction (bytes 103 to 104). ``"undo"``: the total correction with the opposite sign,
        which restores the recorded times of traces to which it was applied. Otherwise a text file (a path, a URL for
        the package fsspec, or an open binary file object), with lines of field
        record and correction, or of field record, channel and correction, in ms; corrections of one trace add up.
    datum : float or tuple, optional
        Elevation in m to which sources and receivers are moved; or ``("floating", length)``: the mean elevation of all
        stations within half a `length` (m).
    velocity : float, optional
        Replacement velocity in m/s, with `datum`. The correction of a station is the elevation of the datum minus the
        elevation of the station, over this velocity.

    Raises
    ------
    InputError
        If `datum` and `velocity` are not passed together, or are not finite, or lengths and speeds are not positive.

    Examples
    --------
    >>> from collops.seismic.survey import Statics
    >>> Statics("headers", datum=500.0, velocity=2000.0).times
    'headers'
    """

    times: Source | None = None
    datum: float | tuple[str, float] | None = None
    velocity: float | None = None

    def __post_init__(self) -> None:
        if (self.datum is None) != (self.velocity is None):
            raise InputError("--datum and --replacement-velocity need each other: pass both, or neither")
        if self.velocity is not None and not (np.isfinite(self.velocity) and self.velocity > 0):
            raise InputError(f"the replacement velocity must be a positive number of m/s, not {self.velocity}")
        if isinstance(self.datum, tuple):
            if self.datum[0] != "floating" or not (np.isfinite(self.datum[1]) and self.datum[1] > 0):
                raise InputError(f"a floating datum needs a positive length in m, not {self.datum}")
        elif self.datum is not None and not np.isfinite(self.datum):
            raise InputError(f"the datum must be a finite elevation in m, not {self.datum}")

    @property
    def factors(self) -> tuple[int, int, int]:
        """The factors of the corrections of source and receiver in the trace headers, and of the total."""
        return HEADER_STATICS[str(self.times)][1] if self.times in HEADER_STATICS else (0, 0, 0)

    @property
    def table(self) -> np.ndarray | None:
        """The rows of the text file, if the corrections are in one."""
        if self.times is None or self.times in HEADER_STATICS:
            return None
        return read_table(located(self.times), (2, 3), _TABLE)


def parse_datum(text: str) -> float | tuple[str, float]:
    """Return the elevation of ``"METRES"``, or the length of ``"floating:METRES"``."""
    kind, colon, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = np.nan
    if kind != ("floating" if colon else "") or not np.isfinite(value):
        raise InputError(
            f"cannot understand the datum {text!r}: pass an elevation in m, such as 500, or the length over which "
            "elevations are averaged, such as floating:2000"
        )
    return ("floating", value) if colon else value


def corrected(
    traces: TraceHeaders, statics: Statics, path: Location, notes: list[str], warnings: list[str]
) -> TraceHeaders:
    """Return headers of traces with corrected times, and with stations at the datum.

    Sentences about the corrections are added to `notes` and `warnings`.
    """
    if statics.times is not None:
        shifts, what = _times(traces, statics, path)
        notes.append(_described(what, shifts))
        if statics.times == "headers" and traces.statics is not None and traces.statics[2].any():
            warnings.append(
                f"{path} has total static corrections that were applied already (bytes 103 to 104), and --statics "
                "headers applies source and receiver corrections in addition: check that they are not the same"
            )
        traces = replace(traces, begin=traces.begin + shifts)
    if statics.datum is not None and statics.velocity is not None:
        elevation, where = _datum(traces, statics.datum)
        shifts = (elevation + traces.depth).sum(axis=0) / statics.velocity
        notes.append(_described(f"stations moved to {where} at {statics.velocity:g} m/s", shifts))
        traces = replace(traces, begin=traces.begin + shifts, depth=np.broadcast_to(-elevation, traces.depth.shape))
    return traces


def _described(what: str, shifts: np.ndarray) -> str:
    least, middle, most = 1e3 * np.array([shifts.min(), np.median(shifts), shifts.max()])
    ends = f"{least:.4g} to {most:.4g} ms, median {middle:.4g} ms" if least < most else f"{most:.4g} ms"
    return f"statics: {what}: {np.count_nonzero(shifts)} of {len(shifts)} traces shifted by {ends} (positive: later)"


def _times(traces: TraceHeaders, statics: Statics, path: Location) -> tuple[np.ndarray, str]:
    """Return the corrections of all traces in seconds, and a description."""
    table = statics.table
    if table is not None:
        name = str(located(statics.times or ""))
        return _from_table(traces, table, name), f"corrections from {name}"
    if traces.statics is None:
        raise InputError(f"{path} has no static corrections: pass a text file with --statics")
    what, _ = HEADER_STATICS[str(statics.times)]
    shifts = np.array(statics.factors, dtype=np.float64) @ traces.statics
    if not shifts.any():
        raise InputError(f"{path} has no {what.partition(',')[0]}: pass a text file with --statics, or omit it")
    return shifts, what


def _from_table(traces: TraceHeaders, table: np.ndarray, name: object) -> np.ndarray:
    """Sum the corrections of the rows of a table for each trace, in seconds."""
    keys = {"field record": traces.record, "channel": traces.channel}
    columns = [values for values, _ in zip(keys.values(), table.T[:-1], strict=False)]
    if missing := [key for key, values in zip(keys, columns, strict=False) if values is None]:
        raise InputError(f"the survey has no {missing[0]} numbers, by which {name} identifies traces: omit --statics")
    ids = np.stack([values for values in columns if values is not None], axis=1).astype(np.float64)
    _, number = np.unique(np.concatenate([ids, table[:, :-1]]), axis=0, return_inverse=True)
    of_trace, of_row = np.split(number.ravel(), [len(ids)])
    if len(unknown := np.flatnonzero(~np.isin(of_row, of_trace))):
        words = ", ".join(f"{key} {value:g}" for key, value in zip(keys, table[unknown[0], :-1], strict=False))
        raise InputError(f"{name} has a correction for {words}, which is not in the survey: correct the file")
    sums = np.bincount(of_row, table[:, -1], minlength=int(number.max()) + 1)
    return sums[of_trace] / 1e3


def _datum(traces: TraceHeaders, datum: float | tuple[str, float]) -> tuple[np.ndarray, str]:
    """Return the elevation of the datum at source and receiver of all traces, and its description."""
    if not isinstance(datum, tuple):
        return np.array([[datum], [datum]]), f"a datum at an elevation of {datum:g} m"
    elevation = _smoothed(traces, datum[1])
    ends = f"{elevation.min():.4g} to {elevation.max():.4g} m"
    return elevation, f"a floating datum at {ends}, the mean elevation of the stations within {datum[1] / 2:g} m,"


def _smoothed(traces: TraceHeaders, length: float) -> np.ndarray:
    """Return the mean elevation of the ground at all stations within half a length: ``(2, traces)``, m.

    The ground at a source has its surface elevation, the ground at a receiver the elevation of the receiver. A position
    counts once, however many traces have it.
    """
    from scipy.spatial import cKDTree

    places = np.concatenate([traces.source, traces.group], axis=1).T
    ground = np.concatenate([traces.surface, -traces.depth[1]])
    distinct, number = np.unique(places, axis=0, return_inverse=True)
    number = number.ravel()
    elevation = np.bincount(number, ground) / np.bincount(number)
    tree, mean = cKDTree(distinct - distinct[0]), np.empty(len(distinct))
    for first in range(0, len(distinct), _STATIONS_AT_A_TIME):
        part = slice(first, first + _STATIONS_AT_A_TIME)
        near = tree.query_ball_point(distinct[part] - distinct[0], length / 2)
        mean[part] = [elevation[indices].mean() for indices in near]
    return mean[number].reshape(2, -1)
