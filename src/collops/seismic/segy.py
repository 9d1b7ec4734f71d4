"""Read and write SEG-Y files with segyio: validate size and headers first, write the traces of all ranks."""

from __future__ import annotations

import importlib.util
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import atomic, local_stage
from collops.extend.communication import in_time
from collops.seismic.streams import located, opened, size_of
from collops.seismic.su import is_su, su_sampling

if TYPE_CHECKING:
    from collops import Communicator

__all__ = [
    "OTHER_TRACES",
    "TIMING",
    "SegyFile",
    "Traces",
    "delays",
    "field_sizes",
    "fits_segy",
    "header_times",
    "is_segy",
    "other_intervals",
    "require_segyio",
    "sample_interval",
    "scaled",
    "segy_bytes",
    "start_time",
    "unused_times",
    "uses_degrees",
    "whole_interval",
    "write_together",
]

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

OTHER_TRACES = range(2, 9)
"""Identification codes of other traces than data: dead, dummy, time break, uphole, sweep, timing, water break."""

TRACE_HEADER_BYTES = (
    "BYTES OF TRACE HEADERS: field record 9, channel 13, CDP 21, offset 37, scalar of coordinates 71, source X 73, "
    "source Y 77, group X 81, group Y 85, first sample 109 (ms; m of depths), interval 117 (microseconds; mm of "
    "depths), CDP X 181, CDP Y 185, inline 189, crossline 193"
)
"""The bytes of trace-header fields, for textual headers."""

_TEXT_BYTES, _BINARY_BYTES, _TRACE_HEADER_BYTES = 3200, 400, 240
# Types of the samples by format code. IBM floats are read as the integers of their bits.
_IBM, _IEEE = 1, 5
_SAMPLES = {_IBM: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 9: "i8", 10: "u4", 11: "u2", 12: "u8", 16: "u1"}
# Fields of the binary header by their first bytes in the file, counted from 1 as in the standard.
_INTERVAL, _COUNT, _FORMAT, _UNITS, _REVISION, _FIXED, _TEXTS = 3217, 3221, 3225, 3255, 3501, 3503, 3505
# Fields of revision 2 only, undefined in earlier revisions.
_LONG_COUNT, _LONG_INTERVAL, _ORDER, _MORE_HEADERS, _TRACES, _FIRST, _TRAILERS = (
    3269,
    3273,
    3297,
    3507,
    3513,
    3521,
    3529,
)
_BIG, _LITTLE = 0x01020304, 0x04030201  # of `_ORDER`, read in big-endian order
_REVISION_1 = 3261  # end of the fields of revisions 0 and 1, except the fields from 3501 on
# Fields of trace header extension 1, by their first bytes in it, and its name in the last bytes.
_EXTENSION, _NAME = ("SEG00001".encode("ascii"), "SEG00001".encode("cp037")), 233
_TRACE_COUNT, _LONG_TRACE_COUNT = 115, 137  # of samples: in the standard header and in the extension
_TRACE_INTERVAL = 145
_STANDARD_HEADER = b"SEG00000"  # the name of the standard header in revision 2
_STANDARD = {1: "SEG-Y REV1", 2: "SEG-Y REV2.0"}  # the last line but one of the textual header, by revision
_LAST_OF_SU = 180  # bytes of a trace header that SU has in common with SEG-Y
_FEET = 2
_ARC_UNITS = (2, 3, 4)
_PIECE_BYTES = 16 << 20  # of traces that are sent to the first rank at a time
_HEADERS_AT_A_TIME = 1 << 14
_CHECKED = 16  # traces with padding that are read, to check that it is zero


