"""Sweeps on hosts with Numba: one pass over the grid, in loops that the compiler vectorises."""

from __future__ import annotations

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import cached_njit
from collops.jacobi import numpy_sweeps
from collops.jacobi.problem import Part


class Sweeps(numpy_sweeps.Sweeps):
    """The same sweeps, compiled. Each rank works on one core."""

    def _sweep(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int, part: Part) -> None:
        (begin, end), (first, last) = part
        if begin >= end or first >= last:
            return
        rows, columns = self.grid.box((begin, end), (first, last))
        square = _sweep(source, target, rows.start, rows.stop, columns.start, columns.stop, self._quarter, slot >= 0)
        if slot >= 0:
            norms[slot] += square


@cached_njit(error_model="numpy", nogil=True)
def _sweep(
    source: np.ndarray, target: np.ndarray, begin: int, end: int, first: int, last: int, quarter: float, with_norm: bool
) -> float:
    """Sweep a part; return the squared norm of its update, or 0 unless it is `wanted`."""
    square = 0.0
    for row in range(begin, end):
        # Slices, since possibly negative indices would prevent vectorisation.
        west, east = source[row, first - 1 : last - 1], source[row, first + 1 : last + 1]
        above, below = source[row - 1, first:last], source[row + 1, first:last]
        new = target[row, first:last]
        for i in range(new.size):
            # The same order as `relax` in jacobi.cu, for bitwise equality: no fast mathematics.
            new[i] = quarter * (((west[i] + east[i]) + below[i]) + above[i])
        if with_norm:
            square += _square_of_change(new, source[row, first:last])
    return square


@cached_njit(error_model="numpy", fastmath=True)
def _square_of_change(new: np.ndarray, old: np.ndarray) -> float:
    """Return the sum of squares over one row, which is in the cache, in the fastest order."""
    square = new.dtype.type(0)
    for i in range(new.size):
        change = new[i] - old[i]
        square += change * change
    return square
