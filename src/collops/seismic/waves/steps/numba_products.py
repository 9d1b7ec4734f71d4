"""Products of fields with the coefficients of any medium in Numba: each in one pass over the grid, in several threads.

Rows are short enough for the first cache, where their sums stay. Each point takes the operations of NumPy's forms, in
the same order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import prange

from collops.extend.engines import cached_njit
from collops.seismic.host_kernels import compilation_lock, limited_threads
from collops.seismic.waves.steps.host import HostSteps

_ROWS = 16  # of a task
_LEAP, _MULTIPLY, _ADD, _CORRELATE, _COMBINE = range(5)


class NumbaProducts(HostSteps):
    """Steps with the products of this file, for coefficients of the form of the attribute `matrix`.

    Classes that derive from this one set the number of threads.
    """

    _thread_count: int

    def leap(self, u: np.ndarray, before: np.ndarray, c: np.ndarray, w: np.ndarray) -> None:
        """Replace `before` by the field after `u`, of which `w` is the Laplacian."""
        self._each_row(_LEAP, u=u[self._box], out=before[self._box], c=c, w=w)

    def multiply(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the product of the coefficients with fields."""
        self._each_row(_MULTIPLY, c=c, w=w, out=out)

    def add_product(self, c: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
        """Add the product of the coefficients with fields to `out`."""
        self._each_row(_ADD, c=c, w=w, out=out)

    def correlate(self, u: np.ndarray, w: np.ndarray, image: np.ndarray, factor: float = 1.0) -> None:
        """Add the inner products of fields, the first multiplied by a factor, to an image."""
        self._each_row(_CORRELATE, u=u, w=w, out=image, factor=factor)

    def combine(self, u: np.ndarray, factor: float, w: np.ndarray) -> None:
        """Replace w by its multiple plus u."""
        self._each_row(_COMBINE, u=u, w=w, factor=factor)

    def _each_row(
        self,
        stage: int,
        *,
        w: np.ndarray,
        u: np.ndarray | None = None,
        out: np.ndarray | None = None,
        c: np.ndarray | None = None,
        factor: float = 1.0,
    ) -> None:
        _compiled(self._dtype.name)
        views = [part for array in (u, out, w) for part in _view(array, self._dtype)]
        coefficients = np.empty(0, self._dtype) if c is None else c.reshape(-1)
        products: Any = _products
        with limited_threads(self._thread_count):
            products(stage, self._tile.inner, *views, coefficients, np.array(self.matrix), self._dtype.type(factor))


def _view(array: np.ndarray | None, dtype: np.dtype) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Return fields as a flat array, and how far fields, planes and rows are apart; points of a row are contiguous."""
    if array is None:
        return np.empty(0, dtype), (0, 0, 0)
    strides = [stride // array.itemsize for stride in array.strides]
    count = 1 + sum((n - 1) * stride for n, stride in zip(array.shape, strides, strict=True))
    field, plane, row, _ = (0, *strides)[-4:]
    return np.lib.stride_tricks.as_strided(array, (count,), (array.itemsize,)), (field, plane, row)


@cache
def _compiled(dtype: str) -> None:
    """Compile the kernel, or load it from the cache on disk. Later calls do not compile."""
    none = np.empty(0, dtype)
    products: Any = _products
    with compilation_lock(products, "products"):
        views = [none, (0, 0, 0)] * 3
        products(_LEAP, (0, 0, 0), *views, none, np.zeros((1, 1), np.int64), none.dtype.type(1))


# Indices are unsigned: the compiler vectorises these loops only where an index cannot count from the end.


@cached_njit(forceinline=True, nogil=True, error_model="numpy")
def _product_row(total, c, w, at, own, size, apart, matrix, f, n):
    """Fill a row with the product of row f of the matrix with the fields."""
    begun = False
    for g in range(matrix.shape[1]):
        if matrix[f, g] < 0:
            continue
        first, begin = np.uint64(matrix[f, g] * size + own), np.uint64(at + g * apart)
        if begun:
            for k in range(np.uint64(n)):
                total[k] += c[first + k] * w[begin + k]
        else:
            for k in range(np.uint64(n)):
                total[k] = c[first + k] * w[begin + k]
        begun = True


@cached_njit(forceinline=True, nogil=True, error_model="numpy")
def _stage_row(stage, u, base, out, begin, w, at, total, factor, n):
    """Do a stage at a row of a field, of which `total` is the product with the coefficients."""
    base, begin, at, two = np.uint64(base), np.uint64(begin), np.uint64(at), w.dtype.type(2)
    if stage == _LEAP:
        for k in range(np.uint64(n)):
            out[begin + k] = (two * u[base + k] - out[begin + k]) + total[k]
    elif stage == _MULTIPLY:
        for k in range(np.uint64(n)):
            out[begin + k] = total[k]
    elif stage == _ADD:
        for k in range(np.uint64(n)):
            out[begin + k] += total[k]
    elif stage == _CORRELATE:
        for k in range(np.uint64(n)):
            out[begin + k] += (factor * u[base + k]) * w[at + k]
    else:
        for k in range(np.uint64(n)):
            w[at + k] = factor * w[at + k] + u[base + k]


@cached_njit(parallel=True, nogil=True, error_model="numpy")
def _products(stage, size, u, u_strides, out, out_strides, w, w_strides, c, matrix, factor):
    """Do one of the stages on all rows of a tile; arrays are views, and empty where the stage does not need them."""
    planes, rows, n = size
    points = planes * rows * n
    for task in prange((planes * rows + _ROWS - 1) // _ROWS):
        start = np.int64(task) * _ROWS  # the index of a parallel loop is unsigned
        total = np.empty(n, w.dtype)
        for row in range(start, min(start + _ROWS, planes * rows)):
            i, j = row // rows, row % rows
            from_w = i * w_strides[1] + j * w_strides[2]
            from_u, to = i * u_strides[1] + j * u_strides[2], i * out_strides[1] + j * out_strides[2]
            for f in range(matrix.shape[0]):
                if stage < _CORRELATE:
                    _product_row(total, c, w, from_w, row * n, points, w_strides[0], matrix, f, n)
                base, begin, at = from_u + f * u_strides[0], to + f * out_strides[0], from_w + f * w_strides[0]
                _stage_row(stage, u, base, out, begin, w, at, total, factor, n)