@dataclass(frozen=True)
class SegyFile:
    """A SEG-Y file whose size agrees with its headers; from `SegyFile.inspect`."""

    path: Path | str  # a URL if it is a str
    endian: str  # ``"big"`` or ``"little"``
    samples: int  # of a trace
    traces: int
    interval: float  # sample interval in the binary header, in microseconds (for depths in millimetres); may be 0
    revision: int  # major revision of the standard; 0 if the file does not specify it
    metres: float  # the file's unit of length in metres
    format: int  # code of the type of the samples
    first: int  # bytes before the first trace
    header_bytes: int  # per trace: 240, and 240 for each additional header of revision 2
    exact: bool  # whether the interval is the extended interval of revision 2
    # Number of samples and first byte of each trace, shape (2, traces), if traces have different lengths.
    varying: np.ndarray | None = None
    # First byte and type (such as ``"i4"``) of fields of the trace headers that are not at their standard place.
    places: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def inspect(cls, path: str | Path) -> SegyFile:
        """Read the size and the binary header of a file; of a file of Seismic Unix (.su) the first trace header."""
        path = located(path)
        size, head = _start_of(path)
        if is_su(path):
            endian, samples, interval = su_sampling(path, size, partial(_bytes_at, path, _TRACE_HEADER_BYTES))
            traces = size // (_TRACE_HEADER_BYTES + 4 * samples)
            require_segyio()
            return cls(path, endian, samples, traces, interval, 0, 1.0, _IEEE, 0, _TRACE_HEADER_BYTES, False)
        if len(head) < _TEXT_BYTES + _BINARY_BYTES:
            raise InputError(f"{path} is too short for SEG-Y ({size} bytes): it is truncated or in another format")
        endian = _byte_order(path, head)
        number = partial(_number, head, endian=endian)
        revision = head[_REVISION - 1] if endian == "big" else max(head[_REVISION - 1 : _REVISION + 1])
        is_new = revision == 2
        samples = (is_new and number(_LONG_COUNT, 4)) or number(_COUNT, 2)
        if samples < 1:
            raise InputError(f"{path} cannot be read as SEG-Y: its binary header has 0 samples per trace")
        long_interval = float(np.frombuffer(head, _type(endian, "f8"), 1, _LONG_INTERVAL - 1)[0]) if is_new else 0.0
        if not 0 <= long_interval < np.inf:
            raise InputError(f"{path} has an extended sample interval of {long_interval}: correct bytes 3273 to 3280")
        first = (is_new and number(_FIRST, 8)) or _end_of_texts(path, number(_TEXTS, 2))
        if first < _TEXT_BYTES + _BINARY_BYTES:
            raise InputError(f"{path} has its first trace at byte {first}, in a header: correct bytes 3521 to 3528")
        trailers, trace_count = (number(_TRAILERS, 4), number(_TRACES, 8)) if is_new else (0, 0)
        if trailers > 0x7FFFFFFF and not trace_count:
            raise InputError(
                f"{path} has an unknown number of data trailers, and of traces: fill in bytes 3529 to 3532 or 3513 to "
                "3520 of its binary header"
            )
        body = size - first - (0 if trace_count else _TEXT_BYTES * trailers)
        code = number(_FORMAT, 2)
        # Revision 2.1 reduced the number of additional headers to two bytes.
        counts = [number(_MORE_HEADERS, 4), number(_MORE_HEADERS, 2)] if is_new else [0]
        lengths = [_TRACE_HEADER_BYTES * (1 + extra) + samples * np.dtype(_SAMPLES[code]).itemsize for extra in counts]
        fits = [
            body >= trace_count * length if trace_count else body >= length and body % length == 0 for length in lengths
        ]
        length = lengths[fits.index(True)] if any(fits) else lengths[0]
        varying = None
        header_bytes = length - samples * np.dtype(_SAMPLES[code]).itemsize
        if not any(fits) and revision > 0 and not number(_FIXED, 2):
            size_of_traces = body if not trace_count else size - first
            varying = _varying_traces(path, endian, first, size_of_traces, header_bytes, samples, code, trace_count)
        if varying is not None:
            samples, trace_count = int(varying[0].max()), varying.shape[1]
        elif not any(fits):
            expected = f"{trace_count}" if trace_count else "an integer number"
            raise InputError(
                f"{path} is truncated or damaged: {size} bytes hold {max(body, 0) / length:.2f} traces "
                f"of {samples} samples, not {expected}; copy it again"
            )
        require_segyio()
        return cls(
            path,
            endian,
            samples,
            trace_count or body // length,
            long_interval or float(number(_INTERVAL, 2)),
            revision,
            0.3048 if number(_UNITS, 2) == _FEET else 1.0,
            code,
            first,
            header_bytes,
            long_interval > 0,
            varying,
        )

    def text(self) -> str:
        """Return the textual header; SU has none."""
        if is_su(self.path):
            return ""
        return _decoded(self._head()[0, :_TEXT_BYTES].tobytes())

    def binary(self) -> dict[int, int]:
        """Return the fields of the binary header of revisions 0 and 1, by their first bytes in the file; none in SU."""
        import segyio

        if is_su(self.path):
            return {}

        raw = self._head()
        sizes = field_sizes(segyio.BinField.enums())
        defined = [byte for byte in sizes if byte < _REVISION_1]
        return {byte: int(_numbers(raw, byte, f"i{sizes[byte]}", self.endian)[0]) for byte in defined}

    def headers(self, *names: str) -> dict[str, np.ndarray]:
        """Read fields of all trace headers, named as in ``segyio.TraceField``: one number per trace.

        The numbers are int64, or float64 where `places` has a floating-point type.
        """
        import segyio

        sizes, places = field_sizes(segyio.TraceField.enums()), {}
        for name in names:
            byte = int(getattr(segyio.TraceField, name))
            places[name] = self.places.get(name, (byte, f"i{sizes[byte]}"))
        width = max([_TRACE_HEADER_BYTES, *(byte - 1 + int(kind[1:]) for byte, kind in places.values())])
        if width > self.header_bytes:
            raise InputError(f"{self.path} has headers of {self.header_bytes} bytes: bytes of --header must be in them")
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for first in range(0, self.traces, _HEADERS_AT_A_TIME):
            raw = self._read(np.arange(first, min(first + _HEADERS_AT_A_TIME, self.traces)), width)
            for name, (byte, kind) in places.items():
                # Bytes after 180 of SU have other meanings.
                known = byte <= _LAST_OF_SU or name in self.places or not is_su(self.path)
                numbers = _numbers(raw, byte, kind, self.endian)
                parts[name].append(numbers if known else np.zeros_like(numbers))
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def raw_headers(self, traces: np.ndarray) -> np.ndarray:
        """Return the standard headers of traces as big-endian bytes: uint8, ``(len(traces), 240)``."""
        import segyio

        raw = self._read(traces, _TRACE_HEADER_BYTES)
        if self.endian == "little":
            for byte, size in field_sizes(segyio.TraceField.enums()).items():
                if byte < _NAME or self.revision < 2:  # revision 2 has the header's name in the last bytes
                    columns = slice(byte - 1, byte - 1 + size)
                    raw[:, columns] = raw[:, columns][:, ::-1]
        if is_su(self.path):
            raw[:, _LAST_OF_SU:] = 0
        return raw

    def live_headers(self, *names: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the numbers and the header fields of traces that are neither dead nor auxiliary.

        `names` must contain the names in `TIMING`.
        """
        headers = self.headers(*names)
        live = ~np.isin(headers["TraceIdentificationCode"], OTHER_TRACES)
        if not live.any():
            raise InputError(f"{self.path} has no live seismic traces: all traces are marked as dead or auxiliary")
        return np.flatnonzero(live), {name: values[live] for name, values in headers.items()}

    def extension(self, *positions: int) -> np.ndarray:
        """Return fields of trace header extension 1, by their first bytes: float64, ``(len(positions), traces)``.

        Without the extension, the result has shape ``(len(positions), 0)``.
        """
        if self.header_bytes == _TRACE_HEADER_BYTES:
            return np.empty((len(positions), 0))
        name = self._read([0], _TRACE_HEADER_BYTES, _TRACE_HEADER_BYTES).tobytes()[_NAME - 1 :]
        if name not in _EXTENSION:
            return np.empty((len(positions), 0))
        raw = self._read(np.arange(self.traces), _TRACE_HEADER_BYTES, _TRACE_HEADER_BYTES)
        return np.stack([raw[:, p - 1 : p + 7].copy().view(_type(self.endian, "f8"))[:, 0] for p in positions])

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``, float32, or float64 as in the file.

        Traces that are shorter than the longest one are padded with zeros.
        """
        kind = np.dtype(_SAMPLES[self.format])
        native = np.dtype(np.float32) if self.format == _IBM else kind
        result = np.zeros((len(traces), self.samples), dtype=np.promote_types(native, np.float32))
        if self.varying is not None:
            for row, trace in zip(result, traces, strict=True):
                count = int(self.varying[0, trace])
                raw = self._read([trace], count * kind.itemsize, self.header_bytes)
                row[:count] = self._values(raw)[0]
            return result
        step = max(1, _PIECE_BYTES // self._trace_bytes)
        for rows, first in _runs(traces):
            for start in range(rows.start, rows.stop, step):
                stop = min(start + step, rows.stop)
                raw = self._read([first + start - rows.start], (stop - start) * self._trace_bytes)
                result[start:stop] = self._values(raw.reshape(stop - start, -1)[:, self.header_bytes :])
        return result

    def counts(self, traces: np.ndarray, in_headers: np.ndarray, notes: list[str]) -> np.ndarray:
        """Return the number of recorded samples of each of some traces.

        `in_headers` are the numbers in their headers (bytes 115 to 116). If they differ and are smaller than the number
        of samples in the file, they apply if only zeros follow; a sentence is added to `notes`.
        """
        if self.varying is not None:
            counts = self.varying[0, traces]
            notes.append(f"{self.path} has traces of {counts.min()} to {counts.max()} samples")
            return counts
        counts = in_headers % 0x10000
        counts = np.where((counts == 0) | (counts > self.samples), self.samples, counts)
        short = np.flatnonzero(counts < self.samples)
        if self.samples > 0xFFFF or np.ptp(counts) == 0:
            return np.full(len(traces), self.samples)
        checked = np.unique(np.linspace(0, len(short) - 1, _CHECKED).astype(int))
        ends = f"{len(short)} of {len(traces)} traces have fewer than {self.samples} samples in bytes 115 to 116"
        for number in short[checked]:
            if self.read(traces[number : number + 1])[0, counts[number] :].any():
                notes.append(f"{ends}, which are not used: nonzero samples follow")
                return np.full(len(traces), self.samples)
        notes.append(f"{ends}: the zeros that follow are not data")
        return counts

    def _values(self, samples: np.ndarray) -> np.ndarray:
        """Return the numbers that the bytes of samples, (traces, bytes), represent."""
        values = samples.copy().view(_type(self.endian, _SAMPLES[self.format]))
        return _from_ibm(values) if self.format == _IBM else values

    def _head(self) -> np.ndarray:
        """Return the bytes of the textual and the binary header: uint8, ``(1, 3600)``."""
        return self._read([0], _TEXT_BYTES + _BINARY_BYTES, -self.first)

    @property
    def _trace_bytes(self) -> int:
        return self.header_bytes + self.samples * np.dtype(_SAMPLES[self.format]).itemsize

    def _read(self, traces: Sequence[int] | np.ndarray, size: int, skip: int = 0) -> np.ndarray:
        """Read `size` bytes of each of some traces, after `skip` bytes: uint8, ``(len(traces), size)``."""
        result = np.empty((len(traces), size), np.uint8)
        try:
            with opened(self.path) as file:
                for row, trace in zip(result, traces, strict=True):
                    trace = int(trace)
                    begin = self.first + trace * self._trace_bytes if self.varying is None else self.varying[1, trace]
                    file.seek(int(begin) + skip)
                    view = memoryview(row)  # pyright: ignore[reportArgumentType] - it is a buffer
                    while view and (got := file.readinto(view)):
                        view = view[got:]
                    if view:
                        raise InputError(f"{self.path} has become shorter: copy it again")
        except OSError as problem:
            raise InputError(f"{self.path} cannot be read ({problem.strerror}): check its permissions") from None
        return result


def _from_ibm(bits: np.ndarray) -> np.ndarray:
    """Return IBM floats as float32: a sign, an exponent of 16 with bias 64, and 24 bits of a fraction below 1."""
    fraction = (bits & 0xFFFFFF).astype(np.float32)
    with np.errstate(over="ignore"):  # infinite samples raise an error when they are used
        sizes = np.ldexp(fraction, 4 * (bits >> 24 & 0x7F).astype(np.int32) - (4 * 64 + 24))
    return np.where(bits >> 31, -sizes, sizes)


def _varying_traces(
    path: Path | str, endian: str, first: int, size: int, header_bytes: int, samples: int, code: int, count: int
) -> np.ndarray | None:
    """Return the number of samples and the first byte of each trace in a file of traces of different lengths.

    `size` is the number of bytes of all traces; `samples` is the number of samples where a header has none. The result
    has shape ``(2, traces)``, or is None if the traces do not fill the file, or are not `count`, if it is not 0.
    """
    itemsize, position, end, found = np.dtype(_SAMPLES[code]).itemsize, first, first + size, []
    with opened(path) as file:
        while position + header_bytes <= end and (not count or len(found) < count):
            file.seek(position)
            header = file.read(header_bytes)
            number = _number(header, _TRACE_COUNT, 2, endian)
            if header[_TRACE_HEADER_BYTES:][_NAME - 1 : _NAME + 7] in _EXTENSION:
                number = _number(header[_TRACE_HEADER_BYTES:], _LONG_TRACE_COUNT, 4, endian) or number
            found.append((number or samples, position))
            position += header_bytes + found[-1][0] * itemsize
    if not found or position > end or (len(found) != count if count else position < end):
        return None
    return np.array(found, dtype=np.int64).T


def _start_of(path: Path | str) -> tuple[int, bytes]:
    """Return the size of a file that is not empty, and the bytes of its textual and binary header."""
    try:
        if isinstance(path, Path) and path.is_dir():
            raise InputError(f"{path} is a folder: pass a SEG-Y file")
        size, head = size_of(path), _bytes_at(path, _TEXT_BYTES + _BINARY_BYTES, 0)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path of the SEG-Y file") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}): check its permissions") from None
    if size == 0:
        raise InputError(f"{path} is empty: copy the SEG-Y file again")
    return size, head


def _bytes_at(path: Path | str, size: int, position: int) -> bytes:
    with opened(path) as file:
        file.seek(position)
        return file.read(size)


def _byte_order(path: Path | str, head: bytes) -> str:
    """Return the byte order that a file of revision 2 specifies, else the order in which its format code is valid."""
    named = int.from_bytes(head[_ORDER - 1 : _ORDER + 3], "big")
    if named in (0x02010403, 0x03040102):
        raise InputError(f"{path} has pairwise swapped bytes: swap them back")
    orders = {_BIG: ("big",), _LITTLE: ("little",)}.get(named, ("big", "little"))
    for order in orders:
        if _number(head, _FORMAT, 2, order) in _SAMPLES:
            return order
    code = _number(head, _FORMAT, 2, orders[0])
    raise InputError(f"{path} cannot be read as SEG-Y: its sample format code is {code}")


def _end_of_texts(path: Path | str, extended: int) -> int:
    """Return the end of the textual headers after the binary header; the last of an unknown number is marked."""
    position = _TEXT_BYTES + _BINARY_BYTES
    if extended <= 0x7FFF:
        return position + _TEXT_BYTES * extended
    with opened(path) as file:
        file.seek(position)
        while len(block := file.read(_TEXT_BYTES)) == _TEXT_BYTES:
            position += _TEXT_BYTES
            if "((SEG:ENDTEXT))" in _decoded(block).upper().replace(" ", ""):
                return position
    raise InputError(
        f"{path} has a variable number of text headers without the final ((SEG: EndText)): write their number into "
        "bytes 3505 to 3506"
    )


def _decoded(text: bytes) -> str:
    """Decode an ASCII or EBCDIC text, which differ in the code of spaces."""
    return text.decode("ascii" if text.count(b" ") >= text.count(b"\x40") else "cp037", "replace")


def _number(head: bytes, byte: int, size: int, endian: Any) -> int:
    """Return an unsigned number of the file header; the standard counts bytes from 1."""
    return int.from_bytes(head[byte - 1 : byte - 1 + size], endian)


def _type(endian: str, kind: str) -> np.dtype:
    return np.dtype(kind).newbyteorder(">" if endian == "big" else "<")


def field_sizes(fields: Any) -> dict[int, int]:
    """Return the size of each field of a header, up to the next field."""
    positions = sorted({int(field) for field in fields})
    return {byte: after - byte for byte, after in zip(positions, [*positions[1:], positions[-1] + 4], strict=True)}


def _numbers(raw: np.ndarray, byte: int, kind: str, endian: str) -> np.ndarray:
    """Return a number of each header, (headers, bytes), as int64, or as float64 if its type is floating-point."""
    values = raw[:, byte - 1 : byte - 1 + int(kind[1:])].copy().view(_type(endian, kind))[:, 0]
    if kind[0] == "f" and not np.isfinite(values).all():
        raise InputError(
            f"byte {byte} of the trace headers has values of type {kind} that are not finite: check --header"
        )
    return values.astype(np.int64 if kind[0] == "i" else np.float64)


def require_segyio() -> None:
    """Raise `InputError` unless segyio is installed."""
    if importlib.util.find_spec("segyio") is None:
        raise InputError("SEG-Y needs the package segyio: install collops[segy]")


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
        "bytes 145 to 152 of trace header extension 1": file.extension(_TRACE_INTERVAL)[0],
        "bytes 3273 to 3280 of the binary header": np.array([file.interval * file.exact]),
        # A negative number is an unsigned number above 32767 that was read as signed.
        "bytes 117 to 118 of the trace headers": headers["TRACE_SAMPLE_INTERVAL"] % 0x10000,
        "bytes 3217 to 3218 of the binary header": np.array([file.binary().get(_INTERVAL, 0) % 0x10000]),
    }
    return {header: (float(numbers.min()), float(numbers.max())) for header, numbers in values.items() if numbers.any()}


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


