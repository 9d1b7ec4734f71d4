"""Non-stationary convolution by matrix products: a block of samples is a small banded matrix times its surroundings.

Matrices for short axes are computed once. For long axes they would take too much memory and are recomputed at each
application, as many at a time as fit into the cache, which is faster than loading them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from collops.array.dtypes import real_of
from collops.backend import LocalArray, engine_of
from collops.errors import InputError, UnsupportedTypeError

_MIN_BLOCK = 32  # minimum samples of a block; longer filters get longer blocks, so that half of each matrix is not zero
_MAX_KEPT = 64 << 20  # maximum bytes of stored matrices, for each direction
_MAX_GROUP = 1 << 20  # bytes of matrices computed at a time


class FilterBank:
    """Filters at regularly spaced samples, with linear interpolation between them and the nearest one beyond them.

    `hs` are the filters, (filters, taps), with an odd number of taps and the centre in the middle; `ih` are their
    samples on an axis of `extent` samples. ``origin`` and ``step`` are the sample of the first filter and the
    spacing, ``half`` is the number of taps before the centre. For exceptions see :class:`NonStationaryConvolve1D`.
    """

    def __init__(self, hs: LocalArray, ih: Sequence[int] | np.ndarray, extent: int, dtype: DTypeLike) -> None:
        hs = np.asarray(hs) if isinstance(hs, list | tuple) else engine_of(hs).to_host(hs)
        samples = np.asarray(ih)
        if hs.ndim != 2 or hs.shape[0] == 0 or hs.shape[1] % 2 == 0:
            raise InputError(f"hs must be filters with an odd number of taps, of shape (filters, taps), not {hs.shape}")
        if samples.shape != hs.shape[:1] or samples.dtype.kind not in "iu":
            raise InputError(f"ih must be one integer for each of {len(hs)} filters")
        steps = np.unique(np.diff(samples))
        if len(steps) > 1 or (len(steps) == 1 and steps[0] <= 0):
            raise InputError(f"ih must be regularly spaced and increasing; its steps are {steps.tolist()}")
        if samples[0] < 0 or samples[-1] >= extent:
            raise InputError(f"ih goes from {samples[0]} to {samples[-1]}; the axis has {extent} samples")
        if hs.dtype.kind == "c" and np.dtype(dtype).kind != "c":
            raise UnsupportedTypeError(f"filters of dtype {hs.dtype} do not fit into {np.dtype(dtype)}")
        self.taps: np.ndarray = np.array(hs, dtype, order="C")
        self.origin = int(samples[0])
        self.step = int(steps[0]) if len(steps) else 1
        self.half = hs.shape[1] // 2

    def converted(self, dtype: DTypeLike) -> FilterBank:
        """Return the same filters in another dtype."""
        other = copy(self)
        other.taps = self.taps.astype(dtype, copy=False)
        return other

    def filters(self, begin: int, end: int) -> np.ndarray:
        """Return the filters of the samples from `begin` to `end`, which may lie beyond the axis."""
        last = len(self.taps) - 1
        distance = np.clip(np.arange(begin, end) - self.origin, 0, last * self.step)
        number, remainder = np.divmod(distance, self.step)
        weight = (remainder / self.step).astype(real_of(self.taps.dtype))[:, None]
        near = self.taps[number]
        return near + weight * (self.taps[np.minimum(number + 1, last)] - near)


class Convolution:
    """Convolution of local arrays on hosts, whose `extent` samples along the axis begin at `offset`."""

    def __init__(self, bank: FilterBank, offset: int, extent: int) -> None:
        self._bank = bank
        self._offset = offset
        self._extent = extent
        self._length = max(_MIN_BLOCK, bank.taps.shape[1])
        itemsize = bank.taps.itemsize
        matrix_bytes = self._length * (self._length + 2 * bank.half) * itemsize
        self._keep = -(-extent // self._length) * matrix_bytes <= _MAX_KEPT
        self._count = max(1, _MAX_GROUP // matrix_bytes)
        self._cache: dict[bool, list[tuple[int, np.ndarray]]] = {}

    def __call__(self, extended: np.ndarray, out: np.ndarray, *, adjoint: bool) -> None:
        """Fill `out`, (outer, samples, inner), from `extended`, which has half a filter more on either side."""
        if out.size == 0:
            return
        groups: Iterable[tuple[int, np.ndarray]] | None = self._cache.get(adjoint)
        if groups is None:
            groups = self._groups(self._adjoint_matrices if adjoint else self._forward_matrices)
            if self._keep:
                groups = self._cache[adjoint] = list(groups)
        for begin, matrices in groups:
            count, length, reach = matrices.shape
            if begin + count * length <= self._extent:
                _multiply(matrices, extended[:, begin:], out[:, begin : begin + count * length])
                continue
            samples = self._extent - begin  # the only block of its group
            surroundings = slice(begin, begin + samples + 2 * self._bank.half)
            _multiply(matrices[:, :samples, : reach - length + samples], extended[:, surroundings], out[:, begin:])

    def _groups(self, make: Callable[[int, int], np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield pairs of first sample and group of matrices; the last block is a separate group."""
        count = self._extent // self._length
        for first in range(0, count, self._count):
            yield first * self._length, make(first * self._length, min(self._count, count - first))
        if count * self._length < self._extent:
            yield count * self._length, make(count * self._length, 1)

    def _forward_matrices(self, begin: int, count: int) -> np.ndarray:
        """Return matrices whose columns are the filters of the surroundings' samples, as (count, length, reach)."""
        length, half = self._length, self._bank.half
        reach = length + 2 * half
        first = self._offset + begin - half
        columns = _diagonals(self._bank.filters(first, first + (count - 1) * length + reach), count, reach, length)
        # Only the part of a column within the block is needed; the transposed matrix has space for all.
        return columns[:, :, 2 * half : 2 * half + length].swapaxes(1, 2)

    def _adjoint_matrices(self, begin: int, count: int) -> np.ndarray:
        """Return matrices whose rows are the conjugate filters of the block's samples."""
        first = self._offset + begin
        filters = self._bank.filters(first, first + count * self._length).conj()
        return _diagonals(filters, count, self._length, self._length)


def _diagonals(filters: np.ndarray, count: int, rows: int, step: int) -> np.ndarray:
    """Return `count` matrices; row i has filter i in the columns from i on; filters advance by `step` per matrix."""
    taps = filters.shape[1]
    matrices = np.zeros((count, rows, rows + taps - 1), filters.dtype)
    far, down, right = matrices.strides
    along, tap = filters.strides
    filled = as_strided(matrices, (count, rows, taps), (far, down + right, right))
    filled[...] = as_strided(filters, filled.shape, (step * along, along, tap))
    return matrices


def _multiply(matrices: np.ndarray, extended: np.ndarray, out: np.ndarray) -> None:
    """Multiply each matrix with the window of its block."""
    count, length, reach = matrices.shape
    outer, _, inner = out.shape
    far, step, near = extended.strides
    if inner > 1:
        windows = as_strided(extended, (outer, count, reach, inner), (far, length * step, step, near))
        np.matmul(matrices, windows, out=out.reshape(outer, count, length, inner))
    else:
        windows = as_strided(extended, (count, outer, reach), (length * step, far, step))
        np.matmul(windows, matrices.swapaxes(1, 2), out=out.reshape(outer, count, length).swapaxes(0, 1))
