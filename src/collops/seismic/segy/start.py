"""Check the beginning of a SEG-Y file: size, byte order, textual headers, and where its traces begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.seismic.segy.layout import (
    BIG,
    BINARY_BYTES,
    EXTENSION,
    FORMAT,
    HEADER_BYTES,
    LITTLE,
    LONG_TRACE_COUNT,
    NAME,
    ORDER,
    SAMPLE_TYPES,
    TEXT_BYTES,
    TRACE_COUNT,
    decoded,
    number_at,
)
from collops.seismic.streams import Location, opened, read_exactly, size_of

_CHECKED = 16  # traces whose headers are read, to check that traces have equal lengths


def start_of(path: Location) -> tuple[int, bytes]:
    """Return the size of a file that is not empty, and the bytes of its textual and binary header."""
    try:
        if isinstance(path, Path) and path.is_dir():
            raise InputError(f"{path} is a folder: pass a SEG-Y file")
        size, head = size_of(path), bytes_at(path, TEXT_BYTES + BINARY_BYTES, 0)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path of the SEG-Y file") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror or problem}): check its permissions") from None
    if size == 0:
        raise InputError(f"{path} is empty: copy the SEG-Y file again")
    return size, head


def bytes_at(path: Location, size: int, position: int) -> bytes:
    """Read at most `size` bytes at a position of a file or URL."""
    result = bytearray(size)
    with opened(path) as file:
        file.seek(position)
        read_exactly(file, memoryview(result))
        return bytes(result[: max(0, file.tell() - position)])


def byte_order(path: Location, head: bytes) -> str:
    """Return the byte order that a file of revision 2 specifies, else the order in which its format code is valid."""
    named = int.from_bytes(head[ORDER - 1 : ORDER + 3], "big")
    if named in (0x02010403, 0x03040102):
        raise InputError(f"{path} has pairwise swapped bytes: swap them back")
    orders = {BIG: ("big",), LITTLE: ("little",)}.get(named, ("big", "little"))
    for order in orders:
        if number_at(head, FORMAT, 2, order) in SAMPLE_TYPES:
            return order
    code = number_at(head, FORMAT, 2, orders[0])
    raise InputError(f"{path} cannot be read as SEG-Y: its sample format code is {code}")


def end_of_texts(path: Location, extended: int) -> int:
    """Return the end of the textual headers after the binary header; the last of an unknown number is marked."""
    position = TEXT_BYTES + BINARY_BYTES
    if extended <= 0x7FFF:
        return position + TEXT_BYTES * extended
    with opened(path) as file:
        file.seek(position)
        while len(block := file.read(TEXT_BYTES)) == TEXT_BYTES:
            position += TEXT_BYTES
            if "((SEG:ENDTEXT))" in decoded(block).upper().replace(" ", ""):
                return position
    raise InputError(
        f"{path} has a variable number of text headers without the final ((SEG: EndText)): write their number into "
        "bytes 3505 to 3506"
    )


def varying_traces(
    path: Location,
    endian: str,
    first: int,
    size: int,
    header_sizes: Sequence[int],
    samples: int,
    code: int,
    count: int,
    equal: int | None,
) -> tuple[int, np.ndarray] | None:
    """Return the size of trace headers, and the number of samples and the first byte of each trace, if they vary.

    `size` is the number of bytes of all traces, `header_sizes` are possible sizes of their headers, `samples` is the
    number of samples where a header has none, and `count` the number of traces, or 0. The array has shape
    ``(2, traces)``. The result is None if the traces do not fill the file, or are not `count`.

    If the file may consist of traces of `equal` length, in bytes, the result is None unless the headers of some of them
    have another number of samples, and those of all traces of different lengths have one.
    """
    with opened(path) as file:
        if equal is not None and not _has_other_counts(file, endian, first, size, header_sizes, samples, count, equal):
            return None
        for header_bytes in dict.fromkeys(header_sizes):
            itemsize, default = np.dtype(SAMPLE_TYPES[code]).itemsize, samples if equal is None else 0
            found = walked(file, endian, first, first + size, header_bytes, itemsize, default, count)
            if found is not None:
                return header_bytes, found
    return None


def walked(
    file: Any, endian: str, first: int, end: int, header_bytes: int, itemsize: int, default: int, count: int
) -> np.ndarray | None:
    """Return the number of samples and the first byte of each trace, ``(2, traces)``, from one header to the next.

    Headers without a number of samples have `default`, and end the traces if it is 0. The result is None unless the
    traces are `count`, or, if that is 0, end at byte `end`.
    """
    position, found = first, []
    while position + header_bytes <= end and (not count or len(found) < count):
        number = _count_at(file, position, header_bytes, endian) or default
        if not number:
            break
        found.append((number, position))
        position += header_bytes + number * itemsize
    complete = found and position <= end and (len(found) == count if count else position == end)
    return np.array(found, dtype=np.int64).T if complete else None


def _has_other_counts(
    file: Any, endian: str, first: int, size: int, header_sizes: Sequence[int], samples: int, count: int, equal: int
) -> bool:
    """Return whether the header of one of some traces of equal length has another number of samples."""
    traces = count or size // equal  # what follows a known number of traces are data trailers
    checked = np.unique(np.linspace(0, traces - 1, _CHECKED).astype(int)).tolist()
    counts = [_count_at(file, first + equal * trace, max(header_sizes), endian) for trace in checked]
    return not {0, samples, samples & 0xFFFF}.issuperset(counts)


def _count_at(file: Any, position: int, header_bytes: int, endian: str) -> int:
    """Return the number of samples in the header of the trace at a position; 0 if it has none."""
    file.seek(position)
    header = file.read(min(header_bytes, 2 * HEADER_BYTES))  # with trace header extension 1
    number = number_at(header, TRACE_COUNT, 2, endian)
    if header[HEADER_BYTES:][NAME - 1 : NAME + 7] in EXTENSION:
        number = number_at(header[HEADER_BYTES:], LONG_TRACE_COUNT, 4, endian) or number
    return number
