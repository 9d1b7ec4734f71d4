"""Files of Seismic Unix: trace headers of SEG-Y and IEEE floats, without file headers, in either byte order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.errors import InputError
from collops.seismic.streams import Source, located

_HEADER_BYTES, _SAMPLE_BYTES = 240, 4
_SAMPLES, _INTERVAL = slice(114, 116), slice(116, 118)  # of a trace header


def is_su(path: Source) -> bool:
    """Return whether a file has the suffix of Seismic Unix."""
    return located(path).suffix.lower() == ".su"


def su_sampling(path: Any, size: int, read: Callable[[int], bytes]) -> tuple[str, int, float]:
    """Return byte order, number of samples and interval (microseconds) of a file, all from its first trace header.

    The byte order is the one in which the traces fill the file, and the second header has as many samples as the first.
    `read` returns a trace header at a position in the file. Raises `InputError` if neither order suits the file.
    """
    first = read(0)
    for order in ("little", "big"):
        samples = int.from_bytes(first[_SAMPLES], order)  # type: ignore[arg-type]
        length = _HEADER_BYTES + _SAMPLE_BYTES * samples
        if samples and size % length == 0 and (size == length or read(length)[_SAMPLES] == first[_SAMPLES]):
            return order, samples, float(int.from_bytes(first[_INTERVAL], order))  # type: ignore[arg-type]
    raise InputError(
        f"{path} cannot be read as SU: {size} bytes are not traces with as many samples as the first header has (bytes "
        "115 to 116), in either byte order; copy it again, or convert it to SEG-Y"
    )
