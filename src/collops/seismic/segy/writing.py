"""Write the traces of all ranks to SEG-Y files of revision 1 or 2."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import atomic, local_stage
from collops.extend.communication import in_time
from collops.seismic.segy.file import SegyFile, require_segyio
from collops.seismic.segy.layout import (
    BIG,
    BINARY_BYTES,
    FEET,
    FIRST,
    HEADER_BYTES,
    LONG_COUNT,
    LONG_INTERVAL,
    NAME,
    ORDER,
    REVISION,
    STANDARD_HEADER,
    TEXT_BYTES,
    TRACES,
    field_sizes,
)
from collops.seismic.segy.pieces import runs, traces_at_once

if TYPE_CHECKING:
    from collops import Communicator

_PLACES = (
    "BYTES OF TRACE HEADERS: field record 9, channel 13, CDP 21, offset 37, scalar of coordinates 71, source X 73, "
    "source Y 77, group X 81, group Y 85, first sample 109 (ms; m of depths), interval 117 (microseconds; mm of "
    "depths), CDP X 181, CDP Y 185, inline 189, crossline 193"
)
"""The bytes of trace-header fields, for textual headers."""

_STANDARD = {1: "SEG-Y REV1", 2: "SEG-Y REV2.0"}  # the last line but one of the textual header, by revision


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
        return write_together(path, comm, self, [*history, _PLACES])


def segy_bytes(traces: int, samples: int) -> int:
    """Return the size of a file that `write_together` writes."""
    return TEXT_BYTES + BINARY_BYTES + traces * (HEADER_BYTES + 4 * samples)


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
    step = traces_at_once((HEADER_BYTES + 4 * traces.values.shape[1]) * comm.size)
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

    _check_headers(traces)
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
                segyio.BinField.MeasurementSystem: FEET if feet else 1,
                segyio.BinField.SEGYRevision: 1,
                segyio.BinField.SEGYRevisionMinor: 0,
                segyio.BinField.TraceFlag: 1,
                segyio.BinField.ExtendedHeaders: 0,
            }
        )
    os.truncate(path, segy_bytes(traces.count, samples))
    if traces.revision == 2:
        _extend(path, traces)


def _check_headers(traces: Traces) -> None:
    """Raise an error unless all numbers of the trace headers fit into their fields."""
    import segyio

    sizes = field_sizes(segyio.TraceField.enums())
    for name, column in traces.headers.items():
        limits, values = np.iinfo(f"i{sizes[int(getattr(segyio.TraceField, name))]}"), np.asarray(column)
        outside = ~((values >= limits.min) & (values <= limits.max))  # also NaN
        if outside.any():
            raise InputError(
                f"SEG-Y holds numbers from {limits.min} to {limits.max} only in the field {name} of trace headers, not "
                f"{values[outside][0]}"
            )


def _extend(path: Path, traces: Traces) -> None:
    """Fill in the fields of revision 2 of the binary header."""
    end_of_headers = TEXT_BYTES + BINARY_BYTES
    fields = {
        LONG_COUNT: (">i4", traces.values.shape[1]),
        LONG_INTERVAL: (">f8", traces.interval),
        ORDER: (">i4", BIG),
        REVISION: (">u1", 2),
        TRACES: (">u8", traces.count),
        FIRST: (">u8", end_of_headers),
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
    """Write some traces, with their headers, at their positions in a file.

    Headers are composed column by column: segyio sets one field of one trace at a time.
    """
    import segyio

    samples = values.shape[1]
    records = np.zeros(len(numbers), [("header", np.uint8, HEADER_BYTES), ("samples", ">f4", samples)])
    header, records["samples"] = records["header"], values
    if traces.like is not None:
        header[:] = traces.like[0].raw_headers(traces.like[1][numbers])
    if traces.revision == 2:
        header[:, NAME - 1 :] = np.frombuffer(STANDARD_HEADER, np.uint8)
    fields = {name: np.asarray(column)[numbers] for name, column in traces.headers.items()}
    fields |= {"TRACE_SAMPLE_COUNT": np.array([samples]), "TRACE_SAMPLE_INTERVAL": np.array([traces.short_interval])}
    sizes = field_sizes(segyio.TraceField.enums())
    for name, column in fields.items():
        byte = int(getattr(segyio.TraceField, name))
        # Counts and intervals up to 65535 become negative in two bytes, as in segyio.
        integers = column.astype(np.int64).astype(f">i{sizes[byte]}")
        header[:, byte - 1 : byte - 1 + sizes[byte]] = integers[:, None].view(np.uint8)
    with open(path, "r+b") as file:
        for rows, first in runs(numbers):
            file.seek(TEXT_BYTES + BINARY_BYTES + first * records.itemsize)
            file.write(records[rows].data)