def is_segy(path: str | Path | None) -> bool:
    """Return whether a file has a suffix of SEG-Y or SU."""
    return path is not None and Path(path).suffix.lower() in (".sgy", ".segy", ".su")


def uses_degrees(file: SegyFile, units: np.ndarray) -> bool:
    """Return whether the coordinate units of traces (bytes 89-90) are degrees.

    Revision 0 defines only lengths and arc seconds, and its files often have other codes.
    """
    return bool(np.isin(units, _ARC_UNITS if file.revision > 0 else _ARC_UNITS[:1]).any())


@dataclass(frozen=True)
class Traces:
    """The content of a SEG-Y file: the samples of this rank, and the headers of all ranks."""

    title: str  # first line of the textual header
    values: Any  # this rank's traces, shape ``(traces, samples)``: an array, or an object that computes slices of rows
    numbers: np.ndarray  # of these traces in the file, from 0
    interval: float  # between samples in microseconds, or for depths in millimetres; an integer in revision 1
    headers: Mapping[str, np.ndarray]  # integers, one per trace of the file, by the names of ``segyio.TraceField``
    like: tuple[SegyFile, np.ndarray] | None = None  # a file and the numbers of its traces, for the other fields
    revision: int = 1  # of the standard: 1 or 2

    @property
    def count(self) -> int:
        """Number of traces of the file."""
        return len(next(iter(self.headers.values())))

    @property
    def short_interval(self) -> int:
        """The interval in the fields of revision 1, rounded; 0 if it is too large for them."""
        return round(self.interval) if round(self.interval) <= 0xFFFF else 0

    def export(self, path: Path, comm: Communicator, history: Sequence[str]) -> Path:
        """Write a file with a processing history, as `collops.extend.applications.Exporter` describes. Collective."""
        return write_together(path, comm, self, [*history, TRACE_HEADER_BYTES])


