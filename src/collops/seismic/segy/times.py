"""Times, intervals and units in the trace headers of SEG-Y files, and which of them are not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from collops.errors import InputError
from collops.seismic.segy.file import SegyFile
from collops.seismic.segy.layout import INTERVAL, TRACE_INTERVAL

UNUSED_TIMES = {
    "SourceStaticCorrection": "source static corrections (bytes 99 to 100)",
    "GroupStaticCorrection": "group static corrections (bytes 101 to 102)",
    "TotalStaticApplied": "total static corrections applied (bytes 103 to 104)",
    "LagTimeA": "lag times A (bytes 105 to 106)",
    "LagTimeB": "lag times B (bytes 107 to 108)",
    "MuteTimeStart": "mute start times (bytes 111 to 112)",
    "MuteTimeEND": "mute end times (bytes 113 to 114)",
}
"""The fields of trace headers with times that are not applied to the traces, and their descriptions."""

TIMING = (
    "DelayRecordingTime",
    "ScalarTraceHeader",
    "TRACE_SAMPLE_INTERVAL",
    "TraceIdentificationCode",
    *UNUSED_TIMES,
)
"""The fields of trace headers with times and the identification code of a trace."""

_ARC_UNITS = (2, 3, 4)


def scaled(values: np.ndarray, scalars: np.ndarray) -> np.ndarray:
    """Apply SEG-Y scalars: positive scalars multiply, negative scalars divide, 0 counts as 1. Return float64."""
    factor = np.where(scalars == 0, 1.0, np.abs(scalars).astype(np.float64))
    return np.where(scalars < 0, values / factor, values * factor)


def header_times(file: SegyFile, headers: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a field of trace headers with times, in ms; revision 0 does not define their scalar (bytes 215 to 216)."""
    scalars = headers["ScalarTraceHeader"]
    return scaled(headers[name], scalars if file.revision else np.zeros_like(scalars))


def delays(file: SegyFile, headers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the time of the first sample of each trace in seconds."""
    return header_times(file, headers, "DelayRecordingTime") / 1e3


def start_time(file: SegyFile, headers: Mapping[str, np.ndarray]) -> float:
    """Return the time of the first sample in seconds; raise `InputError` if the traces begin at different times."""
    starts = delays(file, headers)
    if np.ptp(starts) > 0:
        raise InputError(
            f"{file.path} has delay recording times from {1e3 * starts.min():g} to {1e3 * starts.max():g} ms: "
            "shift the traces to one common delay"
        )
    return float(starts[0])


def sample_interval(file: SegyFile, headers: Mapping[str, np.ndarray], notes: list[str] | None = None) -> float:
    """Return the sample interval in seconds; sentences about other intervals in the file are added to `notes`.

    It is the first nonzero value of: the trace header extension of revision 2, its extended binary field, the trace
    headers, the binary header.
    """
    intervals = _intervals(file, headers)
    if not intervals:
        raise InputError(
            f"{file.path} lacks a sample interval in its headers: fill in bytes 3217 or 117 (microseconds)"
        )
    least, most = next(iter(intervals.values()))
    if least < most:
        raise InputError(
            f"{file.path} mixes sample intervals from {least:g} to {most:g} microseconds: "
            "resample the traces to one interval"
        )
    if notes is not None:
        notes += other_intervals(file, headers, most, "microseconds")
    return most / 1e6


def other_intervals(file: SegyFile, headers: Mapping[str, np.ndarray], used: float, unit: str) -> list[str]:
    """Return sentences about sample intervals in a file that differ from the interval in use by more than rounding."""
    return [
        f"{file.path} has a sample interval of {_range(*ends)} {unit} in {header}; {used:g} is used"
        for header, ends in _intervals(file, headers).items()
        if np.abs(np.array(ends) - used).max() >= 1
    ]


def _intervals(file: SegyFile, headers: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest nonzero sample interval of each kind of header, by its description.

    They are in microseconds, for depths in millimetres, in the standard's order of preference.
    """
    values = {
        "bytes 145 to 152 of trace header extension 1": file.extension(TRACE_INTERVAL)[0],
        "bytes 3273 to 3280 of the binary header": np.array([file.interval * file.exact]),
        # A negative number is an unsigned number above 32767 that was read as signed.
        "bytes 117 to 118 of the trace headers": headers["TRACE_SAMPLE_INTERVAL"] % 0x10000,
        "bytes 3217 to 3218 of the binary header": np.array([file.binary().get(INTERVAL, 0) % 0x10000]),
    }
    filled = {header: numbers[numbers != 0] for header, numbers in values.items() if numbers.any()}
    return {header: (float(numbers.min()), float(numbers.max())) for header, numbers in filled.items()}


def unused_times(file: SegyFile, headers: Mapping[str, np.ndarray], used: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each of `UNUSED_TIMES` with nonzero values in the `headers`, except for those in use."""
    notes = []
    for name, words in UNUSED_TIMES.items():
        times = header_times(file, headers, name)
        if name not in used and (count := int(np.count_nonzero(times))):
            ends = _range(float(times.min()), float(times.max()))
            notes.append(f"{words} are nonzero in {count} of {len(times)} traces, {ends} ms, and not applied")
    return notes


def _range(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def uses_degrees(file: SegyFile, units: np.ndarray) -> bool:
    """Return whether the coordinate units of traces (bytes 89-90) are degrees.

    Revision 0 defines only lengths and arc seconds, and its files often have other codes.
    """
    return bool(np.isin(units, _ARC_UNITS if file.revision > 0 else _ARC_UNITS[:1]).any())
