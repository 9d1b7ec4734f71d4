"""Read and write SEG-Y files with segyio; check size and headers of a file first."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError

__all__ = ["TIMING", "SegyFile", "sample_interval", "scaled", "start_time", "write_segy"]

TIMING = ("DelayRecordingTime", "ScalarTraceHeader", "TRACE_SAMPLE_INTERVAL", "TraceIdentificationCode")
"""The fields of trace headers that hold the sampling and the kind of a trace."""

_TEXT_BYTES, _BINARY_BYTES, _TRACE_HEADER_BYTES = 3200, 400, 240
# Bytes of one sample by format code, for the formats that segyio can read.
_SAMPLE_BYTES = {1: 4, 2: 4, 3: 2, 5: 4, 6: 8, 8: 1, 10: 4, 11: 2, 16: 1}
_INTERVAL, _SAMPLES, _FORMAT, _UNITS, _REVISION, _EXTENDED = 16, 20, 24, 54, 300, 304
_FEET = 2
# Identification codes of other traces: dead, dummy, time break, uphole, sweep, timing, water break.
_OTHER_TRACES = range(2, 9)


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
        if importlib.util.find_spec("segyio") is None:
            raise InputError("reading SEG-Y needs the package segyio: install collops[segy]")
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
        live = ~np.isin(headers["TraceIdentificationCode"], _OTHER_TRACES)
        if not live.any():
            raise InputError(f"{self.path} has no live seismic traces: all are marked as dead or auxiliary")
        return np.flatnonzero(live), {name: values[live] for name, values in headers.items()}

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``, float32, or float64 as in the file."""
        with self._open() as file:
            result = np.empty((len(traces), self.samples), dtype=np.promote_types(file.dtype, np.float32))
            # One read for traces that follow each other in the file, as those of a shot nearly always do.
            breaks = np.flatnonzero(np.diff(traces) != 1) + 1
            for places in filter(len, np.split(np.arange(len(traces)), breaks)):
                first = int(traces[places[0]])
                result[places[0] : places[-1] + 1] = file.trace.raw[first : first + len(places)]
        return result

    def _open(self) -> Any:
        import segyio

        try:
            return segyio.open(str(self.path), "r", strict=False, ignore_geometry=True, endian=self.endian)
        except (OSError, RuntimeError, ValueError) as problem:
            raise InputError(f"{self.path} cannot be read as SEG-Y: {problem}") from None


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


def write_segy(
    path: Path, traces: np.ndarray, headers: Mapping[str, np.ndarray], interval: int, text: Mapping[int, str]
) -> None:
    """Write traces of shape ``(traces, samples)`` as a big-endian SEG-Y file of IEEE floats, in metres.

    `headers` holds integers, one per trace, by the names of ``segyio.TraceField``; `interval` is in microseconds;
    `text` holds lines of the textual header by their number, 1 to 40, at most 76 characters each.
    """
    if importlib.util.find_spec("segyio") is None:
        raise InputError("writing SEG-Y needs the package segyio: install collops[segy]")
    import segyio

    count, samples = traces.shape
    if not (1 <= interval <= 0x7FFF and samples <= 0x7FFF):
        raise InputError(
            f"SEG-Y holds sample intervals of 1 to 32767 microseconds and 32767 samples a trace at most, "
            f"not {interval} and {samples}"
        )
    spec = segyio.spec()
    spec.format = int(segyio.SegySampleFormat.IEEE_FLOAT_4_BYTE)
    spec.samples = np.arange(samples) * interval / 1000
    spec.tracecount = count
    with segyio.create(str(path), spec) as file:
        file.text[0] = segyio.tools.create_text_header(dict(text))
        file.bin.update(
            {
                segyio.BinField.Interval: interval,
                segyio.BinField.Samples: samples,
                segyio.BinField.MeasurementSystem: 1,
                segyio.BinField.SEGYRevision: 1,
                segyio.BinField.TraceFlag: 1,
            }
        )
        fields = {int(getattr(segyio.TraceField, name)): values for name, values in headers.items()}
        for number in range(count):
            file.header[number] = {field: int(values[number]) for field, values in fields.items()} | {
                int(segyio.TraceField.TRACE_SAMPLE_COUNT): samples,
                int(segyio.TraceField.TRACE_SAMPLE_INTERVAL): interval,
            }
        file.trace.raw[:] = np.ascontiguousarray(traces, dtype=np.float32)


def _integer(binary: bytes, offset: int, endian: str) -> int:
    return int.from_bytes(binary[offset : offset + 2], "big" if endian == "big" else "little")