def segy_bytes(traces: int, samples: int) -> int:
    """Return the size of a file that `write_together` writes."""
    return _TEXT_BYTES + _BINARY_BYTES + traces * (_TRACE_HEADER_BYTES + 4 * samples)


def fits_segy(interval: float, samples: int) -> bool:
    """Return whether SEG-Y can represent an interval in seconds (for depths in kilometres) and a number of samples.

    It represents whole microseconds (millimetres). Rounding may move the last sample by half an interval at most.
    """
    units = round(interval * 1e6)
    return 1 <= units <= 0xFFFF and samples <= 0xFFFF and 2 * samples * abs(interval * 1e6 - units) <= units


def whole_interval(interval: float, samples: int) -> int:
    """Convert an interval from seconds to microseconds, for depths from kilometres to millimetres."""
    if not fits_segy(interval, samples):
        raise InputError(
            f"SEG-Y needs an interval of 1 to 65535 whole microseconds and at most 65535 samples per trace, not "
            f"{1e6 * interval:g} and {samples}: choose another --interval"
        )
    return round(interval * 1e6)


def write_together(path: Path, comm: Communicator, traces: Traces, text: Sequence[str] = ()) -> Path:
    """Write the traces of all ranks as a big-endian file of IEEE floats; return its path. Collective.

    `text` continues the textual header: long lines are wrapped, and excess lines are omitted. A file at `path` is
    replaced atomically.

    The first rank writes, as clients of a network file system must not write to the same page of a file concurrently.
    It receives 16 MiB at a time.
    """
    counts = [int(count) for count in comm.allgather(np.array(len(traces.numbers)))]
    trace_numbers = comm.gatherv(np.ascontiguousarray(traces.numbers, dtype=np.int64), counts, root=0)
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
                values = np.ascontiguousarray(traces.values[first : first + step], dtype=np.float32)
            piece = comm.gatherv(values, shares, root=0)
            with local_stage(comm):
                if comm.rank == 0:
                    numbers = [
                        trace_numbers[start + first :][:share] for start, share in zip(firsts, shares, strict=False)
                    ]
                    in_time(partial(_fill, temporary, traces, np.concatenate(numbers), piece), path, piece.nbytes)
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
            file.bin.update(traces.like[0].binary())
        file.text[0] = _text_header([traces.title, *text], traces.revision)
        file.bin.update(
            {
                segyio.BinField.Interval: traces.short_interval,
                segyio.BinField.Samples: samples,
                segyio.BinField.Format: spec.format,
                segyio.BinField.MeasurementSystem: _FEET if feet else 1,
                segyio.BinField.SEGYRevision: 1,
                segyio.BinField.SEGYRevisionMinor: 0,
                segyio.BinField.TraceFlag: 1,
                segyio.BinField.ExtendedHeaders: 0,
            }
        )
    os.truncate(path, segy_bytes(traces.count, samples))
    if traces.revision == 2:
        _extend(path, traces)


