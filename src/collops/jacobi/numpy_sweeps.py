"""Sweeps on hosts with NumPy, a few rows at a time, so that intermediate results stay in the cache."""

from __future__ import annotations

import numpy as np

from collops.extend.arrays import LocalArray
from collops.jacobi.problem import Grid, Part

_ELEMENTS_AT_ONCE = 1 << 15


class Sweeps:
    """Sweeps over one rank's block. The arithmetic of a point is in the order of ``relax`` in ``jacobi.cu``.

    `rows_at_once` is the number of rows in one call of NumPy, by default as many as fit in a cache.
    """

    def __init__(self, grid: Grid, rows_at_once: int | None = None) -> None:
        self.grid = grid
        self._rows_at_once = rows_at_once or max(1, _ELEMENTS_AT_ONCE // max(1, grid.columns))
        self._quarter = np.dtype(grid.problem.dtype).type(0.25)
        self._change = np.empty(self._rows_at_once * max(1, grid.columns), grid.problem.dtype)

    def full(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep all of `source` into `target`; add the norm's square to ``norms[slot]`` unless `slot` is negative."""
        self._sweep(source, target, norms, slot, self.grid.full)

    def boundary(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep the points that neighbours need: the outermost rows, and columns if the grid is split along them."""
        for part in self.grid.outer:
            self._sweep(source, target, norms, slot, part)

    def inner(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep the points that :meth:`boundary` omits."""
        self._sweep(source, target, norms, slot, self.grid.inner)

    def into_halos(
        self, source: LocalArray, target: LocalArray, above: LocalArray, below: LocalArray, norms: LocalArray, slot: int
    ) -> None:
        """Sweep everything, and store the outermost rows in the halos of the neighbours' arrays `above` and `below`.

        On a single rank, these are `target`.
        """
        self.full(source, target, norms, slot)
        above[self.grid.layout.local_shape(self.grid.above)[0] + 1] = target[1]
        below[0] = target[self.grid.rows]

    def _sweep(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int, part: Part) -> None:
        (begin, end), (first, last) = part
        if first >= last:
            return
        for row in range(begin, end, self._rows_at_once):
            rows = (row, min(row + self._rows_at_once, end))
            new = target[self.grid.box(rows, (first, last))]
            np.add(self._shifted(source, rows, part, 0, 1), self._shifted(source, rows, part, 0, -1), out=new)
            new += self._shifted(source, rows, part, 1, 0)
            new += self._shifted(source, rows, part, -1, 0)
            new *= self._quarter
            if slot >= 0:
                change = self._change[: new.size]
                np.subtract(new, self._shifted(source, rows, part, 0, 0), out=change.reshape(new.shape))
                norms[slot] += np.dot(change, change)

    def _shifted(self, source: LocalArray, rows: tuple[int, int], part: Part, down: int, across: int) -> LocalArray:
        _, (first, last) = part
        return source[self.grid.box((rows[0] + down, rows[1] + down), (first + across, last + across))]
