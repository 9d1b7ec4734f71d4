"""Read and write SEG-Y files with segyio: check size and headers of a file first, write the traces of all ranks."""

from __future__ import annotations

import importlib.util
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.apps.files import atomic
from collops.apps.stages import local_stage
from collops.comm.bounded import in_time
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = [
    "OTHER_TRACES",
    "TIMING",
    "SegyFile",
    "Traces",
    "fits_segy",
    "is_segy",
    "require_segyio",
    "sample_interval",
    "scaled",
    "segy_bytes",
    "start_time",
    "uses_degrees",
    "whole_interval",
    "write_together",
]

TIMING = ("DelayRecordingTime", "ScalarTraceHeader", "TRACE_SAMPLE_INTERVAL", "TraceIdentificationCode")
"""The fields of trace headers that hold the sampling and the kind of a trace."""

OTHER_TRACES = range(2, 9)
"""Identification codes of traces that are no data: dead, dummy, time break, uphole, sweep, timing, water break."""

TRACE_HEADER_BYTES = (
    "BYTES OF TRACE HEADERS: field record 9, channel 13, CDP 21, offset 37, scalar of coordinates 71, source X 73, "
    "source Y 77, group X 81, group Y 85, first sample 109 (ms; m of depths), interval 117 (microseconds; mm of "
    "depths), CDP X 181, CDP Y 185, inline 189, crossline 193"
)
"""Where programs find the numbers of trace headers, for textual headers."""

_TEXT_BYTES, _BINARY_BYTES, _TRACE_HEADER_BYTES = 3200, 400, 240
# Bytes of one sample by format code, for the formats that segyio can read.
_SAMPLE_BYTES = {1: 4, 2: 4, 3: 2, 5: 4, 6: 8, 8: 1, 10: 4, 11: 2, 16: 1}
_INTERVAL, _SAMPLES, _FORMAT, _UNITS, _REVISION, _EXTENDED = 16, 20, 24, 54, 300, 304
_FEET = 2
_ARC_UNITS = (2, 3, 4)
_PIECE_BYTES = 16 << 20  # of traces that travel to the first rank at once


