"""The real transform of a short axis by one matrix product, with its shifts, lengths and factors in the matrix.

A few lines of some hundred samples take BLAS less time than a fast transform and the passes before and after it,
above all where the number of samples has a large prime factor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["DenseTransform", "pays"]

_MOST_WORK = 1 << 18  # products of one transform
_LARGEST = 1 << 15  # elements of a matrix that stays in the second-level cache


def pays(given: int, taken: int, lines: int) -> bool:
    """Return whether hosts transform `lines` of `given` real samples to `taken` frequencies by a matrix."""
    elements = 2 * taken * given
    return 0 < elements <= _LARGEST and elements * lines <= _MOST_WORK


class DenseTransform:
    """A linear map from real to complex columns on the host, and its adjoint over the real numbers.

    Parameters
    ----------
    matrix : numpy.ndarray
        Complex, of shape (taken, given).
    """

    __slots__ = ("_adjoint", "_matrix", "_taken", "_work")

    def __init__(self, matrix: Any) -> None:
        self._matrix = np.concatenate([matrix.real, matrix.imag])
        self._adjoint = self._matrix.T
        self._taken = len(matrix)
        self._work: dict[int, np.ndarray] = {}

    def forward(self, source: Any, target: Any) -> Any:
        """Fill complex columns from real ones; both in C order, the columns along the first axis."""
        parts = self._parts(source.size // self._matrix.shape[1])
        np.matmul(self._matrix, source.reshape(self._matrix.shape[1], -1), out=parts)
        columns: Any = target.reshape(self._taken, -1)
        columns.real, columns.imag = parts[: self._taken], parts[self._taken :]
        return target

    def adjoint(self, source: Any, target: Any) -> Any:
        """Fill real columns from complex ones; both in C order, the columns along the first axis."""
        columns: Any = source.reshape(self._taken, -1)
        parts = self._parts(columns.shape[1])
        parts[: self._taken], parts[self._taken :] = columns.real, columns.imag
        np.matmul(self._adjoint, parts, out=target.reshape(self._matrix.shape[1], -1))
        return target

    def _parts(self, lines: int) -> Any:
        """Return scratch memory for real and imaginary parts."""
        parts = self._work.get(lines)
        if parts is None:
            parts = self._work[lines] = np.empty((2 * self._taken, lines), self._matrix.dtype)
        return parts
