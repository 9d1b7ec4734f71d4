"""Dense real matrices stored in bfloat16, which multiply vectors in single precision.

A bfloat16 is the upper half of a float32. NumPy and CuPy have no fast products of bfloat16. A matrix is therefore
stored as their bits, in ``uint16``, and converted during the product: in the cache on hosts, in registers on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np

from collops.array.dtypes import as_dtype
from collops.backend import LocalArray, engine_of
from collops.operators.dense.matrix import DenseMatrix
from collops.operators.memory import store

_SINGLE = np.dtype(np.float32)
_BLOCK = 1 << 17  # elements converted to float32 at once: they stay in a cache
_CONVERTED = 1 << 24  # elements rounded at once, with temporary arrays of four times their size


def bits_of(matrix: LocalArray) -> LocalArray:
    """Return a real 2-D mutable array rounded to bfloat16, as bits."""
    xp = engine_of(matrix).xp
    bits = xp.empty(matrix.shape, np.uint16)
    step = max(1, _CONVERTED // max(1, matrix.shape[1]))
    for begin in range(0, len(matrix), step):
        rows = slice(begin, begin + step)
        bits[rows] = _rounded(matrix[rows], xp)
    return bits


def _rounded(matrix: LocalArray, xp: ModuleType) -> LocalArray:
    """Return the bits of the values rounded to the nearest bfloat16, ties to even."""
    single = xp.ascontiguousarray(matrix, _SINGLE)
    bits = single.view(np.uint32)
    # Rounding up would turn the largest NaN into an infinity.
    nearest = xp.where(xp.isnan(single), bits | 1 << 22, bits + (0x7FFF + (bits >> 16 & 1)))
    return (nearest >> 16).astype(np.uint16)


class HostMatrix(DenseMatrix):
    """A matrix of bfloat16 bits in C order on the host, converted to float32 a few rows at a time."""

    def __init__(self, bits: np.ndarray) -> None:
        super().__init__(bits)
        self.dtype = _SINGLE
        self._traced: LocalArray = None  # a copy for vectors of JAX
        self._height = max(1, _BLOCK // max(1, self.shape[1]))

    def _widened(self) -> Iterator[tuple[slice, np.ndarray]]:
        shape = min(self._height, self.shape[0]), self.shape[1]
        single = self._buffers.local("rows", shape, _SINGLE, engine_of(self.matrix))
        for begin in range(0, self.shape[0], self._height):
            rows = slice(begin, begin + self._height)
            part = self.matrix[rows]
            block = single[: len(part)]
            np.left_shift(part, 16, out=block.view(np.uint32), dtype=np.uint32)
            yield rows, block

    def _product(self, matrix: np.ndarray, x: LocalArray, out: LocalArray | None) -> LocalArray:
        engine = engine_of(x)
        if engine.traced:
            if self._traced is None:
                self._traced = engine.from_host(self.matrix.view(as_dtype("bfloat16")))
            return store(_traced_product(self._traced if matrix is self.matrix else self._traced.T, x), out)
        x = _single(x)
        target = out if out is not None and out.dtype == x.dtype else np.empty(matrix.shape[0], x.dtype)
        if matrix is self.matrix:
            for rows, block in self._widened():
                target[rows] = block @ x
        else:
            target.fill(0)
            for rows, block in self._widened():
                target += x[rows] @ block
        return store(target, out)

    def _products(self, X: np.ndarray, matrix: np.ndarray, out: LocalArray) -> LocalArray:
        X = _single(X)
        if matrix is self._transposed:
            for rows, block in self._widened():
                out[:, rows] = X @ block.T
            return out
        total = np.zeros((len(X), self.shape[1]), X.dtype)
        for rows, block in self._widened():
            total += X[:, rows] @ block
        return store(total, out)


class TracedMatrix(DenseMatrix):
    """A matrix of JAX in bfloat16; the compiler converts it within the product."""

    def __init__(self, matrix: LocalArray) -> None:
        super().__init__(matrix)
        self.dtype = _SINGLE

    def _product(self, matrix: LocalArray, x: LocalArray, out: LocalArray | None) -> LocalArray:
        return store(_traced_product(matrix, x), out)


def _traced_product(matrix: LocalArray, x: LocalArray) -> LocalArray:
    return engine_of(x).matmul(matrix.astype(_SINGLE), _single(x))


def _single(x: LocalArray) -> LocalArray:
    return x.astype(np.complex64 if x.dtype.kind == "c" else _SINGLE, copy=False)
