"""Non-stationary convolution by matrix products: a block of samples is a small banded matrix times its surroundings.

The matrices of short axes are made once. Those of long ones, which would take too much memory, are made anew by each
application, as many at a time as fit into the cache, since that takes less time than to load them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from collops.operators.convolve.filters import FilterBank

__all__ = ["BlockConvolution"]

_SHORTEST = 32  # samples of a block; longer ones where the filters are longer, so that half of the band is not zero
_KEPT = 64 << 20  # bytes of matrices that are kept, for each direction
_AT_ONCE = 1 << 20  # bytes of those that are made at a time


class BlockConvolution:
    """Convolution of local arrays on hosts.

    Parameters
    ----------
    bank : FilterBank
        The filters.
    offset, extent : int
        First sample of this rank along the axis, and how many it has.
    """

    def __init__(self, bank: FilterBank, offset: int, extent: int) -> None:
        self._bank = bank
        self._offset = offset
        self._extent = extent
        self._length = max(_SHORTEST, bank.taps.shape[1])
        itemsize = bank.taps.itemsize
        matrix_bytes = self._length * (self._length + 2 * bank.half) * itemsize
        self._keep = -(-extent // self._length) * matrix_bytes <= _KEPT
        self._count = max(1, _AT_ONCE // matrix_bytes)
        self._kept: dict[bool, list[tuple[int, np.ndarray]]] = {}

    def __call__(self, extended: np.ndarray, out: np.ndarray, *, adjoint: bool) -> None:
        """Fill `out` from an array with halos.

        Parameters
        ----------
        extended : array
            Of shape (outer, half + samples + half, inner), C-contiguous.
        out : array
            Of shape (outer, samples, inner), C-contiguous, of the same dtype.
        adjoint : bool
            The direction.
        """
        if out.size == 0:
            return
        for begin, matrices in self._matrices(adjoint):
            count, length, reach = matrices.shape
            if begin + count * length <= self._extent:
                _multiply(matrices, extended[:, begin:], out[:, begin : begin + count * length])
                continue
            whole = self._extent - begin  # of the only block of its group
            surroundings = slice(begin, begin + whole + 2 * self._bank.half)
            _multiply(matrices[:, :whole, : reach - length + whole], extended[:, surroundings], out[:, begin:])

    def _matrices(self, adjoint: bool) -> Iterator[tuple[int, np.ndarray]]:
        """Yield groups of matrices with the first sample that they are for; the last block is a group of its own."""
        kept = self._kept.get(adjoint)
        if kept is None and self._keep:
            kept = self._kept[adjoint] = list(self._made(adjoint))
        yield from self._made(adjoint) if kept is None else kept

    def _made(self, adjoint: bool) -> Iterator[tuple[int, np.ndarray]]:
        make = self._adjoint_matrices if adjoint else self._forward_matrices
        whole = self._extent // self._length
        for first in range(0, whole, self._count):
            yield first * self._length, make(first * self._length, min(self._count, whole - first))
        if whole * self._length < self._extent:
            yield whole * self._length, make(whole * self._length, 1)

    def _forward_matrices(self, begin: int, count: int) -> np.ndarray:
        """Return matrices whose columns are the filters of the surroundings' samples, as (count, length, reach)."""
        length, half = self._length, self._bank.half
        reach = length + 2 * half
        first = self._offset + begin - half
        filters = self._bank.at(first, first + (count - 1) * length + reach)
        # Of a column, only the part within the block is needed; as rows of the transposed matrix, with room for it all.
        rows = np.zeros((count, reach, length + 4 * half), filters.dtype)
        steps = rows.strides
        diagonals = as_strided(rows, (count, reach, 2 * half + 1), (steps[0], steps[1] + steps[2], steps[2]))
        row, tap = filters.strides
        diagonals[...] = as_strided(filters, diagonals.shape, (length * row, row, tap))
        return rows[:, :, 2 * half : 2 * half + length].swapaxes(1, 2)

    def _adjoint_matrices(self, begin: int, count: int) -> np.ndarray:
        """Return matrices whose rows are the conjugate filters of the block's samples."""
        length, half = self._length, self._bank.half
        first = self._offset + begin
        filters = self._bank.at(first, first + count * length).conj()
        rows = np.zeros((count, length, length + 2 * half), filters.dtype)
        steps = rows.strides
        diagonals = as_strided(rows, (count, length, 2 * half + 1), (steps[0], steps[1] + steps[2], steps[2]))
        diagonals[...] = filters.reshape(diagonals.shape)
        return rows


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
