"""Positions, types and codes of the fields of SEG-Y files, revisions 0 to 2.1, and the numbers in raw headers."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import InputError

TEXT_BYTES, BINARY_BYTES, HEADER_BYTES = 3200, 400, 240
"""Sizes of a textual header, of the binary header, and of the standard header of a trace."""

# Types of the samples by format code. IBM floats are read as the integers of their bits.
IBM, IEEE = 1, 5
SAMPLE_TYPES = {IBM: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 9: "i8", 10: "u4", 11: "u2", 12: "u8", 16: "u1"}
# Fields of the binary header by their first bytes in the file, counted from 1 as in the standard.
INTERVAL, COUNT, FORMAT, UNITS, REVISION, FIXED, TEXTS = 3217, 3221, 3225, 3255, 3501, 3503, 3505
# Fields of revision 2 only, undefined in earlier revisions.
LONG_COUNT, LONG_INTERVAL, ORDER, MORE_HEADERS, TRACES, FIRST, TRAILERS = 3269, 3273, 3297, 3507, 3513, 3521, 3529
BIG, LITTLE = 0x01020304, 0x04030201  # of `ORDER`, read in big-endian order
END_OF_REVISION_1 = 3261  # end of the fields of revisions 0 and 1, except the fields from 3501 on
# Fields of trace header extension 1, by their first bytes in it, and its name in the last bytes.
EXTENSION, NAME = ("SEG00001".encode("ascii"), "SEG00001".encode("cp037")), 233
TRACE_COUNT, LONG_TRACE_COUNT = 115, 137  # of samples: in the standard header and in the extension
TRACE_INTERVAL = 145
STANDARD_HEADER = b"SEG00000"  # the name of the standard header in revision 2
LAST_OF_SU = 180  # bytes of a trace header that SU has in common with SEG-Y
FEET = 2


def decoded(text: bytes) -> str:
    """Decode an ASCII or EBCDIC text, which differ in the code of spaces."""
    return text.decode("ascii" if text.count(b" ") >= text.count(b"\x40") else "cp037", "replace")


def number_at(head: bytes, byte: int, size: int, endian: Any) -> int:
    """Return an unsigned number of the file header; the standard counts bytes from 1."""
    return int.from_bytes(head[byte - 1 : byte - 1 + size], endian)


def type_in(endian: str, kind: str) -> np.dtype:
    """Return a type such as ``"i4"`` in a byte order, ``"big"`` or ``"little"``."""
    return np.dtype(kind).newbyteorder(">" if endian == "big" else "<")


def field_sizes(fields: Any) -> dict[int, int]:
    """Return the size of each field of a header, up to the next field."""
    positions = sorted({int(field) for field in fields})
    return {byte: after - byte for byte, after in zip(positions, [*positions[1:], positions[-1] + 4], strict=True)}


def numbers_in(raw: np.ndarray, byte: int, kind: str, endian: str) -> np.ndarray:
    """Return a number of each header, (headers, bytes), as int64, or as float64 if its type is floating-point."""
    values = raw[:, byte - 1 : byte - 1 + int(kind[1:])].copy().view(type_in(endian, kind))[:, 0]
    if kind[0] == "f" and not np.isfinite(values).all():
        raise InputError(
            f"byte {byte} of the trace headers has values of type {kind} that are not finite: check --header"
        )
    return values.astype(np.int64 if kind[0] == "i" else np.float64)


def from_ibm(bits: np.ndarray) -> np.ndarray:
    """Return IBM floats as float32: a sign, an exponent of 16 with bias 64, and 24 bits of a fraction below 1."""
    fraction = (bits & 0xFFFFFF).astype(np.float32)
    with np.errstate(over="ignore"):  # infinite samples raise an error when they are used
        sizes = np.ldexp(fraction, 4 * (bits >> 24 & 0x7F).astype(np.int32) - (4 * 64 + 24))
    return np.where(bits >> 31, -sizes, sizes)
