"""Read SEG-Y files, of which size and headers are validated first."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from collops.errors import InputError
from collops.seismic.segy.layout import (
    BINARY_BYTES,
    COUNT,
    END_OF_REVISION_1,
    EXTENSION,
    FEET,
    FIRST,
    FIXED,
    FORMAT,
    HEADER_BYTES,
    IBM,
    IEEE,
    INTERVAL,
    LAST_OF_SU,
    LONG_COUNT,
    LONG_INTERVAL,
    MORE_HEADERS,
    NAME,
    REVISION,
    SAMPLE_TYPES,
    TEXT_BYTES,
    TEXTS,
    TRACE_COUNT,
    TRACES,
    TRAILERS,
    UNITS,
    decoded,
    field_sizes,
    from_ibm,
    number_at,
    numbers_in,
    type_in,
)
from collops.seismic.segy.pieces import runs, traces_at_once
from collops.seismic.segy.start import (
    byte_order,
    bytes_at,
    end_of_texts,
    start_of,
    varying_traces,
    walked,
)
from collops.seismic.streams import Location, Source, located, opened, read_exactly
from collops.seismic.su import is_su, su_sampling

OTHER_TRACES = range(2, 9)
"""Identification codes of other traces than data: dead, dummy, time break, uphole, sweep, timing, water break."""

_HEADERS_AT_A_TIME = 1 << 14
_CHECKED = 16  # traces with padding that are read, to check that it is zero


@dataclass(frozen=True)
class SegyFile:
    """A SEG-Y file whose size agrees with its headers; from `SegyFile.inspect`."""

    path: Location
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
    # End of the traces in the file and their number in the binary header, or 0, if the file does not specify that they
    # have equal lengths.
    unfixed: tuple[int, int] | None = None

    @classmethod
    def inspect(cls, path: Source) -> SegyFile:
        """Read the size and the binary header of a file; of a file of Seismic Unix (.su) the first trace header."""
        path = located(path)
        size, head = start_of(path)
        if is_su(path):
            endian, samples, interval = su_sampling(path, size, partial(bytes_at, path, HEADER_BYTES))
            traces = size // (HEADER_BYTES + 4 * samples)
            require_segyio()
            return cls(path, endian, samples, traces, interval, 0, 1.0, IEEE, 0, HEADER_BYTES, False)
        if len(head) < TEXT_BYTES + BINARY_BYTES:
            raise InputError(f"{path} is too short for SEG-Y ({size} bytes): it is truncated or in another format")
        endian = byte_order(path, head)
        number = partial(number_at, head, endian=endian)
        revision = head[REVISION - 1] if endian == "big" else max(head[REVISION - 1 : REVISION + 1])
        is_new = revision == 2
        samples = (is_new and number(LONG_COUNT, 4)) or number(COUNT, 2)
        if samples < 1:
            raise InputError(f"{path} cannot be read as SEG-Y: its binary header has 0 samples per trace")
        long_interval = float(np.frombuffer(head, type_in(endian, "f8"), 1, LONG_INTERVAL - 1)[0]) if is_new else 0.0
        if not 0 <= long_interval < np.inf:
            raise InputError(f"{path} has an extended sample interval of {long_interval}: correct bytes 3273 to 3280")
        first = (is_new and number(FIRST, 8)) or end_of_texts(path, number(TEXTS, 2))
        if first < TEXT_BYTES + BINARY_BYTES:
            raise InputError(f"{path} has its first trace at byte {first}, in a header: correct bytes 3521 to 3528")
        trailers, trace_count = (number(TRAILERS, 4), number(TRACES, 8)) if is_new else (0, 0)
        if trailers > 0x7FFFFFFF and not trace_count:
            raise InputError(
                f"{path} has an unknown number of data trailers, and of traces: fill in bytes 3529 to 3532 or 3513 to "
                "3520 of its binary header"
            )
        body = size - first - (0 if trace_count else TEXT_BYTES * trailers)
        code = number(FORMAT, 2)
        # Revision 2.1 reduced the number of additional headers to two bytes.
        counts = [number(MORE_HEADERS, 4), number(MORE_HEADERS, 2)] if is_new else [0]
        lengths = [HEADER_BYTES * (1 + extra) + samples * np.dtype(SAMPLE_TYPES[code]).itemsize for extra in counts]
        fits = [
            body >= trace_count * length if trace_count else body >= length and body % length == 0 for length in lengths
        ]
        length = lengths[fits.index(True)] if any(fits) else lengths[0]
        varying, header_sizes = None, [HEADER_BYTES * (1 + extra) for extra in counts]
        header_bytes = header_sizes[lengths.index(length)]
        found = unfixed = None
        if revision > 0 and not number(FIXED, 2):
            unfixed, equal = (first + body, trace_count), length if any(fits) else None
            found = varying_traces(path, endian, first, body, header_sizes, samples, code, trace_count, equal)
        if found is not None:
            header_bytes, varying = found
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
            long_interval or float(number(INTERVAL, 2)),
            revision,
            0.3048 if number(UNITS, 2) == FEET else 1.0,
            code,
            first,
            header_bytes,
            long_interval > 0,
            varying,
            unfixed=unfixed,
        )

    def text(self) -> str:
        """Return the textual header; SU has none."""
        if is_su(self.path):
            return ""
        return decoded(self._head()[0, :TEXT_BYTES].tobytes())

    def binary(self) -> dict[int, int]:
        """Return the fields of the binary header of revisions 0 and 1, by their first bytes in the file; none in SU."""
        import segyio

        if is_su(self.path):
            return {}

        raw = self._head()
        sizes = field_sizes(segyio.BinField.enums())
        defined = [byte for byte in sizes if byte < END_OF_REVISION_1]
        return {byte: int(numbers_in(raw, byte, f"i{sizes[byte]}", self.endian)[0]) for byte in defined}

    def headers(self, *names: str) -> dict[str, np.ndarray]:
        """Read fields of all trace headers, named as in ``segyio.TraceField``: one number per trace.

        The numbers are int64, or float64 where `places` has a floating-point type.
        """
        import segyio

        sizes, places = field_sizes(segyio.TraceField.enums()), {}
        for name in names:
            byte = int(getattr(segyio.TraceField, name))
            places[name] = self.places.get(name, (byte, f"i{sizes[byte]}"))
        width = max([HEADER_BYTES, *(byte - 1 + int(kind[1:]) for byte, kind in places.values())])
        if width > self.header_bytes:
            raise InputError(f"{self.path} has headers of {self.header_bytes} bytes: bytes of --header must be in them")
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for first in range(0, self.traces, _HEADERS_AT_A_TIME):
            raw = self._read(np.arange(first, min(first + _HEADERS_AT_A_TIME, self.traces)), width)
            self._check_lengths(raw)
            for name, (byte, kind) in places.items():
                # Bytes after 180 of SU have other meanings.
                known = byte <= LAST_OF_SU or name in self.places or not is_su(self.path)
                numbers = numbers_in(raw, byte, kind, self.endian)
                parts[name].append(numbers if known else np.zeros_like(numbers))
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}

    def raw_headers(self, traces: np.ndarray) -> np.ndarray:
        """Return the standard headers of traces as big-endian bytes: uint8, ``(len(traces), 240)``."""
        import segyio

        raw = self._read(traces, HEADER_BYTES)
        if self.endian == "little":
            for byte, size in field_sizes(segyio.TraceField.enums()).items():
                if byte < NAME or self.revision < 2:  # revision 2 has the header's name in the last bytes
                    columns = slice(byte - 1, byte - 1 + size)
                    raw[:, columns] = raw[:, columns][:, ::-1]
        if is_su(self.path):
            raw[:, LAST_OF_SU:] = 0
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
        if self.header_bytes == HEADER_BYTES:
            return np.empty((len(positions), 0))
        name = self._read([0], HEADER_BYTES, HEADER_BYTES).tobytes()[NAME - 1 :]
        if name not in EXTENSION:
            return np.empty((len(positions), 0))
        raw = self._read(np.arange(self.traces), HEADER_BYTES, HEADER_BYTES)
        return np.stack([raw[:, p - 1 : p + 7].copy().view(type_in(self.endian, "f8"))[:, 0] for p in positions])

    def read(self, traces: np.ndarray) -> np.ndarray:
        """Return traces by their numbers, from 0: ``(len(traces), samples)``, float32, or float64 as in the file.

        Traces that are shorter than the longest one are padded with zeros.
        """
        kind = np.dtype(SAMPLE_TYPES[self.format])
        native = np.dtype(np.float32) if self.format == IBM else kind
        result = np.zeros((len(traces), self.samples), dtype=np.promote_types(native, np.float32))
        if self.varying is not None:
            for row, trace in zip(result, traces, strict=True):
                count = int(self.varying[0, trace])
                raw = self._read([trace], count * kind.itemsize, self.header_bytes)
                row[:count] = self._values(raw)[0]
            return result
        step = traces_at_once(self._trace_bytes)
        for rows, first in runs(traces):
            for start in range(rows.start, rows.stop, step):
                stop = min(start + step, rows.stop)
                raw = self._read([first + start - rows.start], (stop - start) * self._trace_bytes)
                raw = raw.reshape(stop - start, -1)
                self._check_lengths(raw)
                result[start:stop] = self._values(raw[:, self.header_bytes :])
        return result

    def counts(self, traces: np.ndarray, in_headers: np.ndarray, notes: list[str]) -> np.ndarray:
        """Return the number of recorded samples of each of some traces.

        `in_headers` are the numbers in their headers (bytes 115 to 116). If they differ and are smaller than the number
        of samples in the file, they apply if only zeros follow; a sentence is added to `notes`.

        Raises InputError if they are larger, unless all traces have equal lengths by the binary header or the format:
        then only `notes` tells it.
        """
        if self.varying is not None:
            counts = self.varying[0, traces]
            notes.append(f"{self.path} has traces of {counts.min()} to {counts.max()} samples")
            return counts
        counts = in_headers % 0x10000
        if self.samples <= 0xFFFF and (longer := np.flatnonzero(counts > self.samples)).size:
            if self.unfixed is not None:
                raise InputError(
                    f"{self.path} has {counts[longer[0]]} samples in the header of trace {traces[longer[0]] + 1}, but "
                    f"{self.samples} in its binary header: correct bytes 115 to 116, or write 1 into bytes 3503 to "
                    f"3504 if all traces have {self.samples}"
                )
            notes.append(
                f"{len(longer)} of {len(traces)} traces have more than {self.samples} samples in bytes 115 to 116, "
                "which are not used: traces of this file have equal lengths"
            )
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

    def _check_lengths(self, raw: np.ndarray) -> None:
        """Raise InputError if headers, (traces, bytes), show that traces have different lengths.

        `inspect` reads some headers only, between which longer and shorter traces may be as long as equal ones.
        """
        if self.unfixed is None or self.varying is not None:
            return
        counts = numbers_in(raw, TRACE_COUNT, "i2", self.endian) % 0x10000
        if not np.isin(counts, (0, self.samples, self.samples & 0xFFFF)).all() and self._has_other_lengths:
            raise InputError(
                f"{self.path} has traces of different lengths, together as long as traces of {self.samples} samples: "
                "pad them with zeros to equal lengths"
            )

    @cached_property
    def _has_other_lengths(self) -> bool:
        """Whether the numbers of samples in the trace headers lead from the first trace to the end of the last one."""
        end, count = self.unfixed or (0, 0)
        itemsize = np.dtype(SAMPLE_TYPES[self.format]).itemsize
        with opened(self.path) as file:
            found = walked(file, self.endian, self.first, end, self.header_bytes, itemsize, 0, count)
        return found is not None

    def _values(self, samples: np.ndarray) -> np.ndarray:
        """Return the numbers that the bytes of samples, (traces, bytes), represent."""
        values = samples.copy().view(type_in(self.endian, SAMPLE_TYPES[self.format]))
        return from_ibm(values) if self.format == IBM else values

    def _head(self) -> np.ndarray:
        """Return the bytes of the textual and the binary header: uint8, ``(1, 3600)``."""
        return self._read([0], TEXT_BYTES + BINARY_BYTES, -self.first)

    @property
    def _trace_bytes(self) -> int:
        return self.header_bytes + self.samples * np.dtype(SAMPLE_TYPES[self.format]).itemsize

    def _read(self, traces: Sequence[int] | np.ndarray, size: int, skip: int = 0) -> np.ndarray:
        """Read `size` bytes of each of some traces, after `skip` bytes: uint8, ``(len(traces), size)``."""
        result = np.empty((len(traces), size), np.uint8)
        try:
            with opened(self.path) as file:
                for row, trace in zip(result, traces, strict=True):
                    trace = int(trace)
                    begin = self.first + trace * self._trace_bytes if self.varying is None else self.varying[1, trace]
                    file.seek(int(begin) + skip)
                    if not read_exactly(file, memoryview(row)):  # pyright: ignore[reportArgumentType] - it is a buffer
                        raise InputError(f"{self.path} has become shorter: copy it again")
        except OSError as problem:
            raise InputError(
                f"{self.path} cannot be read ({problem.strerror or problem}): check its permissions"
            ) from None
        return result


def require_segyio() -> None:
    """Raise `InputError` unless segyio is installed."""
    if importlib.util.find_spec("segyio") is None:
        raise InputError("SEG-Y needs the package segyio: install collops[segy]")


def is_segy(path: Source | None) -> bool:
    """Return whether a file has a suffix of SEG-Y or SU."""
    return path is not None and located(path).suffix.lower() in (".sgy", ".segy", ".su")
