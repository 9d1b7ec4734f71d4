"""Wavefields in 8 or 16 bits: integers times a scale of each block of 64 points, with a bound of their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import InputError
from collops.extend.arrays import LocalArray

BLOCK = 64
"""Consecutive points with a scale of their own."""

TYPES = {8: np.dtype(np.int8), 16: np.dtype(np.int16)}
_HOST_PIECE = 512  # blocks, which fit the cache
_DEVICE_PIECE = 1 << 18  # blocks, whose intermediate results are a small part of the memory


def checked_bits(bits: int | None) -> None:
    """Raise InputError unless `bits` is 8, 16 or ``None``."""
    if bits is not None and not (isinstance(bits, int | np.integer) and bits in TYPES):
        raise InputError(f"wavefields can be stored in 8 or 16 bits, not {bits!r}; None stores them exactly")


def compressed_bytes(points: int, dtype: np.dtype, bits: int) -> int:
    """Return the memory of a compressed wavefield of `dtype`."""
    return -(-points // BLOCK) * (BLOCK * TYPES[bits].itemsize + dtype.itemsize)


def largest_integer(bits: int) -> int:
    """Return the largest magnitude of an integer."""
    return int(np.iinfo(TYPES[bits]).max)


def smallest_scale(dtype: np.dtype) -> float:
    """Return the smallest scale: values of blocks that would need a smaller one are stored as zeros."""
    return float(np.finfo(dtype).tiny)


def error_bound(bits: int) -> float:
    """Return the largest error of a stored value, relative to the largest magnitude in its block.

    It holds for single and double precision, whose rounding it includes. Values are also stored as zeros if all of the
    block are smaller than the largest integer times the smallest normal number of their type.
    """
    return 0.5 / largest_integer(bits) + 2 * float(np.finfo(np.float32).eps)


class CompressedFields:
    """Compressed wavefields in memory.

    Parameters
    ----------
    count : int
        Number of wavefields.
    shape, dtype
        Of a wavefield.
    bits : int
        8 or 16.
    xp : module
        NumPy, or CuPy for memory of a device.

    Notes
    -----
    A block with a value that is infinite or undefined is undefined when it is loaded.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.waves.compression import CompressedFields, error_bound
    >>> fields = CompressedFields(1, (10, 10), np.dtype("float32"), 8)
    >>> values = np.sin(np.arange(100)).reshape(10, 10)
    >>> fields.space(0)[...] = values
    >>> fields.store(0)
    >>> bool(np.abs(fields.load(0) - values).max() < error_bound(8))
    True
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: np.dtype, bits: int, xp: Any = np) -> None:
        points = int(np.prod(shape))
        blocks = -(-points // BLOCK)
        self._xp, self._limit, self._smallest = xp, largest_integer(bits), smallest_scale(dtype)
        self._integers = xp.empty((count, blocks, BLOCK), TYPES[bits])
        self._scales = xp.empty((count, blocks), dtype)
        self._values = xp.zeros((blocks, BLOCK), dtype)
        self._field = self._values.reshape(-1)[:points].reshape(shape)
        size = _HOST_PIECE if xp is np else _DEVICE_PIECE
        self._pieces = [slice(begin, begin + size) for begin in range(0, blocks, size)]

    def space(self, number: int) -> LocalArray:
        """Return the array to compute a wavefield in, until the next call of any method."""
        return self._field

    def store(self, number: int) -> None:
        """Store the wavefield that was computed there."""
        xp = self._xp
        self._values.reshape(-1)[self._field.size :] = 0  # undefined after a block with an undefined value was loaded
        for piece in self._pieces:
            values = self._values[piece]
            # Along the first axis of a copy, NumPy finds the largest several times faster than along short rows.
            scale = xp.ascontiguousarray(xp.abs(values).T).max(axis=0) / self._limit
            scale = xp.where(scale < self._smallest, 0, xp.where(scale < np.inf, scale, np.nan)).astype(values.dtype)
            with np.errstate(invalid="ignore"):  # values that are undefined become any integer, times such a scale
                self._integers[number, piece] = xp.rint(values / xp.where(scale > 0, scale, np.inf)[:, np.newaxis])
            self._scales[number, piece] = scale

    def load(self, number: int) -> LocalArray:
        """Return a wavefield, until the next call of any method."""
        for piece in self._pieces:
            scale = self._scales[number, piece, np.newaxis]
            self._xp.multiply(self._integers[number, piece], scale, out=self._values[piece])
        return self._field