@dataclass(frozen=True)
class SegyFile:
    """A SEG-Y file whose size agrees with its headers; make one with `SegyFile.inspect`."""

    path: Path
    endian: str  # ``"big"`` or ``"little"``
    samples: int  # of a trace
    traces: int
    interval: int  # sample interval in the binary header, in microseconds (for depths in millimetres); may be 0
    revision: int  # major revision of the standard; 0 if the file names none
    metres: float  # the file's unit of length in metres

    @classmethod
    def inspect(cls, path: str | Path) -> SegyFile:
        """Read the size and the binary header of a file."""
        path = Path(path)
        try:
            if path.is_dir():
                raise InputError(f"{path} is a folder: name a SEG-Y file")
            size = os.stat(path).st_size
            with open(path, "rb") as file:
                head = file.read(_TEXT_BYTES + _BINARY_BYTES)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist: check the name of the SEG-Y file") from None
        except OSError as problem:
            raise InputError(f"{path} cannot be read ({problem.strerror}): check its permissions") from None
        if size == 0:
            raise InputError(f"{path} is empty: copy the SEG-Y file again")
        if len(head) < _TEXT_BYTES + _BINARY_BYTES:
            raise InputError(f"{path} is too short for SEG-Y ({size} bytes): it is truncated or of another kind")
        binary = head[_TEXT_BYTES:]
        # The byte order in which the format code is one that can be read.
        endian = next((order for order in ("big", "little") if _integer(binary, _FORMAT, order) in _SAMPLE_BYTES), None)
        if endian is None:
            code = _integer(binary, _FORMAT, "big")
            raise InputError(f"{path} is not a SEG-Y file that can be read: its sample format code is {code}")
        samples = _integer(binary, _SAMPLES, endian)
        if samples < 1:
            raise InputError(f"{path} cannot be read as SEG-Y: its binary header has 0 samples per trace")
        extended = _integer(binary, _EXTENDED, endian)
        if extended > 0x7FFF:
            raise InputError(f"{path} has a variable number of text headers, which is not supported: remove them")
        trace_bytes = _TRACE_HEADER_BYTES + samples * _SAMPLE_BYTES[_integer(binary, _FORMAT, endian)]
        body = size - _TEXT_BYTES * (1 + extended) - _BINARY_BYTES
        if body < trace_bytes or body % trace_bytes:
            raise InputError(
                f"{path} is truncated or damaged: {size} bytes hold {max(body, 0) / trace_bytes:.2f} traces "
                f"of {samples} samples, not a whole number of them; copy it again"
            )
        require_segyio()
        return cls(
            path,
            endian,
            samples,
            body // trace_bytes,
            _integer(binary, _INTERVAL, endian),
            _integer(binary, _REVISION, endian) >> 8,
            0.3048 if _integer(binary, _UNITS, endian) == _FEET else 1.0,
        )

    def text(self) -> str:
        """Return the textual header."""
        with self._open() as file:
            return bytes(file.text[0]).decode("ascii", "replace")

    def headers(self, *names: str) -> dict[str, np.ndarray]:
        """Read fields of all trace headers, named as in ``segyio.TraceField``: int64, one number per trace."""
        import segyio

        with self._open() as file:
            return {
                name: np.asarray(file.attributes(int(getattr(segyio.TraceField, name)))[:], dtype=np.int64)
                for name in names
            }

    def live_headers(self, *names: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the numbers and the header fields of traces that are neither dead nor auxiliary.

        `names` must contain those in `TIMING`.
        """
        headers = self.headers(*names)
        live = ~np.isin(headers["TraceIdentificationCode"], OTHER_TRACES)
        if not live.any():
            raise InputError(f"{self.path} has no live seismic traces: all are marked as dead or auxiliary")
        return np.flatnonzero(live), {name: values[live] for name, values in headers.items()}

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``, float32, or float64 as in the file."""
        with self._open() as file:
            result = np.empty((len(traces), self.samples), dtype=np.promote_types(file.dtype, np.float32))
            for rows, first in _runs(traces):
                result[rows] = file.trace.raw[first : first + rows.stop - rows.start]
        return result

    def _open(self) -> Any:
        import segyio

        try:
            return segyio.open(str(self.path), "r", strict=False, ignore_geometry=True, endian=self.endian)
        except (OSError, RuntimeError, ValueError) as problem:
            raise InputError(f"{self.path} cannot be read as SEG-Y: {problem}") from None


def require_segyio() -> None:
    """Raise `InputError` if SEG-Y can be neither read nor written."""
    if importlib.util.find_spec("segyio") is None:
        raise InputError("SEG-Y needs the package segyio: install collops[segy]")


def scaled(values: np.ndarray, scalars: np.ndarray) -> np.ndarray:
    """Apply SEG-Y scalars: positive ones multiply, negative ones divide, and 0 counts as 1. Return float64."""
    factor = np.where(scalars == 0, 1.0, np.abs(scalars).astype(np.float64))
    return np.where(scalars < 0, values / factor, values * factor)


def start_time(file: SegyFile, headers: Mapping[str, np.ndarray]) -> float:
    """Return the time of the first sample in seconds; raise `InputError` if the traces begin at different times."""
    delays = scaled(headers["DelayRecordingTime"], headers["ScalarTraceHeader"])
    if np.ptp(delays) > 0:
        raise InputError(
            f"{file.path} has delay recording times from {delays.min():g} to {delays.max():g} ms: "
            "shift the traces to one common delay"
        )
    return float(delays[0]) / 1e3


def sample_interval(file: SegyFile, headers: Mapping[str, np.ndarray]) -> float:
    """Return the sample interval in seconds, from the trace headers or else from the binary header."""
    intervals = headers["TRACE_SAMPLE_INTERVAL"]
    if np.ptp(intervals) > 0:
        raise InputError(
            f"{file.path} mixes sample intervals from {intervals.min()} to {intervals.max()} microseconds: "
            "resample the traces to one interval"
        )
    # A negative number is an unsigned one above 32767 that was read as signed.
    interval = int(intervals[0]) % 0x10000 or file.interval
    if interval == 0:
        raise InputError(f"{file.path} has no sample interval in its headers: fill in bytes 3217 or 117 (microseconds)")
    return interval / 1e6


def is_segy(path: str | Path | None) -> bool:
    """Return whether the name of a file is one of SEG-Y."""
    return path is not None and Path(path).suffix.lower() in (".sgy", ".segy")


def uses_degrees(file: SegyFile, units: np.ndarray) -> bool:
    """Return whether the coordinate units of traces (bytes 89-90) are degrees.

    Revision 0 defines only lengths and arc seconds there, and its files often hold other codes.
    """
    return bool(np.isin(units, _ARC_UNITS if file.revision > 0 else _ARC_UNITS[:1]).any())


@dataclass(frozen=True)
class Traces:
    """Traces that become a SEG-Y file: the samples of this rank, and the headers of all ranks."""

    title: str  # first line of the textual header
    values: Any  # this rank's traces, shape ``(traces, samples)``: an array, or what computes its slices of rows
    places: np.ndarray  # their numbers in the file, from 0
    interval: int  # between samples in microseconds, or for depths in millimetres
    headers: Mapping[str, np.ndarray]  # integers, one per trace of the file, by the names of ``segyio.TraceField``
    like: tuple[SegyFile, np.ndarray] | None = None  # a file, and the numbers of its traces that have the other fields

    @property
    def count(self) -> int:
        """Traces of the file."""
        return len(next(iter(self.headers.values())))


def segy_bytes(traces: int, samples: int) -> int:
    """Return the size of a file that `write_together` writes."""
    return _TEXT_BYTES + _BINARY_BYTES + traces * (_TRACE_HEADER_BYTES + 4 * samples)


def fits_segy(interval: float, samples: int) -> bool:
    """Return whether SEG-Y holds an interval in seconds (for depths in kilometres) and so many samples a trace.

    It holds whole microseconds (millimetres). Rounding may move the last sample by half an interval at most.
    """
    whole = round(interval * 1e6)
    return 1 <= whole <= 0xFFFF and samples <= 0xFFFF and 2 * samples * abs(interval * 1e6 - whole) <= whole


def whole_interval(interval: float, samples: int) -> int:
    """Return an interval in seconds in microseconds, for depths one in kilometres in millimetres."""
    if not fits_segy(interval, samples):
        raise InputError(
            f"SEG-Y holds intervals of 1 to 65535 whole microseconds and 65535 samples a trace at most, not "
            f"{1e6 * interval:g} and {samples}: choose another --interval"
        )
    return round(interval * 1e6)


def write_together(path: Path, comm: Communicator, traces: Traces, text: Sequence[str] = ()) -> Path:
    """Write the traces of all ranks as a big-endian file of IEEE floats, revision 1; return its path. Collective.

    `text` continues the textual header: long lines are wrapped, and what exceeds the header is cut. A file at `path` is
    replaced as a whole.

    The first rank writes, since clients of a network file system may not write to one page of a file at a time. It
    receives 16 MiB at once.
    """
    counts = [int(count) for count in comm.allgather(np.array(len(traces.places)))]
    places = comm.gatherv(np.ascontiguousarray(traces.places, dtype=np.int64), counts, root=0)
    firsts = np.cumsum([0, *counts])
    step = max(1, _PIECE_BYTES // ((_TRACE_HEADER_BYTES + 4 * traces.values.shape[1]) * comm.size))
    with ExitStack() as stack:

        def create() -> Path:
            temporary = stack.enter_context(atomic(path))
            _create(temporary, traces, text)
            return temporary

        temporary = path
        with local_stage(comm):
            if comm.rank == 0:
                temporary = in_time(create, path)
        for first in range(0, max(counts), step):
            shares = [min(max(count - first, 0), step) for count in counts]
            with local_stage(comm):
                own = np.ascontiguousarray(traces.values[first : first + step], dtype=np.float32)
            piece = comm.gatherv(own, shares, root=0)
            with local_stage(comm):
                if comm.rank == 0:
                    at = [places[start + first :][:share] for start, share in zip(firsts, shares, strict=False)]
                    in_time(partial(_fill, temporary, traces, np.concatenate(at), piece), path, piece.nbytes)
        with local_stage(comm):
            in_time(stack.close, path)
    return path


def _create(path: Path, traces: Traces, text: Sequence[str]) -> None:
    """Create a file of the full size with its textual and binary header."""
    require_segyio()
    import segyio

    samples = traces.values.shape[1]
    spec = segyio.spec()
    spec.format = int(segyio.SegySampleFormat.IEEE_FLOAT_4_BYTE)
    spec.samples = np.arange(samples)
    spec.tracecount = traces.count
    feet = False
    with segyio.create(str(path), spec) as file:
        if traces.like is not None:
            feet = traces.like[0].metres != 1
            with traces.like[0]._open() as source:
                file.bin = source.bin
        file.text[0] = _text_header([traces.title, *text])
        file.bin.update(
            {
                segyio.BinField.Interval: traces.interval,
                segyio.BinField.Samples: samples,
                segyio.BinField.Format: spec.format,
                segyio.BinField.MeasurementSystem: _FEET if feet else 1,
                segyio.BinField.SEGYRevision: 1,
                segyio.BinField.SEGYRevisionMinor: 0,
                segyio.BinField.TraceFlag: 1,
                segyio.BinField.ExtendedHeaders: 0,
                segyio.BinField.ExtSamples: 0,  # of revision 2
            }
        )
    os.truncate(path, segy_bytes(traces.count, samples))


def _text_header(lines: Sequence[str]) -> str:
    import segyio

    plain = [line.encode("ascii", "replace").decode() for line in lines]
    wrapped = [part for line in plain for part in textwrap.wrap(line, 76, break_on_hyphens=False) or [""]][:38]
    numbered = dict(enumerate(wrapped, start=1)) | {39: "SEG-Y REV1", 40: "END TEXTUAL HEADER"}
    return segyio.tools.create_text_header(numbered)


def _fill(path: Path, traces: Traces, places: np.ndarray, values: np.ndarray) -> None:
    """Write some traces, with their headers, at their places in a file."""
    import segyio

    fields = {int(getattr(segyio.TraceField, name)): values for name, values in traces.headers.items()}
    sampling = {
        int(segyio.TraceField.TRACE_SAMPLE_COUNT): values.shape[1],
        int(segyio.TraceField.TRACE_SAMPLE_INTERVAL): traces.interval,
    }
    with ExitStack() as stack:
        file = stack.enter_context(segyio.open(str(path), "r+", strict=False, ignore_geometry=True))
        source, numbers = None, places
        if traces.like is not None:
            source, numbers = stack.enter_context(traces.like[0]._open()), traces.like[1]
        for place in places.tolist():
            header = file.header[place]
            if source is not None:
                header.buf[:] = source.header[int(numbers[place])].buf  # all 240 bytes, much faster than field by field
            header.update({field: int(each[place]) for field, each in fields.items()} | sampling)
        for rows, first in _runs(places):
            file.trace.raw[first : first + rows.stop - rows.start] = np.ascontiguousarray(values[rows], np.float32)


def _runs(numbers: np.ndarray) -> Iterator[tuple[slice, int]]:
    """Yield the parts of an array in which numbers follow each other, as those of a shot nearly always do.

    Each part is a slice with the first number in it: the traces of a part are read or written at once.
    """
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for first, last in zip([0, *breaks], [*breaks, len(numbers)], strict=True):
        if last > first:
            yield slice(int(first), int(last)), int(numbers[first])


def _integer(binary: bytes, offset: int, endian: str) -> int:
    return int.from_bytes(binary[offset : offset + 2], "big" if endian == "big" else "little")
