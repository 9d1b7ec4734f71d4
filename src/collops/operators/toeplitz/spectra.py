"""Spectra of a kernel: one matrix for each frequency, rounded for storage, with the error of the rounding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from collops.array.dtypes import real_of
from collops.backend import LocalArray
from collops.operators.dense.bfloat16 import bits_of

__all__ = ["PRECISIONS"]

PRECISIONS = ("float64", "float32", "float16", "bfloat16")
"""Names of the types that real and imaginary parts may be stored in."""

_MAX_CHUNK = 1 << 24  # samples of the kernel that are transformed at once in double precision


class Spectra(NamedTuple):
    """Matrices of all frequencies, (frequencies, rows, columns), as real and imaginary parts along a last axis.

    `stored` is the name of their type; parts in bfloat16 are kept as bits in ``uint16``. Each row is to be multiplied
    by its element of `scales`, (frequencies, rows, 1), a power of two; only float16 needs it, else it is ``None``.
    `accumulated` is the complex type of products. `squares` are the squared Frobenius norms of the matrices, and
    `errors` these norms of the rounding errors, in double precision.
    """

    parts: LocalArray
    stored: str
    scales: LocalArray | None
    accumulated: np.dtype
    squares: np.ndarray
    errors: np.ndarray


def spectra_of(kernel: LocalArray, length: int, stored: str, accumulated: np.dtype, xp: Any) -> Spectra:
    """Return the spectra of a kernel of shape (nt, rows, columns), zero-padded to `length` samples.

    They are transformed in double precision, some rows at a time, and then rounded. `xp` is NumPy or CuPy.
    """
    nt, rows, columns = kernel.shape
    real = kernel.dtype.kind != "c"
    frequencies = length // 2 + 1 if real else length
    parts = xp.empty((frequencies, rows, columns, 2), np.uint16 if stored == "bfloat16" else stored)
    scales = xp.ones((frequencies, rows, 1), real_of(accumulated)) if stored == "float16" else None
    squares, errors = np.zeros((2, frequencies))
    transform = _transforms(xp).rfft if real else _transforms(xp).fft
    step = max(1, _MAX_CHUNK // max(1, length * columns))
    for begin in range(0, rows if columns and nt else 0, step):
        some = slice(begin, begin + step)
        exact = transform(kernel[:, some].astype(np.float64 if real else np.complex128), n=length, axis=0)
        values = xp.ascontiguousarray(exact).view(np.float64).reshape(*exact.shape, 2)
        factor = 1.0
        if scales is not None:
            largest = abs(values).max(axis=(2, 3), keepdims=True)
            factor = xp.exp2(xp.ceil(xp.log2(xp.where(largest > 0, largest, 1))))
            scales[:, some] = factor[..., 0]
        scaled = values / factor
        parts[:, some] = (
            bits_of(scaled.reshape(len(scaled), -1)).reshape(scaled.shape) if stored == "bfloat16" else scaled
        )
        found = widened(parts[:, some], stored, xp).astype(np.float64) * factor
        for total, part in ((squares, values), (errors, found - values)):
            total += _on_host((part**2).sum(axis=(1, 2, 3)), xp)
    return Spectra(parts, stored, scales, accumulated, squares, errors)


def widened(parts: LocalArray, stored: str, xp: Any, out: LocalArray | None = None) -> LocalArray:
    """Return finite parts of type `stored` as numbers: halves as float32, in `out` if that is given; others unchanged.

    By bits, since NumPy converts float16 one number at a time.
    """
    if stored == "bfloat16":
        bits = None if out is None else out.view(np.uint32)
        return xp.left_shift(parts, 16, out=bits, dtype=np.uint32).view(np.float32)
    if stored == "float16":
        # The sign is extended over the bits that a float has in addition. Its exponent begins 112 lower.
        bits = None if out is None else out.view(np.int32)
        bits = xp.left_shift(parts.view(np.int16), 13, out=bits, dtype=np.int32)
        bits &= np.int32(-0x70000001)
        wide = bits.view(np.float32)
        wide *= np.float32(2.0**112)
        return wide
    return parts


def _transforms(xp: Any) -> Any:
    if xp is not np:
        return xp.fft
    from scipy import fft

    return fft


def _on_host(array: LocalArray, xp: Any) -> np.ndarray:
    return array if xp is np else xp.asnumpy(array)
