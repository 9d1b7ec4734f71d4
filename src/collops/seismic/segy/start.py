"""Check the beginning of a SEG-Y file: size, byte order, textual headers, and where its traces begin."""

from __future__ import annotations

from pathlib import Path

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
    path: Location, endian: str, first: int, size: int, header_bytes: int, samples: int, code: int, count: int
) -> np.ndarray | None:
    """Return the number of samples and the first byte of each trace in a file of traces of different lengths.

    `size` is the number of bytes of all traces; `samples` is the number of samples where a header has none. The result
    has shape ``(2, traces)``, or is None if the traces do not fill the file, or are not `count`, if it is not 0.
    """
    itemsize, position, end, found = np.dtype(SAMPLE_TYPES[code]).itemsize, first, first + size, []
    with opened(path) as file:
        while position + header_bytes <= end and (not count or len(found) < count):
            file.seek(position)
            header = file.read(header_bytes)
            number = number_at(header, TRACE_COUNT, 2, endian)
            if header[HEADER_BYTES:][NAME - 1 : NAME + 7] in EXTENSION:
                number = number_at(header[HEADER_BYTES:], LONG_TRACE_COUNT, 4, endian) or number
            found.append((number or samples, position))
            position += header_bytes + found[-1][0] * itemsize
    if not found or position > end or (len(found) != count if count else position < end):
        return None
    return np.array(found, dtype=np.int64).T