def _extend(path: Path, traces: Traces) -> None:
    """Fill in the fields of revision 2 of the binary header."""
    end_of_headers = _TEXT_BYTES + _BINARY_BYTES
    fields = {
        _LONG_COUNT: (">i4", traces.values.shape[1]),
        _LONG_INTERVAL: (">f8", traces.interval),
        _ORDER: (">i4", _BIG),
        _REVISION: (">u1", 2),
        _TRACES: (">u8", traces.count),
        _FIRST: (">u8", end_of_headers),
    }
    with open(path, "r+b") as file:
        for byte, (kind, value) in fields.items():
            file.seek(byte - 1)
            file.write(np.array(value, kind).tobytes())


def _text_header(lines: Sequence[str], revision: int) -> str:
    import segyio

    plain = [line.encode("ascii", "replace").decode() for line in lines]
    wrapped = [part for line in plain for part in textwrap.wrap(line, 76, break_on_hyphens=False) or [""]][:38]
    numbered = dict(enumerate(wrapped, start=1)) | {39: _STANDARD[revision], 40: "END TEXTUAL HEADER"}
    return segyio.tools.create_text_header(numbered)


def _fill(path: Path, traces: Traces, numbers: np.ndarray, values: np.ndarray) -> None:
    """Write some traces, with their headers, at their positions in a file."""
    import segyio

    fields = {int(getattr(segyio.TraceField, name)): values for name, values in traces.headers.items()}
    sampling = {
        int(segyio.TraceField.TRACE_SAMPLE_COUNT): values.shape[1],
        int(segyio.TraceField.TRACE_SAMPLE_INTERVAL): traces.short_interval,
    }
    with ExitStack() as stack:
        file = stack.enter_context(segyio.open(str(path), "r+", strict=False, ignore_geometry=True))
        known = None if traces.like is None else traces.like[0].raw_headers(traces.like[1][numbers])
        for row, number in enumerate(numbers.tolist()):
            header = file.header[number]
            if known is not None:
                header.buf[:] = known[row].tobytes()  # all 240 bytes, much faster than field by field
            if traces.revision == 2:
                header.buf[_NAME - 1 :] = _STANDARD_HEADER
            header.update({field: int(column[number]) for field, column in fields.items()} | sampling)
        for rows, first in _runs(numbers):
            file.trace.raw[first : first + rows.stop - rows.start] = np.ascontiguousarray(values[rows], np.float32)


def _runs(numbers: np.ndarray) -> Iterator[tuple[slice, int]]:
    """Yield runs of consecutive numbers in an array: a slice, and the first number in it.

    The traces of a run are read or written at once; the traces of a shot usually are one run.
    """
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    for first, last in zip([0, *breaks], [*breaks, len(numbers)], strict=True):
        if last > first:
            yield slice(int(first), int(last)), int(numbers[first])
